"""Delivery reports of librdkafka: each belongs to one send, whatever became of the sends before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hailbus._transport import Outgoing
from hailbus._transport.cluster import ClusterSettings
from hailbus._transport.librdkafka_producer import LibrdkafkaProducer

RECORD: Outgoing = (b"key", b"value", [("name", b"content")])


class Library:
    """Takes records in place of librdkafka; the test gives the reports."""

    def __init__(self, *, refuses: int | None = None) -> None:
        self._refuses = refuses
        self.callbacks: list[Callable[[KafkaError | None, Any], None]] = []  # Any: has what is read of a message

    def produce(self, _topic: str, _value: bytes, _key: bytes, _partition: int, callback: Any, headers: Any) -> None:
        assert headers == RECORD[2]
        if len(self.callbacks) == self._refuses:
            self._refuses = None
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.callbacks.append(callback)

    def report(self, place: int, *, offset: int) -> None:
        self.callbacks[place](None, SimpleNamespace(offset=lambda: offset))


class Sends:
    """Calls of one producer."""

    def __init__(self, library: Library) -> None:
        settings = ClusterSettings(bootstrap_servers="127.0.0.1:9092", client="librdkafka")
        self._producer = LibrdkafkaProducer(settings, client_id="till", transactional_id=None)
        self._producer._loop = asyncio.get_running_loop()
        self._library: Any = library  # Any: stands for a Producer

    async def begin(self, count: int) -> asyncio.Task[list[Any]]:
        async def outcomes() -> list[Any]:
            found, _ = await self._producer._flown(self._library, "orders.v1", 0, [RECORD] * count)
            return list(found)

        task = asyncio.get_running_loop().create_task(outcomes())
        await asyncio.sleep(0)
        return task


async def test_each_send_has_the_offsets_of_its_own_records_in_whatever_order_they_are_reported() -> None:
    library = Library()
    sends = Sends(library)
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for count in (3, 1, 7, 2):
        first = len(library.callbacks)
        send = await sends.begin(count)
        places = list(range(first, first + count))
        rng.shuffle(places)
        for place in places:
            assert not send.done()
            library.report(place, offset=100 + place)
        assert await send == [100 + first + index for index in range(count)]


async def test_late_reports_of_a_send_that_was_given_up_are_not_those_of_the_next() -> None:
    library = Library()
    sends = Sends(library)
    given_up = await sends.begin(2)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    send = await sends.begin(2)
    library.report(0, offset=7)
    library.report(1, offset=8)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not send.done()
    library.report(2, offset=9)
    library.report(3, offset=10)
    assert await send == [9, 10]


async def test_a_refused_record_is_not_refused_in_the_next_send() -> None:
    library = Library(refuses=1)
    sends = Sends(library)
    send = await sends.begin(3)
    library.report(0, offset=0)
    library.report(1, offset=1)
    first, refused, last = await send
    assert (first, last) == (0, 1)
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    send = await sends.begin(3)
    for place, offset in ((2, 2), (3, 3), (4, 4)):
        library.report(place, offset=offset)
    assert await send == [2, 3, 4]
