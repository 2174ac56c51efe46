"""`hailbus relay`: publish the rows of an outbox, in a process of its own."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from hailbus._garbage import freeze_imports
from hailbus.cli.common import Bootstrap, bus_at, catalogue_named, load, run
from hailbus.cli.running import listening, with_health
from hailbus.errors import ConfigurationError
from hailbus.service import Service

if TYPE_CHECKING:
    from hailbus.outbox import Outbox

__all__ = ["relay"]


def relay(
    bootstrap_server: Bootstrap,
    outbox: Annotated[
        str | None, typer.Argument(help="package.module:outbox, an Outbox or a SyncOutbox; or give --database.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database", "-d", envvar=["HAILBUS_DATABASE_URL"], help="sqlite:///file or postgresql://user@host/name"
        ),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option("--create-topics", help="package.module[:CATALOGUE]: create the topics of these events first."),
    ] = None,
    poll_ms: Annotated[int, typer.Option("--poll-ms", min=1, help="How often to look for rows, at the least.")] = 200,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Rows per round.")] = 1_000,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no row is due.")] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port of /livez, /readyz and /metrics; port 0 takes a free one.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
) -> None:
    """Publish the rows of an outbox until SIGTERM or Ctrl-C.

    For applications whose own processes publish nothing: synchronous ones, and services that store events in an outbox
    and run no relay. On PostgreSQL several relays share the work; on SQLite run one per file.
    """

    async def main() -> None:
        from sqlalchemy.exc import SQLAlchemyError

        listener = listening(listen) if listen is not None else None
        found = _outbox(outbox, database, poll_ms=poll_ms, batch=batch)
        svc = Service("hailbus-relay", bus=bus_at(bootstrap_server, connect_timeout_s=60.0), provision=bool(events))
        if events:
            svc.publishes(*catalogue_named(events))
        svc.relays(found)
        freeze_imports()
        try:
            if until_empty:
                async with svc.running():
                    await found.until_empty()
            elif listener is not None and listen is not None:
                from hailbus.fastapi import serve

                await serve(with_health(svc, None), listen, listener=listener)
            else:
                await svc.run()
        except (SQLAlchemyError, OSError) as error:
            reason = getattr(error, "orig", None) or error
            message = f"the outbox's database {found.engine.url.render_as_string()} cannot be used: {reason}"
            raise ConfigurationError(message) from error
        finally:
            await found.engine.dispose()
        typer.echo(f"published={found.published_count}")

    if until_empty and listen is not None:
        typer.echo("hailbus: --listen and --until-empty exclude each other; a job that ends needs no probes", err=True)
        raise typer.Exit(2)
    if log_level not in {"debug", "info", "warning", "error"}:
        typer.echo(f"hailbus: --log-level {log_level!r} is not debug, info, warning or error", err=True)
        raise typer.Exit(2)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(max(logging.getLevelNamesMapping()[log_level.upper()], logging.WARNING))
    run(main())


def _outbox(name: str | None, database: str | None, *, poll_ms: int, batch: int) -> Outbox:
    from hailbus.database import create_engine
    from hailbus.outbox import Outbox
    from hailbus.sync import SyncOutbox

    if (name is None) == (database is None):
        message = "name the outbox, as in 'hailbus relay shop:outbox', or give --database; one of the two"
        raise ConfigurationError(message)
    url = database
    if name is not None:
        found = load(name)
        if isinstance(found, Outbox):
            return found
        if not isinstance(found, SyncOutbox):
            message = f"{name!r} is neither an Outbox nor a SyncOutbox"
            raise ConfigurationError(message)
        url = found.engine.url.render_as_string(hide_password=False)
    assert url is not None
    return Outbox(create_engine(url), batch_records=batch, poll_interval=timedelta(milliseconds=poll_ms))
