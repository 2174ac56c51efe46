"""`surge`: the worker process. It runs until SIGTERM or SIGINT, or ends with a sentence and exit code 1."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import structlog
import uvloop
from hailbus import ClusterAdmin, ConfigurationError, HailbusError, Inbox, KafkaBus
from hailbus.database import create_engine
from hailbus.process import log_to_stderr
from hailbus.settings import read_settings
from ride_events import CATALOGUE

from surge.app.errors import WorkerError
from surge.config import Settings

log = structlog.get_logger("surge")

STOP_TIMEOUT_S = 8.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker; returns the exit code: 0 stopped, 1 failed, 2 wrongly configured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given:
        known = given in (["--help"], ["-h"])
        print(f"surge takes no arguments; it is set by environment variables:\n{_described()}")
        return 0 if known else 2
    try:
        settings = read_settings(Settings)
    except ConfigurationError as error:
        print(f"surge: {error}", file=sys.stderr)
        return 2
    log_to_stderr(settings.log_level)
    try:
        code = uvloop.new_event_loop().run_until_complete(_run(settings))
    except ConfigurationError as error:
        print(f"surge: {error}", file=sys.stderr)
        code = 2
    except (HailbusError, WorkerError) as error:
        print(f"surge: {error}", file=sys.stderr)
        code = 1
    except Exception:
        log.exception("failed")
        print("surge: an unexpected error ended the worker; nothing is lost: start it again", file=sys.stderr)
        code = 1
    # Left at once: after a failure it is some thread or task of the stream processor that hangs, and a supervisor waits
    # for the exit code. What was not acknowledged is heard again.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _run(settings: Settings) -> int:
    from surge.adapters.streams.worker import SurgeWorker, topics  # faust takes its time, a wrong setting need not

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # First, as a wrong URL need not wait for a broker.
    engine = create_engine(settings.database_url.get_secret_value())
    bus = KafkaBus(bootstrap_servers=settings.bootstrap_servers, connect_timeout_s=settings.connect_timeout_s)
    admin = ClusterAdmin(bus, client_id="surge")
    await admin.provision(topics(settings.group))
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    inbox = Inbox(engine, consumer=settings.group)
    await inbox.create_tables()
    worker = SurgeWorker(settings, inbox=inbox, catalogue=CATALOGUE, admin=admin)
    log.info("starting", group=settings.group, clock=settings.clock)
    starting = asyncio.create_task(worker.app.start(), name="faust")
    settling = asyncio.create_task(worker.run(), name="settle")
    crashing = asyncio.create_task(worker.app._crashed.wait(), name="crash")  # noqa: SLF001 mode has no other way
    stopping = asyncio.create_task(stop.wait(), name="stop")
    waiting = {starting, settling, crashing, stopping}
    while not stop.is_set():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if crashing in done:
            reason = worker.app.crash_reason
            raise (
                reason
                if isinstance(reason, WorkerError)
                else WorkerError(f"the stream processor failed ({reason!r}); nothing is lost: start the worker again")
            )
        for task in done - {stopping}:
            task.result()  # raises what ended it
    log.info("stopping")
    await worker.finish()
    settling.cancel()
    await asyncio.wait({settling, asyncio.create_task(worker.app.stop(), name="leave")}, timeout=STOP_TIMEOUT_S)
    await admin.close()
    await engine.dispose()
    return 0


def _described() -> str:
    return "\n".join(
        f"  SURGE_{name.upper():22} {field.description or ''} [{'required' if field.is_required() else field.default}]"
        for name, field in Settings.model_fields.items()
    )


if __name__ == "__main__":
    sys.exit(main())
