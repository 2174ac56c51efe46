"""`hailbus check`, `hailbus docs` and `hailbus codegen`: contracts in CI, their documentation, and code from them."""

from __future__ import annotations

import asyncio
import json as encoder
from pathlib import Path
from typing import Annotated

import typer

from hailbus.catalogue import Catalogue
from hailbus.cli.common import Json, catalogue_named, load, out
from hailbus.compatibility import Level
from hailbus.contract import (
    Contract,
    Finding,
    changes_since,
    contract_of,
    holds_contracts,
    read_contracts,
    read_git,
    read_git_history,
    unreadable_examples,
    write_contracts,
)
from hailbus.errors import ConfigurationError, HailbusError
from hailbus.service import Service

__all__ = ["check", "codegen", "docs"]

DEFAULT_FOLDER = "contracts"


def _published(name: str, catalogue: Catalogue, *, history: bool) -> list[list[Contract]]:
    """The states of contracts that `--against` names, oldest first."""
    if name.startswith(("http://", "https://")):
        return _in_registry(name, {topic.name for topic in catalogue.topics})
    if Path(name).is_dir():
        return [read_contracts(Path(name))]
    ref, colon, folder = name.partition(":")
    folder = folder or DEFAULT_FOLDER
    try:
        return read_git_history(ref, folder) if history else [read_git(ref, folder)]
    except ConfigurationError as error:
        if colon:
            raise
        message = f"there is no folder {name}, and {error}"
        raise ConfigurationError(message) from error


def _in_registry(url: str, topics: set[str]) -> list[list[Contract]]:
    from hailbus.registry.client import SchemaRegistry
    from hailbus.registry.published import published_states

    async def ask() -> list[list[Contract]]:
        async with SchemaRegistry(url) as registry:
            return await published_states(registry, topics)

    return asyncio.run(ask())


def _findings(
    catalogue: Catalogue, against: list[str], examples: list[Path], needs: list[Path], level: Level
) -> list[Finding]:
    states: list[list[Contract]] = []
    for name in against:
        folder = Path(name)
        if folder.is_dir() and not holds_contracts(folder):
            examples = [*examples, folder]
        else:
            states += _published(name, catalogue, history=level.is_transitive)
    found = changes_since(states, [contract_of(cls) for cls in catalogue], level=level) if states else []
    for folder in (*examples, *needs):
        if not folder.is_dir():
            message = f"there is no folder {folder}"
            raise ConfigurationError(message)
    for folder in examples:
        found += unreadable_examples(folder, catalogue)
    if needs:
        from hailbus.needs import read_needs, unmet

        found += unmet([need for folder in needs for need in read_needs(folder)], catalogue)
    return sorted(found, key=lambda finding: not finding.is_breaking)


def check(
    events: Annotated[str, typer.Argument(help="package.module[:CATALOGUE]")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            help="What was published: a git ref, with a folder after a colon (main:contracts); a folder of contracts "
            "or examples; the URL of a schema registry. Give several states oldest first.",
        ),
    ] = None,
    examples: Annotated[list[Path] | None, typer.Option("--examples", help="Folder of published examples.")] = None,
    needs: Annotated[list[Path] | None, typer.Option("--needs", help="Folder of what consumers need.")] = None,
    level: Annotated[Level, typer.Option("--level", case_sensitive=False)] = Level.FULL,
    write: Annotated[Path | None, typer.Option("--write", help="Write today's contracts to this folder.")] = None,
    json: Json = False,
) -> None:
    """Tell breaking from safe changes of events.

    Exit code 0 when nothing breaks, 1 when something does, 2 when that cannot be determined.
    """
    try:
        if not (against or examples or needs or write):
            message = "give --against, --examples, --needs or --write"
            raise ConfigurationError(message)
        catalogue = catalogue_named(events)
        found = _findings(catalogue, against or [], examples or [], needs or [], level)
        breaking = [finding for finding in found if finding.is_breaking]
        for finding in found:
            if json:
                out(
                    {
                        "contract": finding.contract,
                        "path": finding.path,
                        "pointer": finding.pointer,
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
    names: Annotated[
        list[str],
        typer.Argument(help="Services, catalogues, and functions that make services or apps: package.module:name …"),
    ],
    title: Annotated[str, typer.Option("--title")] = "Events",
    version: Annotated[str, typer.Option("--version")] = "1.0.0",
    html: Annotated[Path | None, typer.Option("--html", help="Write an offline HTML page to this file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write AsyncAPI to this file.")] = None,
    server: Annotated[list[str] | None, typer.Option("--server", help="A bootstrap address to show.")] = None,
    registry: Annotated[str | None, typer.Option("--registry", help="URL of the schema registry to show.")] = None,
    needs: Annotated[Path | None, typer.Option("--needs", help="Folder of what consumers need, for the page.")] = None,
) -> None:
    """Print the AsyncAPI 3.0 document of services, or write it and an HTML page: the catalogue of events.

    A function, as for uvicorn's --factory, is called, and its services are not started. Settings that it takes are read
    from the environment.
    """
    from hailbus.asyncapi import asyncapi, catalogue_page
    from hailbus.cli.factories import is_factory, services_made_by
    from hailbus.needs import read_needs

    try:
        services: list[Service] = []
        catalogues: list[Catalogue] = []
        for name in names:
            named = load(name)
            if is_factory(named):
                made = services_made_by(named, name)
            else:
                made = [named] if isinstance(named, Service) else []
                catalogues.append(catalogue_named(name))
            services += made
            catalogues += [service.catalogue for service in made]
        catalogue = Catalogue.of(*catalogues)
        found = asyncapi(
            services, title=title, version=version, catalogue=catalogue, servers=server or (), registry=registry
        )
        document = encoder.dumps(found, indent=2, ensure_ascii=False)
        if html is not None:
            recorded = read_needs(needs) if needs is not None else []
            html.write_text(catalogue_page(services, title=title, catalogue=catalogue, needs=recorded))
        if output is not None:
            output.write_text(document + "\n")
        elif html is None:
            typer.echo(document)
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2) from error


def codegen(
    contract: Annotated[str, typer.Argument(help="An AsyncAPI 3 document, a folder of contracts, or a registry URL.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The package's folder; its name is the package's.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only events on these topics; needed with a registry URL.")
    ] = None,
) -> None:
    """Make a typed package of event classes from a contract."""
    from hailbus.asyncapi_reader import contracts_in, topics_in
    from hailbus.codegen import package_of, write_package

    try:
        path = Path(contract)
        topics = {}
        if contract.startswith(("http://", "https://")):
            if not topic:
                message = "give --topic: a registry has the events of many"
                raise ConfigurationError(message)
            contracts = _in_registry(contract, set(topic))[-1]
        elif path.is_dir():
            contracts = read_contracts(path)
        else:
            try:
                document = encoder.loads(path.read_text())
            except (OSError, ValueError) as error:
                message = f"{contract} is no JSON document: {error}"
                raise ConfigurationError(message) from error
            contracts, topics = contracts_in(document), topics_in(document)
        chosen = [one for one in contracts if not topic or one.topic in topic]
        written = write_package(package_of(chosen, topics=topics), output)
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"{len(chosen)} events, {len(written)} files in {output}.", err=True)
