"""`surge`: the worker process. It runs until SIGTERM or SIGINT, or ends with a sentence and an exit code."""

import asyncio
from datetime import timedelta

from hailbus import ClusterAdmin, EffectivelyOnce, Inbox, KafkaBus
from hailbus.database import create_engine
from hailbus.process import run_process

from surge.adapters.storage.store import Store
from surge.adapters.streams.service import HEARD, create_service
from surge.adapters.streams.worker import SurgeWorker
from surge.config import Settings


async def serve(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
        ServiceFailedError: Only a restart helps.
    """
    engine = create_engine(settings.database_url.get_secret_value())
    bus = KafkaBus(
        bootstrap_servers=settings.bootstrap_servers,
        connect_timeout_s=settings.connect_timeout_s,
        # A restart within the session timeout takes its place at once, and two workers cannot both be it.
        group_instance_id=settings.instance,
        session_timeout_ms=settings.session_timeout_ms,
        heartbeat_interval_ms=min(3_000, settings.session_timeout_ms // 3),
    )
    admin = ClusterAdmin(bus, client_id="surge")
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        inbox, store = Inbox(engine, consumer=settings.group), Store(engine, settings.group)
        await inbox.create_tables()
        await store.create_tables()
        service, answers = create_service(bus)
        worker = SurgeWorker(settings, service=service, answers=answers, engine=engine, store=store, admin=admin)
        once = EffectivelyOnce(inbox=inbox, own_transaction=True)
        wait = timedelta(milliseconds=settings.batch_wait_ms)
        service.on_batch(HEARD, group=settings.group, delivery=once, max_items=settings.batch_max, max_wait=wait)(
            worker.settle
        )
        closing = asyncio.create_task(worker.run(), name="close minutes")
        try:
            await service.run()
        finally:
            closing.cancel()
            await asyncio.wait({closing})
    finally:
        await admin.close()
        await engine.dispose()


def main() -> None:
    """Run the worker. Exit code 0 after SIGTERM, 1 when only a restart helps, 2 when it cannot start as told."""
    run_process("surge", Settings, serve)


if __name__ == "__main__":
    main()
