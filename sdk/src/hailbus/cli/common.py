"""What the commands share: options, output, loading names from modules, errors as one sentence."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import select
import sys
from collections.abc import Coroutine
from dataclasses import replace
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from hailbus._transport.kafka import KafkaBus
from hailbus.catalogue import Catalogue
from hailbus.environment import bus_from_environment
from hailbus.errors import ConfigurationError, HailbusError
from hailbus.event import Event, is_event

__all__ = [
    "BOOTSTRAP_VARIABLES",
    "Bootstrap",
    "Json",
    "OptionalValues",
    "bus_at",
    "catalogue_named",
    "done",
    "event_named",
    "load",
    "out",
    "run",
    "table",
]

T = TypeVar("T")

BOOTSTRAP_VARIABLES = ["HAILBUS_BOOTSTRAP_SERVERS"]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLES,
        help="host:port of a broker; several joined by commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line.")]


class OptionalValues(TyperCommand):
    """A command with options that may stand alone, as Kafka's have: `--state`, `--state Stable` and `--state=Stable`.

    Typer has flags and options with a value only. Those whose metavar is in brackets get an empty value here where they
    stand alone: at the end, or before another option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: of the library that Typer carries inside
        """See `TyperCommand`."""
        names = {name for option in self.params if (option.metavar or "").startswith("[") for name in option.opts}
        given: list[str] = []
        for index, arg in enumerate(args):
            after = args[index + 1] if index + 1 < len(args) else "-"
            if arg == "--":
                break
            given.append(f"{arg}=" if arg in names and after.startswith("-") else arg)
        return super().parse_args(ctx, given + args[len(given) :])


def bus_at(bootstrap: str, *, connect_timeout_s: float = 5.0) -> KafkaBus:
    """The bus of a command: it does not wait long for a broker. Its other settings come from the environment."""
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # what it has to say, the command's error says
    bus = bus_from_environment(bootstrap_servers=bootstrap)
    assert bus is not None
    return bus if "HAILBUS_CONNECT_TIMEOUT_S" in os.environ else replace(bus, connect_timeout_s=connect_timeout_s)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command. What the user can put right is one sentence on stderr and exit code 2."""
    try:
        return asyncio.run(main)
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigurationError) else 1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError as error:
        if not _is_reader_gone():
            typer.echo(f"hailbus: a connection was closed: {error}", err=True)
            raise typer.Exit(1) from error
        # As `head` does when it has enough: nothing to tell anybody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def _is_reader_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more: a socket breaks with the same error."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # of a pipe's end it tells without being asked that the other is closed
    return bool(poll.poll(0))


def load(name: str) -> Any:
    """What `package.module:attribute` names; a module alone without the colon.

    Raises:
        ConfigurationError: There is no such module or attribute.
    """
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 as python itself does for a script
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        message = f"there is no module {module_name!r} ({error}); give one like 'shop.main:svc'"
        raise ConfigurationError(message) from error
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            message = f"module {module_name!r} has no {attribute!r}"
            raise ConfigurationError(message)
        found = getattr(found, part)
    return found


def catalogue_named(name: str) -> Catalogue:
    """A catalogue, the events of a module, or of a service, by name.

    Raises:
        ConfigurationError: It is none of these.
    """
    from hailbus.service import Service

    found = load(name)
    if isinstance(found, ModuleType):
        inner = getattr(found, "CATALOGUE", None)
        return inner if isinstance(inner, Catalogue) else Catalogue.of(found)
    if isinstance(found, Service):
        return found.catalogue
    if isinstance(found, Catalogue):
        return found
    if is_event(found):
        return Catalogue.of(found)
    message = f"{name!r} is neither a catalogue, a module with events, a service nor an event class"
    raise ConfigurationError(message)


def event_named(name: str) -> type[Event]:
    """An event class by name."""
    found = load(name)
    if not is_event(found):
        message = f"{name!r} is not an event class with a type"
        raise ConfigurationError(message)
    return found


def out(document: object) -> None:
    """One JSON document on one line."""
    typer.echo(json.dumps(document, default=str, ensure_ascii=False))


def done(sentence: str, json: bool, **facts: object) -> None:
    """What a command has done: a sentence, or with `--json` the facts."""
    if json:
        out(facts)
    else:
        typer.echo(sentence)


def table(columns: list[str], rows: list[list[object]]) -> None:
    """A table for people, plain columns where there is no terminal."""
    if sys.stdout.isatty():
        drawn = Table(*columns)
        for row in rows:
            drawn.add_row(*(str(cell) for cell in row))
        Console().print(drawn)
        return
    texts = [columns, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(cells[i]) for cells in texts) for i in range(len(columns))]
    for cells in texts:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
