"""Transactional batches that a producer sends without waiting: none overtakes the one before it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.server.handlers import transactions
from hailbus_broker.testing import ThreadedBroker

from tests.conformance.wire import Wire, batch_of, values, wire_to
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.server.request import Request

BATCH_COUNT = 5


class SlowCoordinator:
    """Holds the confirmation of the first transaction back until it is released; later ones are confirmed at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.add_then: Callable[..., None] = transactions.add_then
        self.confirmed: Callable[[ErrorCode], None] | None = None
        self.has_held = threading.Event()
        monkeypatch.setattr(transactions, "add_then", self)

    def __call__(self, *arguments: Any) -> None:
        *others, confirmed = arguments
        is_first, self.confirmed = self.confirmed is None, self.confirmed or confirmed
        self.add_then(*others, self.hold if is_first else confirmed)

    def hold(self, code: ErrorCode) -> None:
        assert code is ErrorCode.NONE
        self.has_held.set()

    def release(self, code: ErrorCode) -> None:
        assert self.confirmed is not None
        self.confirmed(code)


class PipeliningProducer:
    """A producer that has sent its batches, the first of which waits for the coordinator."""

    def __init__(self, broker: ThreadedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.wire = Wire(broker.bootstrap)
        wanted = {"name": "rides", "num_partitions": 1, "replication_factor": 1}
        self.wire.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout_ms=20_000)
        self.identity = self.wire.new_producer("pipelined")
        self.coordinator = SlowCoordinator(monkeypatch)
        arrived: list[Request] = []
        broker.call(lambda running: setattr(running.server.dispatcher, "observe", arrived.append))
        self.send()
        assert self.coordinator.has_held.wait(20)
        wait_for("all requests", lambda: len(arrived) == BATCH_COUNT)

    def send(self) -> None:
        for sequence in range(BATCH_COUNT):
            batch = batch_of(
                b"%d" % sequence,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
            topics = [{"name": "rides", "partition_data": [{"index": 0, "records": bytes(batch)}]}]
            self.wire.ask(
                ApiKey.PRODUCE, 12, transactional_id="pipelined", acks=-1, timeout_ms=10_000, topic_data=topics
            )

    def answers(self) -> list[tuple[int, int]]:
        """Error code and base offset of each batch."""
        answers = [self.wire.answer(ApiKey.PRODUCE, 12) for _ in range(BATCH_COUNT)]
        parts = [answer.responses[0].partition_responses[0] for answer in answers]
        return [(part.error_code, part.base_offset) for part in parts]

    def waiting_count(self) -> int:
        dispatcher = self.broker.call(lambda running: running.server.dispatcher)
        assert dispatcher is not None
        return sum(map(len, dispatcher.unverified.values()))


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as running:
        yield running


@pytest.fixture
def producer(broker: ThreadedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeliningProducer]:
    pipelining = PipeliningProducer(broker, monkeypatch)
    yield pipelining
    pipelining.wire.close()


def test_no_batch_overtakes_one_whose_transaction_is_not_confirmed(producer: PipeliningProducer) -> None:
    producer.broker.call(lambda _: producer.coordinator.release(ErrorCode.NONE))
    assert producer.answers() == [(0, offset) for offset in range(BATCH_COUNT)]
    assert values(producer.wire.fetch("rides", 0).records) == [b"%d" % number for number in range(BATCH_COUNT)]
    assert producer.waiting_count() == 0


def test_what_waits_behind_a_refused_batch_is_refused_with_it(producer: PipeliningProducer) -> None:
    producer.broker.call(lambda _: producer.coordinator.release(ErrorCode.CONCURRENT_TRANSACTIONS))
    assert producer.answers() == [(ErrorCode.CONCURRENT_TRANSACTIONS, -1)] * BATCH_COUNT
    assert producer.waiting_count() == 0
    producer.send()
    assert producer.answers() == [(0, offset) for offset in range(BATCH_COUNT)]


def test_what_waits_ends_with_the_topic(producer: PipeliningProducer) -> None:
    with wire_to(producer.broker) as other:
        other.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "rides"}], timeout_ms=20_000)
    producer.broker.call(lambda _: producer.coordinator.release(ErrorCode.NONE))
    assert {code for code, _ in producer.answers()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert producer.waiting_count() == 0
