"""`hailbus registry`: serve a schema registry, look into one, and put the events of a catalogue there."""

from __future__ import annotations

import json as encoder
import logging
from typing import Annotated

import typer

from hailbus.cli.common import Bootstrap, Json, bus_at, catalogue_named, out, run, table
from hailbus.compatibility import Level, Policy
from hailbus.errors import ConfigurationError

__all__ = ["registry"]

registry = typer.Typer(
    name="registry", help="Serve a schema registry, look into one, register events.", no_args_is_help=True
)
Url = Annotated[
    str, typer.Option("--url", "-u", envvar=["HAILBUS_REGISTRY_URL"], help="Of the registry; several joined by commas.")
]


@registry.command()
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
    try:
        from hailbus.fastapi import serve as serve_app
    except ImportError as error:
        typer.echo(f"hailbus: {error}; a server needs the packages of hailbus[service]", err=True)
        raise typer.Exit(2) from error
    from hailbus.registry.server import create_app

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


@registry.command("ls")
def list_subjects(url: Url, json: Json = False) -> None:
    """List subjects with their versions."""
    from hailbus.registry.client import SchemaRegistry

    async def main() -> None:
        async with SchemaRegistry(url) as client:
            rows = [(name, await client.versions(name)) for name in await client.subjects()]
        if json:
            for name, versions in rows:
                out({"subject": name, "versions": versions})
        else:
            table(["SUBJECT", "VERSIONS"], [[name, ", ".join(map(str, versions))] for name, versions in rows])

    run(main())


@registry.command()
def show(
    url: Url,
    subject: Annotated[str, typer.Argument(help="A subject.")],
    version: Annotated[int | None, typer.Option("--version", help="The last unless given.")] = None,
) -> None:
    """Print a schema."""
    from hailbus.registry.client import SchemaRegistry

    async def main() -> None:
        async with SchemaRegistry(url) as client:
            found = await client.version(subject, version)
        typer.echo(encoder.dumps(found.schema, indent=2, ensure_ascii=False))

    run(main())


@registry.command()
def register(
    url: Url,
    events: Annotated[str, typer.Argument(help="package.module[:CATALOGUE]")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether the registry would take them.")] = False,
    json: Json = False,
) -> None:
    """Register the schema of every event. Exit code 1 when one is incompatible."""
    from hailbus.contract import contract_of
    from hailbus.registry.client import SchemaRegistry
    from hailbus.registry.schemas import registered_form, subject_of

    async def main() -> int:
        refused = 0
        async with SchemaRegistry(url) as client:
            for cls in catalogue_named(events):
                contract = contract_of(cls)
                subject, schema = subject_of(contract), registered_form(contract)
                reasons = await client.incompatibilities(subject, schema)
                refused += bool(reasons)
                found = None if dry_run or reasons else await client.register(subject, schema)
                if json:
                    out({"subject": subject, "id": found.id if found else None, "reasons": reasons})
                else:
                    text = "; ".join(reasons) if reasons else f"id {found.id}" if found else "compatible"
                    typer.echo(f"{'REFUSED' if reasons else 'ok'}: {subject}: {text}")
        return refused

    if run(main()):
        raise typer.Exit(1)
