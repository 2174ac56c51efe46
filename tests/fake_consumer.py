"""A consumer that answers as librdkafka does, for readers that are tested without a broker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError


@dataclass
class Message:
    """A record, or an error in its place."""

    place: tuple[str, int]
    at: int
    failed: KafkaError | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_000 + self.at)

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return f"{self.at}".encode()

    def headers(self) -> None:
        return None

    def error(self) -> KafkaError | None:
        return self.failed


def end(place: tuple[str, int], offset: int) -> Message:
    """What librdkafka reports at the end of a partition."""
    return Message(place, offset, KafkaError(KafkaError._PARTITION_EOF))  # librdkafka's own name for it


class FakeConsumer:
    """Answers with batches of messages, then with silence.

    Attributes:
        batches: What it will answer.
        config: Its settings.
        assigned: The partitions of each assignment, with their first offsets.
        unassigned: How often the assignment was taken back.
        is_closed: Whether it was closed.
    """

    def __init__(self, batches: Sequence[Sequence[Message]] = ()) -> None:
        self.batches = list(batches)
        self.config: dict[str, Any] = {}
        self.assigned: list[list[tuple[str, int, int]]] = []
        self.unassigned = 0
        self.is_closed = False

    def assign(self, places: Sequence[Any]) -> None:
        self.assigned.append([(one.topic, one.partition, one.offset) for one in places])

    def unassign(self) -> None:
        self.unassigned += 1

    def consume(self, count: int, *, timeout: float) -> Sequence[Message]:
        assert count > 0 < timeout
        return self.batches.pop(0) if self.batches else []

    def close(self) -> None:
        self.is_closed = True
