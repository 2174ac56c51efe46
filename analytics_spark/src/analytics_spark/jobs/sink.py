"""`lake-sink`: every event of the bus into the lake. Wiring only: settings, lock, session, streams, signals."""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer

from analytics_spark.config import LakeSettings, SettingsError, read_settings
from analytics_spark.errors import LakeError
from analytics_spark.jars import cache_dir
from analytics_spark.jobs.bronze import bronze_stream
from analytics_spark.jobs.gold import gold_stream
from analytics_spark.jobs.silver import silver_stream
from analytics_spark.locking import hold_lock
from analytics_spark.progress import Progress
from analytics_spark.session import LakeLayout, SessionPlan, end_session, start_session
from analytics_spark.sources import existing_topics
from analytics_spark.supervisor import Supervisor, SupervisorPlan

__all__ = ["main", "run_sink"]

log = structlog.get_logger()

STREAMS = (bronze_stream, silver_stream, gold_stream)
"""In the order of the data: each reads what the one before it wrote."""


class _StopRequested(Exception):  # noqa: N818 not an error: somebody asked
    """SIGTERM or SIGINT before the streams ran."""


def run_sink(settings: LakeSettings, *, until_caught_up: bool = False) -> None:
    """Run until SIGTERM, SIGINT, the finish file, or, with `until_caught_up`, until the lake has what the broker has.

    Raises:
        LakeError: What a person must mend; the message says how.
    """
    if not settings.bootstrap_servers:
        raise SettingsError("LAKE_BOOTSTRAP_SERVERS is not set; give HOST:PORT of the broker")
    layout = LakeLayout(settings.dir.expanduser().absolute())
    layout.root.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    stop = threading.Event()
    with hold_lock(layout.lock, timeout_s=settings.lock_timeout_s) as lock_fd, _signals(stop) as phase:
        progress = Progress(layout.progress)
        progress.say("starting")
        layout.finish.unlink(missing_ok=True)
        try:
            spark = start_session(
                SessionPlan(
                    layout=layout,
                    app_name="lake-sink",
                    java=settings.java,
                    cores=settings.cores,
                    driver_memory_mb=settings.driver_memory_mb,
                    cache=settings.cache or cache_dir(),
                    lock_fd=lock_fd,
                )
            )
            progress.timing("session", time.monotonic() - began)
            log.info("session_started", seconds=round(time.monotonic() - began, 1))
            try:
                _wait_for_topics(spark, settings, progress)
                phase["is_starting"] = False
                supervisor = Supervisor(
                    spark,
                    [partial(make, spark, settings, layout, progress) for make in STREAMS],
                    SupervisorPlan(finish_file=layout.finish, retry_for_s=settings.broker_timeout_s),
                    progress,
                )
                if until_caught_up:
                    supervisor.finish(stop)
                else:
                    supervisor.run(stop)
            finally:
                end_session(spark)
        except _StopRequested:
            pass
        except LakeError as error:
            progress.say("failed", str(error))
            raise
        progress.say("caught-up" if progress.state == "caught-up" else "stopped")


def _wait_for_topics(spark: Any, settings: LakeSettings, progress: Progress) -> None:
    """Wait for the broker and the first topic of ours. Topics that come later are picked up while the stream runs."""
    deadline = time.monotonic() + settings.start_timeout_s
    said = ""
    while True:
        try:
            existing = existing_topics(spark, bootstrap_servers=settings.bootstrap_servers, timeout_ms=10_000)
        except ConnectionError as error:
            reason = f"no broker answers at {settings.bootstrap_servers} ({error})"
            advice = "start it, or correct LAKE_BOOTSTRAP_SERVERS"
        else:
            if existing.intersection(settings.topics):
                return
            reason = f"none of the topics {', '.join(settings.topics)} exists at {settings.bootstrap_servers}"
            advice = "provision them, or correct LAKE_TOPICS"
        if time.monotonic() >= deadline:
            raise LakeError(f"{reason} after {settings.start_timeout_s:.0f} s; {advice}")
        if reason != said:
            log.warning("waiting", reason=reason)
            progress.say("waiting", reason)
            said = reason
        time.sleep(0.5)


@contextmanager
def _signals(stop: threading.Event) -> Generator[dict[str, bool]]:
    """SIGTERM and SIGINT ask for an orderly end; while the session starts they end it at once."""
    phase = {"is_starting": True}

    def asked(number: int, _frame: object) -> None:
        log.info("stop_requested", signal=signal.Signals(number).name)
        stop.set()
        if phase["is_starting"]:
            raise _StopRequested

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield phase
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _configure_log() -> None:
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=True) if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # py4j logs every broken connection; what matters of them comes as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _command(
    *,
    bootstrap: Annotated[str | None, typer.Option(help="HOST:PORT of the broker, else LAKE_BOOTSTRAP_SERVERS.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Folder of the lake, else LAKE_DIR.")] = None,
    topics: Annotated[str | None, typer.Option(help="Topics, separated by commas, else LAKE_TOPICS, else all.")] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Land what the broker has now, through gold, and end.")
    ] = False,
) -> None:
    """Land every event of the bus in the lake: bronze, silver, gold."""
    _configure_log()
    try:
        settings = read_settings(bootstrap_servers=bootstrap, dir=directory, topics=topics)
        run_sink(settings, until_caught_up=until_caught_up)
    except LakeError as error:
        print(f"lake-sink: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def main() -> NoReturn:
    """Entry point of `lake-sink`."""
    code = 1
    try:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(name="lake-sink")(_command)
        app()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:  # noqa: BLE001 the last frame: whatever it is, it ends here and must be seen
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of py4j's callback server may still wait for a JVM that is gone: nothing of ours is left to do.
    os._exit(code)


if __name__ == "__main__":
    main()
