"""Who waits for a partition's records to be durable is notified in order, whatever happens to the others."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.log import LogConfig, PartitionLog, TailCache
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.replica import LeaderReplica, TopicDeletedError
from hailbus_broker.testing.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable


class NoSync:
    """A group sync whose rounds the test runs."""

    def mark(self, partition: LeaderReplica) -> None:
        pass


@pytest.fixture
def partition() -> LeaderReplica:
    log = PartitionLog.open(
        SimulatedDisk(random.Random(0)), "data/rides-0", LogConfig(), now_ms=0, clean=False, tail_cache=TailCache(0)
    )
    return LeaderReplica(
        topic="rides",
        topic_id=bytes(16),
        index=0,
        leader_epoch=0,
        log=log,
        sync=NoSync(),  # type: ignore[arg-type]  # all that an append asks of it
        report=lambda error: None,
    )


def appended(partition: LeaderReplica, callback: Callable[[Exception | None], None]) -> None:
    batch = build_batch([RecordToWrite(key=None, value=b"v", timestamp=0)])
    partition.when_committed(partition.append(batch, now_ms=0).last_offset + 1, callback)


def failing(_: Exception | None) -> None:
    raise ValueError("an answer that cannot be encoded")


def test_a_callback_that_fails_does_not_keep_the_others(partition: LeaderReplica) -> None:
    notified: list[tuple[str, Exception | None]] = []
    appended(partition, lambda error: notified.append(("first", error)))
    appended(partition, failing)
    appended(partition, lambda error: notified.append(("third", error)))
    pending = partition.log.start_sync()
    assert pending is not None
    pending.run()
    appended(partition, lambda error: notified.append(("not yet synced", error)))
    partition.synced(pending)
    assert notified == [("first", None), ("third", None)]


def test_a_failed_partition_notifies_all(partition: LeaderReplica) -> None:
    notified: list[Exception | None] = []
    appended(partition, failing)
    appended(partition, notified.append)
    partition.delete()
    assert [type(error) for error in notified] == [TopicDeletedError]
    partition.when_committed(2, notified.append)
    assert [type(error) for error in notified] == [TopicDeletedError, TopicDeletedError]
