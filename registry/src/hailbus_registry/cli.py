"""`hailbus-registry serve`: a schema registry over HTTP whose state is a topic."""

from __future__ import annotations

import logging
from typing import Annotated

import typer
from hailbus.cli.common import Bootstrap, bus_at, run
from hailbus.compatibility import Level, Policy
from hailbus.errors import ConfigurationError
from hailbus.fastapi import serve as serve_app

from hailbus_registry.server import create_app

__all__ = ["main"]

app = typer.Typer(
    name="hailbus-registry",
    help="A schema registry with Confluent's REST interface, kept in a topic.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def commands() -> None:
    """A schema registry with Confluent's REST interface, kept in a topic."""  # a command by name, though there is one


@app.command()
def serve(
    bootstrap_server: Bootstrap,
    listen: Annotated[str, typer.Option("--listen", help="host:port; port 0 takes any.")] = "127.0.0.1:8081",
    level: Annotated[Level, typer.Option("--level", case_sensitive=False, help="Where nothing is configured.")] = (
        Level.BACKWARD
    ),
    policy: Annotated[
        Policy, typer.Option("--policy", case_sensitive=False, help="About fields that open models do not name.")
    ] = Policy.STRICT,
    topic: Annotated[str, typer.Option("--topic", help="Where it keeps everything.")] = "_schemas",
) -> None:
    """Serve Confluent's REST interface; all state is in a topic. Start as many as you like on one topic."""

    async def main() -> None:
        bus = bus_at(bootstrap_server, connect_timeout_s=60.0)
        try:
            await serve_app(create_app(bus, level=level, policy=policy, topic=topic), listen)
        except OSError as error:
            message = f"--listen {listen}: {error.strerror or error}; choose another address"
            raise ConfigurationError(message) from error

    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    run(main())


def main() -> None:
    """Entry point."""
    app()
