"""What the broker's log holds, read by librdkafka: `lake verify` starts no JVM, and is no client of Spark's library."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BrokerView", "Place", "RecordSink", "TopicView", "topic_id_text"]

Place = tuple[str, int]
"""Topic and partition."""
RecordSink = Callable[[Place, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]], None]
"""Receives a record: its place, offset, key, value and headers."""

_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_CONSUMED_AT_ONCE = 2_000
_POLL_S = 0.1
_QUEUED_KIB = 32 * 1024
"""Bound of the records that librdkafka fetches ahead."""


@dataclass(slots=True, kw_only=True)
class TopicView:
    """One topic as the broker describes it.

    Attributes:
        topic_id: Differs when a topic was deleted and created again. None on a broker that gives no ids.
        starts: Partition → first offset that the log has.
        ends: Partition → end of the committed records, exclusive (last stable offset).
        is_compacted: Whether `cleanup.policy` contains `compact`.
        retention: `retention.ms` and `retention.bytes`, for messages.
        unanswered: Why a part of this could not be read; empty when all of it was.
    """

    topic: str
    topic_id: str | None = None
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    is_compacted: bool = False
    retention: str = "unknown"
    unanswered: str = ""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """Reads topics of one cluster as a read_committed consumer does. Blocking; for use from a command.

    Attributes:
        bootstrap_servers: HOST:PORT[,HOST:PORT…].
        timeout_s: How long an answer, or the next records, may take.
    """

    bootstrap_servers: str
    timeout_s: float = 15.0

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        """Topic → what the broker says of it. A topic that the broker says it does not have is left out.

        Never raises for a broker that is silent: `unanswered` then says so.
        """
        from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there
            AdminClient,
            ConfigResource,
            OffsetSpec,
            ResourceType,
        )

        if not topics:
            return {}
        admin = AdminClient(self._config())
        found: dict[str, TopicView] = {}
        for name, future in admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self.timeout_s
        ).items():
            answer = self._answer(future)
            if isinstance(answer, _Silence):
                if not answer.is_unknown_topic:
                    found[name] = TopicView(topic=name, unanswered=answer.text)
                continue
            found[name] = TopicView(topic=name, topic_id=topic_id_text(answer.topic_id))
            for partition in answer.partitions:
                found[name].starts[partition.id] = found[name].ends[partition.id] = -1
        answered = {name: view for name, view in found.items() if not view.unanswered}
        if not answered:
            return found
        places = [TopicPartition(name, partition) for name, view in answered.items() for partition in view.starts]
        # The ends first: a record that arrives in between must not count as one that the log lacks.
        for field_name, spec in (
            ("ends", OffsetSpec.latest()),  # type: ignore[no-untyped-call]  # confluent-kafka has no types for it
            ("starts", OffsetSpec.earliest()),  # type: ignore[no-untyped-call]  # confluent-kafka has no types for it
        ):
            futures = admin.list_offsets(
                dict.fromkeys(places, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self.timeout_s,
            )
            for place, future in futures.items():
                answer = self._answer(future)
                if isinstance(answer, _Silence):
                    found[place.topic].unanswered = answer.text
                else:
                    getattr(found[place.topic], field_name)[place.partition] = answer.offset
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in answered]
        for resource, future in admin.describe_configs(resources, request_timeout=self.timeout_s).items():
            answer = self._answer(future)
            if isinstance(answer, _Silence):
                found[resource.name].unanswered = answer.text
                continue
            value = {name: entry.value for name, entry in answer.items()}
            found[resource.name].is_compacted = "compact" in (value.get("cleanup.policy") or "")
            found[
                resource.name
            ].retention = f"retention.ms={value.get('retention.ms')}, retention.bytes={value.get('retention.bytes')}"
        return found

    def read(self, wanted: Mapping[Place, tuple[int, int]], sink: RecordSink) -> dict[Place, str]:
        """Hand every committed record from start to end, exclusive, of each partition to `sink`, in offset order.

        Returns:
            The partitions that were not read to their end, with the reason. Nothing is known of their rest.
        """
        from confluent_kafka import Consumer, TopicPartition

        reached = {place: start for place, (start, end) in wanted.items() if start < end}
        if not reached:
            return {}
        unread: dict[Place, str] = {}
        consumer = Consumer(
            self._config()
            | {
                "group.id": "lake-verify",  # assigned, never joined; librdkafka wants a name
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "queued.max.messages.kbytes": _QUEUED_KIB,
            }
        )
        try:
            consumer.assign([TopicPartition(*place, start) for place, start in reached.items()])
            deadline = time.monotonic() + self.timeout_s
            while reached and time.monotonic() < deadline:
                messages: list[Any] = consumer.consume(_CONSUMED_AT_ONCE, timeout=_POLL_S)
                for message in messages:
                    place = (message.topic(), message.partition())
                    error = message.error()
                    if error is not None:
                        deadline = self._failed(error, place, message.offset(), wanted, reached, unread, deadline)
                        continue
                    if place not in reached:
                        continue
                    deadline = time.monotonic() + self.timeout_s
                    offset = message.offset()
                    if offset < wanted[place][1]:
                        sink(place, offset, message.key(), message.value(), message.headers() or ())
                        reached[place] = offset + 1
                    if offset + 1 >= wanted[place][1]:
                        del reached[place]
        finally:
            consumer.close()
        for place, offset in reached.items():
            unread[place] = (
                f"read up to offset {offset} of {wanted[place][1]}, then {self.bootstrap_servers} gave no answer "
                f"for {self.timeout_s:g} s"
            )
        return unread

    def _failed(
        self,
        error: Any,
        place: Place,
        offset: int,
        wanted: Mapping[Place, tuple[int, int]],
        reached: dict[Place, int],
        unread: dict[Place, str],
        deadline: float,
    ) -> float:
        """Note the end of a partition or an error of it; returns the new deadline."""
        from confluent_kafka import KafkaError

        if place not in reached:  # of the connection, which the client repairs, or of a partition that was read
            return deadline
        if error.code() != KafkaError._PARTITION_EOF:
            unread[place] = f"read up to offset {reached.pop(place)} of {wanted[place][1]}, then: {error.str()}"
            return deadline
        if offset >= wanted[place][1]:
            del reached[place]
        else:
            del reached[place]
            unread[place] = f"the log ends at offset {offset}, though the broker said {wanted[place][1]}"
        return time.monotonic() + self.timeout_s

    def _config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "lake-verify",
            "socket.timeout.ms": max(1000, int(self.timeout_s * 1000)),
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,
        }

    def _answer(self, future: Any) -> Any:
        """The result of one of confluent-kafka's futures, or a `_Silence`."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            # Its own timeout comes first; this one bounds a client that never completes the future.
            return future.result(self.timeout_s + 5)
        except KafkaException as error:
            cause = error.args[0]
            is_unknown = cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            text = f"{self.bootstrap_servers} did not answer within {self.timeout_s:g} s: {cause.str()}"
            return _Silence(text, is_unknown_topic=is_unknown)
        except TimeoutError:
            return _Silence(f"{self.bootstrap_servers} did not answer within {self.timeout_s + 5:g} s")


@dataclass(frozen=True, slots=True)
class _Silence:
    text: str
    is_unknown_topic: bool = False


def topic_id_text(uuid: Any) -> str | None:
    """A topic id as Kafka's own tools and the sink's client write it, None for the id of a broker that has none.

    librdkafka writes Base64 with `+` and `/`, Kafka the alphabet for URLs.
    """
    text = str(uuid).replace("+", "-").replace("/", "_") if uuid is not None else _NO_TOPIC_ID
    return None if text == _NO_TOPIC_ID else text
