"""A reader keeps one consumer reading: it replaces one that breaks, and pauses a partition while any reason holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hailbus import TopicPartition
from hailbus._consuming.reading import Reader
from hailbus._transport import TransportBrokenError
from hailbus.subscription import SubscriberStats

pytestmark = pytest.mark.usefixtures("virtual_time")

P0, P1 = TopicPartition("rides", 0), TopicPartition("rides", 1)


class Client:
    """A consumer that plays a script of polls: records, an error, or nothing once the script is over."""

    def __init__(self, polls: Iterable[Any] = (), *, start_error: Exception | None = None) -> None:
        self.calls: list[object] = []
        self.unreachable_since_s: float | None = None
        self.stop_error: Exception | None = None
        self._polls = list(polls)
        self._start_error = start_error

    async def start(self) -> None:
        self.calls.append("start")
        if self._start_error is not None:
            raise self._start_error

    async def stop(self) -> None:
        self.calls.append("stop")
        if self.stop_error is not None:
            raise self.stop_error

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Any]]:
        if not self._polls:
            await asyncio.sleep(timeout_s)
            return {}
        self.calls.append(max_records)
        found = self._polls.pop(0)
        if isinstance(found, Exception):
            raise found
        return {P0: found} if found else {}

    def pause(self, partition: TopicPartition) -> None:
        self.calls.append(("pause", partition))

    def resume(self, partition: TopicPartition) -> None:
        self.calls.append(("resume", partition))

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset({P0})

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.calls.append(("seek", dict(offsets)))


class Cluster:
    """A bus that hands out prepared consumers, and the owner of the reader: takes what is read."""

    address = "broker:9092"

    def __init__(self, *clients: Client) -> None:
        self.made: list[tuple[float, dict[str, Any]]] = []
        self.taken: list[Any] = []
        self.let_go_count = 0
        self.take_error: Exception | None = None
        self._clients = list(clients)
        self.stats = SubscriberStats()
        self.reader = Reader(
            "till",
            "earliest",
            bus=self,  # type: ignore[arg-type]  # only what a reader asks of a bus
            client_id="till-1",
            stats=self.stats,
            reading=self,
            listener=self,  # type: ignore[arg-type]  # never called here
        )

    def consumer(self, **options: Any) -> Client:
        self.made.append((now(), options))
        return self._clients.pop(0)

    async def room(self) -> int:
        return 7

    async def take(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        if self.take_error is not None:
            error, self.take_error = self.take_error, None
            raise error
        self.taken += [record for records in polled.values() for record in records]

    async def let_go(self) -> None:
        self.let_go_count += 1

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reader]:
        await self.reader.connect(("rides",))
        task = asyncio.ensure_future(self.reader.run())
        try:
            yield self.reader
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def connected_at(self) -> list[float]:
        return [round(at, 6) for at, _ in self.made]


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------------------------------------------- reading


async def test_records_are_taken_as_they_come_and_no_more_are_asked_for_than_there_is_room() -> None:
    client = Client([["a", "b"], ["c"]])
    cluster = Cluster(client)
    async with cluster.reading():
        await asyncio.sleep(1)
    assert cluster.taken == ["a", "b", "c"]
    assert client.calls == ["start", 7, 7]
    (options,) = [options for _, options in cluster.made]
    assert (options["client_id"], options["group"], options["topics"], options["start"]) == (
        "till-1",
        "till",
        ("rides",),
        "earliest",
    )


async def test_a_consumer_that_breaks_is_stopped_and_replaced_after_a_delay(caplog: pytest.LogCaptureFixture) -> None:
    broken, next_one = Client([["a"], TransportBrokenError("gone")]), Client([["b"]])
    clients: list[Any] = [broken, next_one]  # Any: consumers, as far as a reader uses them
    broken.stop_error = RuntimeError("it cannot even stop")
    cluster = Cluster(*clients)
    async with cluster.reading() as reader:
        await asyncio.sleep(1)
        assert reader.consumer is clients[1]
    assert cluster.taken == ["a", "b"]
    assert broken.calls[-1] == "stop"
    assert (cluster.let_go_count, cluster.stats.reconnects) == (1, 1)
    assert cluster.connected_at == [0, 0.2]
    assert any("consumer_replaced" in line.getMessage() for line in caplog.records)


async def test_delays_double_while_consumers_break_and_begin_anew_after_a_record() -> None:
    gone = TransportBrokenError("gone")
    cluster = Cluster(
        *(Client([gone]) for _ in range(7)),
        Client([["a"], gone]),
        Client([]),
    )
    async with cluster.reading():
        await asyncio.sleep(60)
    waited = [round(b - a, 6) for a, b in zip(cluster.connected_at, cluster.connected_at[1:], strict=False)]
    assert waited == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.2]


async def test_connecting_is_repeated_with_growing_delays_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals: list[Any] = [Client(start_error=ConnectionError(f"refused {number}")) for number in range(7)]
    cluster = Cluster(Client([TransportBrokenError("gone")]), *refusals, Client())
    with caplog.at_level(logging.INFO, "hailbus.subscriber"):
        async with cluster.reading() as reader:
            await asyncio.sleep(0.3)
            assert reader.consumer is None, "there is none to commit with"
            assert reader.joining is refusals[0], "assignments are reported before the start has returned"
            await asyncio.sleep(60)
            assert reader.reasons(after_s=0) == []
    waited = [round(b - a, 6) for a, b in zip(cluster.connected_at[1:], cluster.connected_at[2:], strict=False)]
    assert waited == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    said = [line.getMessage() for line in caplog.records]
    assert sum("reconnect_failed" in line for line in said) == 1
    assert sum("reconnected" in line for line in said) == 1


async def test_a_connection_that_works_at_once_is_not_reported_as_back(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(Client([TransportBrokenError("gone")]), Client())
    with caplog.at_level(logging.INFO, "hailbus.subscriber"):
        async with cluster.reading():
            await asyncio.sleep(5)
    assert not any("reconnect" in line.getMessage() for line in caplog.records)


async def test_what_was_polled_and_could_not_be_taken_is_read_again_by_a_new_consumer() -> None:
    first, second = Client([["a"]]), Client([["a"]])
    cluster = Cluster(first, second)
    cluster.take_error = RuntimeError("a defect")
    await cluster.reader.connect(("rides",))
    with pytest.raises(RuntimeError, match="a defect"):
        await cluster.reader.run()
    again = asyncio.ensure_future(cluster.reader.run())
    await asyncio.sleep(1)
    again.cancel()
    assert (cluster.taken, first.calls[-1]) == (["a"], "stop")


async def test_leaving_the_group_stops_the_consumer_once() -> None:
    client = Client()
    cluster = Cluster(client)
    await cluster.reader.stop()
    await cluster.reader.connect(("rides",))
    await cluster.reader.stop()
    await cluster.reader.stop()
    assert client.calls == ["start", "stop"]
    assert cluster.reader.consumer is None


# ---------------------------------------------------------------------------------------------------- pausing


async def test_a_partition_is_read_again_when_the_last_reason_to_pause_is_gone() -> None:
    client = Client()
    reader = Cluster(client).reader
    reader.resume(P0, "never paused")
    await reader.connect(("rides",))
    reader.pause(P0, "outage")
    reader.pause(P0, "spread")
    reader.resume(P0, "outage")
    assert client.calls == ["start", ("pause", P0)]
    reader.resume(P0, "spread")
    reader.resume(P0, "spread")
    assert client.calls == ["start", ("pause", P0), ("resume", P0)]
    reader.pause(P0, "outage")
    assert client.calls[-1] == ("pause", P0)


async def test_a_partition_that_has_gone_keeps_no_reasons() -> None:
    client = Client()
    reader = Cluster(client).reader
    await reader.connect(("rides",))
    reader.pause(P0, "outage")
    reader.forget(P0)
    assert client.calls[-1] == ("resume", P0)
    reader.pause(P0, "spread")
    reader.resume(P0, "spread")
    assert client.calls[-2:] == [("pause", P0), ("resume", P0)]


async def test_reasons_are_kept_while_there_is_no_consumer() -> None:
    client = Client()
    reader = Cluster(client).reader
    reader.pause(P0, "outage")
    reader.resume(P0, "outage")
    reader.forget(P1)
    await reader.seek_back({P0: 3})
    await reader.connect(("rides",))
    assert client.calls == ["start"]


async def test_only_partitions_that_are_held_are_read_again_after_a_short_wait() -> None:
    client = Client()
    reader = Cluster(client).reader
    await reader.connect(("rides",))
    began_s = now()
    await reader.seek_back({P0: 3, P1: 4})
    assert client.calls[-1] == ("seek", {P0: 3})
    assert now() > began_s, "the event loop must not spin on records that cannot be taken yet"


# ---------------------------------------------------------------------------------------------------- health


async def test_a_broker_is_reported_that_has_been_away_for_longer_than_is_allowed() -> None:
    client = Client()
    reader = Cluster(client).reader
    await reader.connect(("rides",))
    assert reader.reasons(after_s=0) == []
    client.unreachable_since_s = now()
    await asyncio.sleep(4.5)
    assert reader.reasons(after_s=5) == []
    await asyncio.sleep(0.5)
    assert reader.reasons(after_s=5) == ["group till has not reached the broker at broker:9092 for 5 s"]


async def test_while_connecting_fails_the_reason_says_why_and_since_when() -> None:
    refusals = [Client(start_error=ConnectionError("refused")) for _ in range(6)]
    cluster = Cluster(Client([TransportBrokenError("gone")]), *refusals, Client())
    async with cluster.reading() as reader:
        await asyncio.sleep(6.2)  # lost at 0.2 s
        assert reader.reasons(after_s=5) == ["group till has not reached the broker at broker:9092 for 6 s: refused"]
        await asyncio.sleep(20)
        assert reader.reasons(after_s=0) == []
        assert reader.consumer is not None
        reader.consumer.unreachable_since_s = now()  # type: ignore[misc]  # a fault
        assert reader.reasons(after_s=0) == ["group till has not reached the broker at broker:9092 for 0 s"]
