"""Reads the log with librdkafka, another client library than the services use.

All of it blocks, so it runs in a thread.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from hailbus_demo.errors import RunFailedError
from hailbus_demo.ledger.accounts import Letter
from hailbus_demo.ledger.log import LogReader, LogRecord, Place
from hailbus_demo.ledger.model import Partition

ANSWER_WITHIN_S: Final = 15.0
NO_PROGRESS_S: Final = 30.0
RECORDS_AT_A_TIME: Final = 2_000
WAITS_S: Final = 0.1
"""How long one call waits for as many records: it returns sooner only when it has them all."""
LETTERS_READ: Final = 1_000


class KafkaLog:
    """A cluster's topics as librdkafka sees them; only committed records.

    Every method raises `RunFailedError` when the cluster does not answer: a log that was not read is no account.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "client.id": "ledger",
            "log_level": 0,
        }
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"ledger-{uuid.uuid4()}",  # it commits nothing: the library asks for a name
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )
        self._admin = AdminClient(config)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def topics(self) -> dict[str, int]:
        """Return topic → partitions."""
        with self._answering("its topics"):
            found = self._consumer.list_topics(timeout=ANSWER_WITHIN_S)
            return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}

    def bounds(self, topics: Collection[str]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return the first offset and the end of each partition of those topics that exist."""
        starts: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        existing = self.topics()
        for topic in sorted(topics):
            for partition in range(existing.get(topic, 0)):
                with self._answering(f"the offsets of {topic}-{partition}"):
                    start, end = self._consumer.get_watermark_offsets(
                        TopicPartition(topic, partition), timeout=ANSWER_WITHIN_S, cached=False
                    )
                    starts[topic, partition], ends[topic, partition] = start, end
        return starts, ends

    def committed(self, groups: Sequence[str]) -> dict[str, dict[Partition, int]]:
        """Return group → partition → committed offset."""
        found: dict[str, dict[Partition, int]] = {}
        for group in groups:
            with self._answering(f"the offsets of group {group}"):
                asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
                answer = asked[group].result(ANSWER_WITHIN_S)
                found[group] = {
                    (tp.topic, tp.partition): tp.offset for tp in answer.topic_partitions or () if tp.offset >= 0
                }
        return found

    def read(self, reader: LogReader, ends: Mapping[Partition, int]) -> None:
        """Feed the reader every record that it does not have yet, up to the ends."""
        wanted = {place: end for place, end in ends.items() if reader.partitions[place].next_offset < end}
        for record in self._records({place: reader.partitions[place].next_offset for place in wanted}, wanted):
            reader.feed(record)
        for place, end in ends.items():
            reader.reach(place, end)

    def letters(self, suffix: str) -> tuple[dict[str, int], list[Letter]]:
        """Return dead-letter topic → records, and the first `LETTERS_READ` of all by topic, partition and offset."""
        names = [name for name in self.topics() if name.endswith(suffix)]
        starts, ends = self.bounds(names)
        counts = dict.fromkeys(names, 0)
        for (topic, _), end in ends.items():
            counts[topic] += end  # what was deleted since was a dead letter, too
        letters: list[Letter] = []
        # One partition after the other: of several, librdkafka hands out records in the order in which answers come.
        for place in sorted(ends):
            for record in self._records({place: starts[place]}, {place: ends[place]}):
                letters.append(letter_of(record))
                if len(letters) >= LETTERS_READ:
                    return counts, letters
        return counts, letters

    def _records(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[LogRecord]:
        """Yield the records from the starts to the ends, of each partition in order."""
        left = {place: end for place, end in ends.items() if starts[place] < end}
        if not left:
            return
        self._consumer.assign([TopicPartition(topic, number, starts[topic, number]) for topic, number in left])
        deadline = time.monotonic() + NO_PROGRESS_S
        try:
            while left:
                with self._answering("records"):
                    messages = self._consumer.consume(RECORDS_AT_A_TIME, timeout=WAITS_S)
                if messages:
                    deadline = time.monotonic() + NO_PROGRESS_S
                elif time.monotonic() > deadline:
                    (topic, partition), end = min(left.items())
                    raise RunFailedError(
                        f"{topic}-{partition} could not be read to its end {end}: nothing came for {NO_PROGRESS_S:g} s"
                    )
                for message in messages:
                    record, error = _record(message), message.error()
                    place = (record.topic, record.partition)
                    if place not in left:
                        continue
                    if error is not None:
                        if error.code() != KafkaError._PARTITION_EOF:  # librdkafka's own name for it
                            raise RunFailedError(f"{place[0]}-{place[1]} cannot be read: {error.str()}")
                        if record.offset >= left[place]:
                            del left[place]
                        continue
                    if record.offset < left[place]:
                        yield record
                    if record.offset + 1 >= left[place]:
                        del left[place]
        finally:
            self._consumer.unassign()

    @contextlib.contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, TimeoutError) as error:
            raise RunFailedError(f"{self.bootstrap} does not tell {what}: {error}") from error


def letter_of(record: LogRecord) -> Letter:
    """Return a dead letter with what its headers say of the record that it stands for."""
    said = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    shown = ", ".join(f"{name}={value}" for name, value in said.items() if "original" in name or "ce_id" in name)
    try:
        topic, partition, offset = (said[f"kafka_dlt-original-{part}"] for part in ("topic", "partition", "offset"))
        origin = Place(topic, int(partition), int(offset))
    except (KeyError, ValueError):
        origin = None
    return Letter(record.topic, record.partition, record.offset, shown, origin)


def _record(message: Any) -> LogRecord:  # Any: the library's stubs call all of this optional
    return LogRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=message.headers() or (),
    )
