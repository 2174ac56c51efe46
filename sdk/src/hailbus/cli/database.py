"""`hailbus db`: the tables of outbox, inbox, parked keys and idempotency keys."""

from __future__ import annotations

from typing import Annotated

import typer

from hailbus.cli.common import Json, done, run

__all__ = ["db"]

db = typer.Typer(name="db", help="Create and upgrade the tables of outbox, inbox and the others.", no_args_is_help=True)

Database = Annotated[
    str, typer.Option("--database", "-d", envvar=["HAILBUS_DATABASE_URL"], help="sqlite:///file or postgresql://…")
]


@db.command("upgrade")
def upgrade_(
    database: Database,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements in place of running them.")] = False,
    json: Json = False,
) -> None:
    """Create what is missing, in one transaction. On a database that is up to date it changes nothing."""
    from hailbus.database import create_engine, database_url
    from hailbus.migrations import STEPS, statements, upgrade

    async def main() -> None:
        engine = create_engine(database)
        try:
            async with engine.begin() as connection:
                steps = await connection.run_sync(upgrade)
        finally:
            await engine.dispose()
        versions = [step.version for step in steps]
        sentence = (
            "\n".join(f"applied {step.version}: {step.description}" for step in steps)
            if steps
            else f"up to date at version {STEPS[-1].version}"
        )
        done(sentence, json, applied=versions, version=STEPS[-1].version)

    async def show() -> None:
        dialect = database_url(database).get_backend_name()
        for step in (None, *STEPS):
            if step is not None:
                typer.echo(f"\n-- {step.version}: {step.description}")
            for statement in statements(dialect, step):
                typer.echo(f"{statement};")
            if step is not None:
                now = "extract(epoch from now()) * 1000000" if dialect == "postgresql" else "unixepoch() * 1000000"
                typer.echo(
                    "INSERT INTO hailbus_versions (version, description, applied_at) "  # noqa: S608 our own words
                    f"VALUES ({step.version}, '{step.description}', {now}) ON CONFLICT DO NOTHING;"
                )

    run(show() if sql else main())


@db.command("status")
def status(database: Database, json: Json = False) -> None:
    """Say which version a database has. Exit status 1 when steps are missing."""
    from hailbus.database import READ_ONLY, create_engine
    from hailbus.migrations import pending, version_of

    async def main() -> bool:
        engine = create_engine(database)
        try:
            async with engine.connect() as connection:
                await connection.execution_options(**READ_ONLY)
                version = await connection.run_sync(version_of)
        finally:
            await engine.dispose()
        missing = [step.version for step in pending(version)]
        said = f"missing {', '.join(map(str, missing))}; run `hailbus db upgrade`" if missing else "up to date"
        done(f"version {version}: {said}", json, version=version, missing=missing)
        return not missing

    if not run(main()):
        raise typer.Exit(1)
