"""The logger process: every event of every topic, as a line of JSON, once."""

import asyncio
import logging
import re
import sys
from datetime import timedelta
from typing import Final

import structlog
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    BrokerUnreachableError,
    Bus,
    ConfigurationError,
    Context,
    Done,
    Event,
    Inbox,
    KafkaBus,
    Park,
    Service,
    SubscriberSettings,
    Verdict,
)
from hailbus.database import create_engine
from ride_events import CATALOGUE
from sqlalchemy.exc import SQLAlchemyError

from event_logger.config import Settings, read_settings
from event_logger.journal import Journal
from event_logger.log_file import LogFile

GROUP: Final = "event-logger"
# While the database is away, wait for it: nothing is wrong with the events.
PATIENTLY: Final = AtLeastOnce(retry=Backoff(max=timedelta(seconds=10), attempts=1_000, on=(SQLAlchemyError, OSError)))
_STORABLE: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}\Z")
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("event_logger")


def create_service(bus: Bus, journal: Journal) -> Service:
    """Return the service that hands every event of the published language to the journal.

    What the language does not know, or what cannot be decoded, goes to the group's dead letter topic.
    """
    service = Service(
        GROUP, bus=bus, catalogue=CATALOGUE, subscribing=SubscriberSettings(unknown_event="park", max_buffered=20_000)
    )

    @service.on_batch(*CATALOGUE, delivery=PATIENTLY, max_items=2_000, max_wait=timedelta(milliseconds=200))
    async def write(batch: Batch[Event]) -> list[Verdict]:
        faults = [fault_of(item.ctx) for item in batch.items]
        await journal.write([item.ctx for item, fault in zip(batch.items, faults, strict=True) if fault is None])
        return [Park(fault) if fault else Done() for fault in faults]

    return service


def fault_of(ctx: Context) -> str | None:
    """Say why an event cannot be kept: an id that a database has no room or no letters for."""
    envelope = ctx.envelope
    if not _STORABLE.match(envelope.id) or not _STORABLE.match(envelope.source):
        return "ce_id and ce_source must have 1 to 255 printable characters"
    return None


async def serve(settings: Settings, bus: Bus | None = None) -> None:
    """Log events until SIGTERM or SIGINT, then finish the batch.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
    """
    file = LogFile(settings.file)
    # FULL: the offsets that are committed to the broker must not be ahead of the database after a power cut.
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    journal = Journal(engine, Inbox(engine, GROUP), file)
    try:
        await journal.open()
        chosen = bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers)
        await create_service(chosen, journal).run()
    finally:
        log.info("logger_stopped", written=journal.written_count, repeated=journal.repeated_count)
        await engine.dispose()
        file.close()


def configure_logging(level: str) -> None:
    """Log to stderr: lines for a terminal, JSON otherwise."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in ("aiokafka", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def main() -> None:
    """Run the logger. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        asyncio.run(serve(settings))
    except (ConfigurationError, BrokerUnreachableError) as error:
        raise SystemExit(_complain(str(error))) from None
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise SystemExit(_complain(f"the database cannot be opened: {reason}; check LOGGER_DATABASE_URL")) from None


def _complain(sentence: str) -> int:
    print(f"event-logger: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
