"""What `lake verify` takes for read: by a client that answers as librdkafka does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pytest
from analytics_spark.broker_view import BrokerView, Place
from confluent_kafka import KafkaError

A, B = ("rides.v1", 0), ("rides.v1", 1)


@dataclass
class Message:
    """A record, or an error in its place."""

    place: Place
    at: int
    failed: KafkaError | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return f"{self.at}".encode()

    def headers(self) -> None:
        return None

    def error(self) -> KafkaError | None:
        return self.failed


class Client:
    """Answers with batches of messages, then with silence."""

    def __init__(self, batches: Sequence[Sequence[Message]]) -> None:
        self.batches = list(batches)
        self.assigned: list[tuple[str, int, int]] = []
        self.is_closed = False

    def assign(self, places: Sequence[Any]) -> None:
        self.assigned = [(one.topic, one.partition, one.offset) for one in places]

    def consume(self, _count: int, *, timeout: float) -> Sequence[Message]:
        assert timeout > 0
        return self.batches.pop(0) if self.batches else []

    def close(self) -> None:
        self.is_closed = True


def read(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[Place, tuple[int, int]], *batches: Sequence[Message]
) -> tuple[list[tuple[Place, int, bytes | None]], dict[Place, str], Client]:
    """Return the records that a view hands on, what it says was not read, and its client."""
    client = Client(batches)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: client)
    records: list[tuple[Place, int, bytes | None]] = []

    def take(place: Place, offset: int, key: bytes | None, value: bytes | None, headers: Any) -> None:
        assert (key, list(headers)) == (b"key", [])
        records.append((place, offset, value))

    unread = BrokerView("b:1", timeout_s=0.05).read(wanted, take)
    return records, unread, client


def end(place: Place, offset: int) -> Message:
    return Message(place, offset, KafkaError(KafkaError._PARTITION_EOF))  # librdkafka's own name for it


def test_records_are_read_from_the_start_to_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[Message(A, 2), Message(B, 0)], [Message(A, 3), Message(A, 4), Message(A, 5)]]
    records, unread, client = read(monkeypatch, {A: (2, 4), B: (0, 1)}, *batches)
    assert records == [(A, 2, b"2"), (B, 0, b"0"), (A, 3, b"3")]
    assert unread == {}
    assert client.assigned == [(*A, 2), (*B, 0)]
    assert client.is_closed


def test_records_that_are_hidden_at_the_end_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    records, unread, _ = read(monkeypatch, {A: (0, 4)}, [Message(A, 0), Message(A, 5)])
    assert (records, unread) == ([(A, 0, b"0")], {})
    for offset in (4, 7):
        records, unread, _ = read(monkeypatch, {A: (0, 4)}, [Message(A, 0), end(A, offset)])
        assert (records, unread) == ([(A, 0, b"0")], {})


def test_silence_is_told_with_how_far_the_reading_came(monkeypatch: pytest.MonkeyPatch) -> None:
    records, unread, client = read(monkeypatch, {A: (1, 9), B: (3, 5)}, [Message(A, 1)], [Message(A, 2)])
    assert [offset for _, offset, _ in records] == [1, 2]
    silent = "then b:1 gave no answer for 0.05 s"
    assert unread == {A: f"read up to offset 3 of 9, {silent}", B: f"read up to offset 3 of 5, {silent}"}
    assert client.is_closed


def test_a_log_that_ends_before_its_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [Message(A, 0), end(A, 3), Message(A, 3), Message(B, 0)]
    records, unread, _ = read(monkeypatch, {A: (0, 4), B: (0, 1)}, batch)
    assert records == [(A, 0, b"0"), (B, 0, b"0")]
    assert unread == {A: "the log ends at offset 3, though the broker said 4"}


def test_an_error_of_a_partition_ends_its_reading_and_one_of_the_connection_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = KafkaError(KafkaError._BAD_MSG, "the sum is wrong")
    lost = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    batch = [Message(A, 0), Message(("", -1), 0, lost), Message(A, 1, broken), Message(A, 1), Message(B, 0)]
    records, unread, _ = read(monkeypatch, {A: (0, 4), B: (0, 1)}, batch)
    assert records == [(A, 0, b"0"), (B, 0, b"0")]
    assert unread == {A: "read up to offset 1 of 4, then: the sum is wrong"}


def test_nothing_is_asked_of_the_broker_where_nothing_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    records, unread, client = read(monkeypatch, {A: (3, 3), B: (5, 4)})
    assert (records, unread, client.assigned) == ([], {}, [])
    assert not client.is_closed
