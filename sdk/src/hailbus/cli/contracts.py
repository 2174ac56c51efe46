"""`hailbus check` and `hailbus docs`: contracts in CI, and their documentation."""

from __future__ import annotations

import json as encoder
from pathlib import Path
from typing import Annotated

import typer

from hailbus.cli.common import Json, catalogue_named, load, out
from hailbus.contract import (
    Contract,
    Level,
    changes,
    contract_of,
    read_contracts,
    read_git,
    unreadable_examples,
    write_contracts,
)
from hailbus.errors import ConfigurationError, HailbusError
from hailbus.service import Service

__all__ = ["check", "docs"]


def _against(name: str) -> list[Contract]:
    if Path(name).is_dir() or ":" not in name:
        return read_contracts(Path(name))
    ref, _, folder = name.partition(":")
    return read_git(ref, folder)


def check(
    events: Annotated[str, typer.Argument(help="package.module[:CATALOGUE]")],
    against: Annotated[
        str | None, typer.Option("--against", help="A folder of contracts, or a git ref and folder: main:contracts.")
    ] = None,
    examples: Annotated[Path | None, typer.Option("--examples", help="Folder of published examples.")] = None,
    level: Annotated[Level, typer.Option("--level", case_sensitive=False)] = Level.FULL,
    write: Annotated[Path | None, typer.Option("--write", help="Write today's contracts to this folder.")] = None,
    json: Json = False,
) -> None:
    """Tell breaking from safe changes of events. Exit code 1 when something breaks."""
    try:
        if against is None and examples is None and write is None:
            message = "give --against, --examples or --write"
            raise ConfigurationError(message)
        catalogue = catalogue_named(events)
        found = []
        if against is not None:
            found += changes(_against(against), [contract_of(cls) for cls in catalogue], level=level)
        if examples is not None:
            if not examples.is_dir():
                message = f"there is no folder {examples}"
                raise ConfigurationError(message)
            found += unreadable_examples(examples, catalogue)
        breaking = [finding for finding in found if finding.is_breaking]
        for finding in found:
            if json:
                out(
                    {
                        "contract": finding.contract,
                        "path": finding.path,
                        "breaking": finding.is_breaking,
                        "sentence": finding.sentence,
                    }
                )
            else:
                typer.echo(str(finding))
        if write is not None and not breaking:
            written = write_contracts(catalogue, write)
            typer.echo(f"{len(written)} contracts written to {write}.", err=True)
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"{len(breaking)} breaking, {len(found) - len(breaking)} safe.", err=True)
    if breaking:
        raise typer.Exit(1)


def docs(
    names: Annotated[list[str], typer.Argument(help="Services and catalogues: package.module:name …")],
    title: Annotated[str, typer.Option("--title")] = "Events",
    version: Annotated[str, typer.Option("--version")] = "1.0.0",
    html: Annotated[Path | None, typer.Option("--html", help="Write an offline HTML page to this file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write AsyncAPI to this file.")] = None,
) -> None:
    """Print the AsyncAPI 3.0 document of services, or write it and an HTML page."""
    from hailbus.asyncapi import asyncapi, catalogue_page
    from hailbus.catalogue import Catalogue

    try:
        services = [found for name in names if isinstance(found := load(name), Service)]
        catalogue = Catalogue.of(*(catalogue_named(name) for name in names))
        document = encoder.dumps(
            asyncapi(services, title=title, version=version, catalogue=catalogue), indent=2, ensure_ascii=False
        )
        if html is not None:
            html.write_text(catalogue_page(services, title=title, catalogue=catalogue))
        if output is not None:
            output.write_text(document + "\n")
        elif html is None:
            typer.echo(document)
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2) from error
