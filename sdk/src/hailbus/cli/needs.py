"""`hailbus needs`: what consumers need of events, and Pact files of it."""

from __future__ import annotations

import json as encoder
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hailbus.cli.common import Json, out, table
from hailbus.errors import HailbusError
from hailbus.needs import Need, pact_files, read_needs

__all__ = ["needs"]

needs = typer.Typer(
    name="needs", help="What consumers need of events: list it, export Pact files.", no_args_is_help=True
)
Folder = Annotated[Path, typer.Argument(help="The folder that pytest --record-needs writes.")]


class Specification(StrEnum):
    """Versions of Pact's file format."""

    V3 = "3"
    V4 = "4"


def _read(folder: Path) -> list[Need]:
    try:
        return read_needs(folder)
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2) from error


@needs.command("ls")
def list_needs(folder: Folder, json: Json = False) -> None:
    """List which fields of which events consumers read."""
    found = _read(folder)
    if json:
        for need in found:
            out({"consumer": need.consumer, "type": need.type, "version": need.version, "fields": need.fields})
    else:
        rows: list[list[object]] = [[n.consumer, f"{n.type} v{n.version}", ", ".join(n.fields)] for n in found]
        table(["CONSUMER", "EVENT", "FIELDS"], rows)


@needs.command()
def pact(
    folder: Folder,
    provider: Annotated[str, typer.Option("--provider", help="Who publishes the events.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    spec: Annotated[Specification, typer.Option("--spec", help="Version of Pact's file format.")] = Specification.V4,
) -> None:
    """Write a Pact message file for each consumer. Verify with `hailbus check --needs`, or with Pact's own tools."""
    output.mkdir(parents=True, exist_ok=True)
    files = pact_files(_read(folder), provider=provider, specification=spec.value)
    for name, document in files.items():
        (output / name).write_text(encoder.dumps(document, indent=2, ensure_ascii=False) + "\n")
    for name in files:
        typer.echo(str(output / name))
