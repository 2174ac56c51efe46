"""What the ledger's client reads: from the start to the end of each partition, and nothing else."""

import pytest
from confluent_kafka import KafkaError
from hailbus_demo.errors import RunFailedError
from hailbus_demo.ledger.kafka import KafkaLog
from hailbus_demo.ledger.model import Partition

from tests.fake_consumer import FakeConsumer, Message, end

A, B = ("rides.v1-dlt", 0), ("rides.v1-dlt", 1)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    client = FakeConsumer()
    monkeypatch.setattr("hailbus_demo.ledger.kafka.Consumer", lambda _: client)
    monkeypatch.setattr("hailbus_demo.ledger.kafka.AdminClient", lambda _: None)
    monkeypatch.setattr("hailbus_demo.ledger.kafka.NO_PROGRESS_S", 0.05)
    return client


def read(client: FakeConsumer, starts: dict[Partition, int], ends: dict[Partition, int]) -> list[tuple[Partition, int]]:
    records = KafkaLog("b:1")._records(starts, ends)
    found = [((record.topic, record.partition), record.offset) for record in records]
    assert client.unassigned == len(client.assigned)
    return found


def test_reading_ends_at_the_ends_while_the_topic_grows(client: FakeConsumer) -> None:
    client.batches = [[Message(A, 2), Message(B, 0)], [Message(A, 3), Message(A, 4)]]
    assert read(client, {A: 2, B: 0}, {A: 4, B: 1}) == [(A, 2), (B, 0), (A, 3)]
    assert client.assigned == [[(*A, 2), (*B, 0)]]


def test_reading_ends_where_nothing_more_can_be_read_before_the_end(client: FakeConsumer) -> None:
    client.batches = [[Message(A, 0), end(A, 2), end(A, 3), Message(A, 3)]]
    assert read(client, {A: 0}, {A: 3}) == [(A, 0)]
    client.batches = [[Message(A, 0), Message(A, 7)]]
    assert read(client, {A: 0}, {A: 3}) == [(A, 0)]


def test_nothing_is_asked_for_where_nothing_is_new(client: FakeConsumer) -> None:
    assert read(client, {A: 3, B: 0}, {A: 3, B: 0}) == []
    assert client.assigned == []


def test_silence_and_errors_are_no_account(client: FakeConsumer) -> None:
    client.batches = [[Message(B, 0), Message(A, 0)]]
    with pytest.raises(RunFailedError, match=r"rides.v1-dlt-0 could not be read to its end 2: nothing came for 0.05 s"):
        read(client, {A: 0, B: 0}, {A: 2, B: 2})
    client.batches = [[Message(A, 0), Message(A, 1, KafkaError(KafkaError._BAD_MSG, "the sum is wrong"))]]
    with pytest.raises(RunFailedError, match=r"rides.v1-dlt-0 cannot be read: the sum is wrong"):
        read(client, {A: 0}, {A: 2})
