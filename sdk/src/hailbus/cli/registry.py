"""`hailbus registry`: look into a schema registry, and register the events of a catalogue there."""

from __future__ import annotations

import json as encoder
from typing import Annotated

import typer

from hailbus.cli.common import Json, catalogue_named, out, run, table

__all__ = ["registry"]

registry = typer.Typer(name="registry", help="Look into a schema registry, register events.", no_args_is_help=True)
Url = Annotated[
    str, typer.Option("--url", "-u", envvar=["HAILBUS_REGISTRY_URL"], help="Of the registry; several joined by commas.")
]


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
