"""Group sync tells every replica of a log what has become durable, also one that took the log over meanwhile."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from hailbus_broker.log import LogConfig, PartitionLog
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.group_sync import GroupSync
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.runtime.threads import ThreadPool
from hailbus_broker.testing.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable


def leader_of(log: PartitionLog, sync: GroupSync, *, leader_epoch: int) -> LeaderReplica:
    def report(error: Exception) -> None:
        raise error

    return LeaderReplica(
        topic="rides", topic_id=bytes(16), index=0, leader_epoch=leader_epoch, log=log, sync=sync, report=report
    )


def append(leader: LeaderReplica) -> int:
    batch = build_batch([RecordToWrite(key=None, value=b"v", timestamp=0)])
    return leader.append(bytes(batch), now_ms=0).last_offset + 1


async def test_a_replica_hears_of_the_sync_that_its_predecessor_began() -> None:
    loop = asyncio.get_running_loop()
    threads = ThreadPool(4, "sync")
    sync = GroupSync(loop, threads)
    log = PartitionLog.open(SimulatedDisk(random.Random(0)), "data/rides-0", LogConfig(), now_ms=0, clean=False)
    # Both are marked before the round begins: the predecessor's sync covers the successor's records as well.
    old = leader_of(log, sync, leader_epoch=1)
    append(old)
    old.resign()
    new = leader_of(log, sync, leader_epoch=2)
    committed: asyncio.Future[Exception | None] = loop.create_future()
    tell: Callable[[Exception | None], None] = committed.set_result
    end = append(new)
    new.when_committed(end, tell)
    async with asyncio.timeout(30):
        assert await committed is None
        await sync.drain()
    assert (log.high_watermark, sync.round_count) == (end, 1), "nothing was left to sync"
    sync.close()
