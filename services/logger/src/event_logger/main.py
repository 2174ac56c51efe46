"""The logger process: every event of every topic, as a line of JSON, once."""

from datetime import timedelta
from typing import Final

import structlog
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Bus,
    Done,
    Event,
    Inbox,
    KafkaBus,
    Reject,
    Service,
    SubscriberSettings,
    Verdict,
)
from hailbus.database import create_engine
from hailbus.process import run_process
from ride_events import CATALOGUE
from sqlalchemy.exc import SQLAlchemyError

from event_logger.config import Settings
from event_logger.journal import Journal
from event_logger.log_file import LogFile

GROUP: Final = "event-logger"
# While the database is away, wait for it: nothing is wrong with the events.
PATIENTLY: Final = AtLeastOnce(retry=Backoff(max=timedelta(seconds=10), attempts=1_000, on=(SQLAlchemyError, OSError)))
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("event_logger")


def create_service(bus: Bus, journal: Journal) -> Service:
    """Return the service that hands every event of the published language to the journal.

    What the language does not know, or what cannot be decoded, goes to the group's dead letter topic.
    """
    service = Service(
        GROUP,
        bus=bus,
        catalogue=CATALOGUE,
        subscribing=SubscriberSettings(unknown_event="dead-letter", max_buffered=20_000),
    )

    @service.on_batch(CATALOGUE, delivery=PATIENTLY, max_items=2_000, max_wait=timedelta(milliseconds=200))
    async def write(batch: Batch[Event]) -> list[Verdict]:
        refusals = [Inbox.refusal_of(item) for item in batch.items]
        await journal.write([item.ctx for item, refusal in zip(batch.items, refusals, strict=True) if refusal is None])
        return [Reject(str(refusal)) if refusal else Done() for refusal in refusals]

    return service


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


def main() -> None:
    """Run the logger. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process("event-logger", Settings, serve)


if __name__ == "__main__":
    main()
