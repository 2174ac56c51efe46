"""`lake`: set up, look into and prove the lake. Everything but `maintain` runs without a JVM."""

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from analytics_spark.config import read_settings
from analytics_spark.errors import LakeError

__all__ = ["main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Set up, look into and prove the lake that lake-sink writes.",
)
Directory = Annotated[Path | None, typer.Option("--dir", help="Folder of the lake, else LAKE_DIR, else .hailbus/lake.")]


@app.command("setup")
def set_up(
    *,
    class_data: Annotated[
        bool, typer.Option(help="Make the archive that halves the CPU time of each start: 20 s once, 180 MB.")
    ] = True,
) -> None:
    """Find a Java 17 or 21 and fetch the seven pinned jars into the cache. Does nothing when all is there."""
    from analytics_spark.setup import set_up as run

    with _download_bars() as bars:
        done = run(read_settings(), class_data=class_data, progress=bars)
    print(done)


@app.command()
def tables(*, directory: Directory = None) -> None:
    """List the tables: rows, files, size, snapshots."""
    from analytics_spark.reading import table_infos
    from analytics_spark.render import show_rows

    infos = table_infos(read_settings(dir=directory).dir)
    show_rows(
        ("table", "rows", "files", "MB", "snapshots"),
        [(info.name, info.rows, info.files, round(info.size_bytes / 1e6, 2), info.snapshots) for info in infos],
    )


@app.command()
def query(
    sql: Annotated[
        str, typer.Argument(help='One SELECT in duckdb\'s SQL, for example "SELECT count(*) FROM bronze.events".')
    ],
    *,
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Answer one SELECT over the lake's tables. Read only."""
    from analytics_spark.reading import query as run
    from analytics_spark.render import show_table

    show_table(run(read_settings(dir=directory).dir, sql), as_json=as_json)


@app.command()
def show(
    table: Annotated[str, typer.Argument(help="For example bronze.events or silver.rides.")],
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 20,
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Show some rows of a table, the newest last."""
    from analytics_spark.reading import newest_rows
    from analytics_spark.render import show_table

    show_table(newest_rows(read_settings(dir=directory).dir, table, limit=limit), as_json=as_json)


@app.command()
def verify(
    *,
    bootstrap: Annotated[str | None, typer.Option(help="HOST:PORT of the broker to compare with.")] = None,
    directory: Directory = None,
    full: Annotated[
        bool, typer.Option("--full", help="Compare everything anew, not only what came since the last verification.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Choose the same rows of silver as a run that printed this seed.")
    ] = None,
    accept_deleted: Annotated[
        bool,
        typer.Option(
            "--accept-deleted",
            help="Accept offsets that the broker deleted before they were compared; later reports name them.",
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that the broker may take for an answer.")
    ] = 15.0,
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as JSON.")] = False,
) -> None:
    """Compare bronze with the log, silver with bronze, and gold with figures computed independently.

    Exit code 1 when anything disagrees or could not be checked; so it is without --bootstrap (or
    LAKE_BOOTSTRAP_SERVERS). Let lake-sink catch up first: what has not landed yet is reported as missing.
    """
    from analytics_spark.broker_view import BrokerView
    from analytics_spark.render import show_report
    from analytics_spark.verify import verify_lake

    settings = read_settings(dir=directory, bootstrap_servers=bootstrap)
    log = BrokerView(settings.bootstrap_servers, timeout_s=timeout_s) if settings.bootstrap_servers else None
    report = verify_lake(
        settings.dir, log, topics=settings.topics, full=full, accepts_deleted=accept_deleted, seed=seed
    )
    if as_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        show_report(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def maintain(
    *,
    directory: Directory = None,
    retain: Annotated[int, typer.Option(min=10, help="Snapshots to keep of every table.")] = 20,
    older_than_h: Annotated[
        float, typer.Option(min=0, help="Only snapshots older than this many hours expire.")
    ] = 24.0,
) -> None:
    """Join small files and drop old snapshots. Starts Spark; lake-sink may keep running."""
    from analytics_spark.jobs.maintain import maintain as run
    from analytics_spark.render import show_rows

    done = run(read_settings(dir=directory), retain=retain, older_than_h=older_than_h)
    show_rows(
        ("table", "files joined", "files written", "snapshots dropped"),
        [(one.table, one.files_joined, one.files_written, one.snapshots_dropped) for one in done],
    )


@contextmanager
def _download_bars() -> Generator[Callable[[str, int], Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console
    ) as progress:

        @contextmanager
        def bar(name: str, size_bytes: int) -> Generator[Callable[[int], None]]:
            task = progress.add_task(name, total=size_bytes)
            if not console.is_terminal:
                print(f"fetching {name} ({size_bytes / 1e6:.1f} MB)", file=sys.stderr, flush=True)
            yield lambda chunk_bytes: progress.update(task, advance=chunk_bytes)

        yield bar


def main() -> NoReturn:
    """Entry point of `lake`."""
    try:
        app()
    except LakeError as error:
        print(f"lake: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # `lake show … | head`: the reader has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
