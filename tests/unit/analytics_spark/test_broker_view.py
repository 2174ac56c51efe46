"""What `lake verify` takes for read and for described: by clients that answer as librdkafka does."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from analytics_spark.broker_view import BrokerView, Place, TopicView
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Uuid

from tests.fake_consumer import FakeConsumer, Message, end

A, B = ("rides.v1", 0), ("rides.v1", 1)


def read(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[Place, tuple[int, int]], *batches: Sequence[Message]
) -> tuple[list[tuple[Place, int, bytes | None]], dict[Place, str], FakeConsumer]:
    """Return the records that a view hands on, what it says was not read, and its client."""
    client = FakeConsumer(batches)

    def connect(config: dict[str, Any]) -> FakeConsumer:
        client.config = config
        return client

    monkeypatch.setattr(confluent_kafka, "Consumer", connect)
    records: list[tuple[Place, int, bytes | None]] = []

    def take(place: Place, offset: int, key: bytes | None, value: bytes | None, headers: Any) -> None:
        assert (key, list(headers)) == (b"key", [])
        records.append((place, offset, value))

    unread = BrokerView("b:1", timeout_s=0.05).read(wanted, take)
    return records, unread, client


def test_records_are_read_from_the_start_to_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[Message(A, 2), Message(B, 0)], [Message(A, 3), Message(A, 4), Message(A, 5)]]
    records, unread, client = read(monkeypatch, {A: (2, 4), B: (0, 1)}, *batches)
    assert records == [(A, 2, b"2"), (B, 0, b"0"), (A, 3, b"3")]
    assert unread == {}
    assert client.assigned == [[(*A, 2), (*B, 0)]]
    assert client.is_closed


def test_records_that_are_hidden_at_the_end_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for offset in (4, 5):
        records, unread, _ = read(monkeypatch, {A: (0, 4)}, [Message(A, 0), Message(A, offset)])
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


def test_an_error_between_two_partitions_stops_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = KafkaError(KafkaError._BAD_MSG, "the sum is wrong")
    batch = [Message(A, 2, broken), Message(B, 5), Message(B, 6), end(B, 7)]
    records, unread, _ = read(monkeypatch, {A: (2, 9), B: (5, 9)}, batch)
    assert records == [(B, 5, b"5"), (B, 6, b"6")]
    assert unread == {
        A: "read up to offset 2 of 9, then: the sum is wrong",
        B: "the log ends at offset 7, though the broker said 9",
    }


def test_a_log_that_ends_where_it_is_read_from_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    records, unread, _ = read(monkeypatch, {A: (3, 5)}, [end(A, 3)])
    assert (records, unread) == ([], {A: "the log ends at offset 3, though the broker said 5"})


def test_each_answer_prolongs_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions come a record or an end at a time, each after most of what an answer may take."""
    now_s = [100.0]
    monkeypatch.setattr("analytics_spark.broker_view.time.monotonic", lambda: now_s[0])
    batches = [[Message(A, 0)], [], [end(A, 2)], [Message(B, 0)], [], [Message(B, 1)]]

    class Slow(FakeConsumer):
        def consume(self, count: int, *, timeout: float) -> Sequence[Message]:
            now_s[0] += 6.0
            return super().consume(count, timeout=timeout)

    client = Slow(batches)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: client)
    records: list[tuple[Place, int]] = []
    unread = BrokerView("b:1", timeout_s=15.0).read(
        {A: (0, 2), B: (0, 2)}, lambda place, offset, *_: records.append((place, offset))
    )
    assert (records, unread) == ([(A, 0), (B, 0), (B, 1)], {})
    # Three calls without an answer are more than one may take.
    client.batches = [[Message(A, 0)], [], [], [], [Message(A, 1)]]
    assert BrokerView("b:1", timeout_s=15.0).read({A: (0, 2)}, lambda *_: None) == {
        A: "read up to offset 1 of 2, then b:1 gave no answer for 15 s"
    }


@pytest.mark.parametrize(("timeout_s", "socket_ms"), [(0.05, 1_000), (1.0, 1_000), (2.5, 2_500)])
def test_a_view_reads_committed_records_and_commits_nothing(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, socket_ms: int
) -> None:
    client = FakeConsumer([[Message(A, 0)]])

    def connect(config: dict[str, Any]) -> FakeConsumer:
        client.config = config
        return client

    monkeypatch.setattr(confluent_kafka, "Consumer", connect)
    assert BrokerView("b:1", timeout_s=timeout_s).read({A: (0, 1)}, lambda *_: None) == {}
    assert client.config == {
        "bootstrap.servers": "b:1",
        "client.id": "lake-verify",
        "group.id": "lake-verify",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "socket.timeout.ms": socket_ms,
        "reconnect.backoff.max.ms": 1_000,
        "queued.max.messages.kbytes": 32_768,
        "log_level": 0,
    }


# -- topics


class Waiting(Future[Any]):
    """Notes how long it was waited for."""

    waited_s: float | None = None

    def result(self, timeout: float | None = None) -> Any:
        self.waited_s = timeout
        return super().result(0)


def answer(value: object) -> Waiting:
    future = Waiting()
    if isinstance(value, BaseException):
        future.set_exception(value)
    elif value is not None:
        future.set_result(value)
    return future


def refusal(code: int, text: str) -> KafkaException:
    return KafkaException(KafkaError(code, text))


@dataclass
class Admin:
    """A cluster's answers by topic, partition and kind; an exception in place of an answer, None for silence."""

    topics: Mapping[str, object]
    offsets: dict[tuple[str, int, str], object]
    configs: dict[str, object]
    asked: list[tuple[str, float]] = field(default_factory=list)
    futures: list[Waiting] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    def _answer(self, value: object) -> Waiting:
        self.futures.append(answer(value))
        return self.futures[-1]

    def describe_topics(self, wanted: Any, *, request_timeout: float) -> dict[str, Waiting]:
        self.asked.append(("topics", request_timeout))
        unknown = refusal(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic")
        return {name: self._answer(self.topics.get(name, unknown)) for name in wanted.topic_names}

    def list_offsets(
        self, wanted: Mapping[Any, Any], *, isolation_level: IsolationLevel, request_timeout: float
    ) -> dict[Any, Waiting]:
        assert isolation_level is IsolationLevel.READ_COMMITTED
        kinds = {type(spec).__name__ for spec in wanted.values()}
        [kind] = kinds
        self.asked.append((kind, request_timeout))
        return {place: self._answer(self.offsets[place.topic, place.partition, kind]) for place in wanted}

    def describe_configs(self, wanted: Iterable[Any], *, request_timeout: float) -> dict[Any, Waiting]:
        self.asked.append(("configs", request_timeout))
        return {one: self._answer(self.configs[one.name]) for one in wanted}


LATEST, EARLIEST = "LatestSpec", "EarliestSpec"


def topic(uuid: object, *partitions: int) -> object:
    return SimpleNamespace(topic_id=uuid, partitions=[SimpleNamespace(id=one) for one in partitions])


def settings(**values: str | None) -> dict[str, object]:
    return {name.replace("_", "."): SimpleNamespace(value=value) for name, value in values.items()}


def cluster() -> Admin:
    """Topics a and b answer; c does not exist."""
    offsets: dict[tuple[str, int, str], object] = {}
    for name, partition, start, end_ in (("a", 0, 3, 9), ("a", 1, 0, 0), ("b", 7, 1, 4)):
        offsets[name, partition, EARLIEST] = SimpleNamespace(offset=start)
        offsets[name, partition, LATEST] = SimpleNamespace(offset=end_)
    return Admin(
        topics={"a": topic(Uuid(1, 2), 0, 1), "b": topic(None, 7)},
        offsets=offsets,
        configs={
            "a": settings(cleanup_policy="compact,delete", retention_ms="5", retention_bytes="-1"),
            "b": settings(cleanup_policy="delete", retention_ms="6", retention_bytes="7"),
        },
    )


def describe(
    monkeypatch: pytest.MonkeyPatch, admin: Admin, *names: str, timeout_s: float = 2.0
) -> dict[str, TopicView]:
    def connect(config: dict[str, Any]) -> Admin:
        admin.config = config
        return admin

    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", connect)
    return BrokerView("b:1", timeout_s=timeout_s).describe(names)


def test_topics_are_described_as_the_broker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cluster()
    assert describe(monkeypatch, admin, "a", "b", "c") == {
        "a": TopicView(
            topic="a",
            topic_id=str(Uuid(1, 2)),
            starts={0: 3, 1: 0},
            ends={0: 9, 1: 0},
            is_compacted=True,
            retention="retention.ms=5, retention.bytes=-1",
        ),
        "b": TopicView(topic="b", starts={7: 1}, ends={7: 4}, retention="retention.ms=6, retention.bytes=7"),
    }
    # The ends first: a record that arrives in between must not count as one that the log lacks.
    assert admin.asked == [(what, 2.0) for what in ("topics", LATEST, EARLIEST, "configs")]
    assert {one.waited_s for one in admin.futures} == {2.0 + 5}
    assert admin.config == {
        "bootstrap.servers": "b:1",
        "client.id": "lake-verify",
        "socket.timeout.ms": 2_000,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 0,
    }


def test_nothing_is_asked_of_the_broker_without_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", None)
    assert BrokerView("b:1").describe(()) == {}


def test_topics_that_the_broker_does_not_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cluster()
    assert describe(monkeypatch, admin, "c", "d") == {}
    assert [what for what, _ in admin.asked] == ["topics"]


def test_a_topic_that_is_not_described_is_unanswered_and_the_others_are_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = cluster()
    admin.topics = {"a": refusal(KafkaError._TIMED_OUT, "too late"), "b": admin.topics["b"]}
    found = describe(monkeypatch, admin, "a", "b")
    assert found["a"] == TopicView(topic="a", unanswered="b:1 did not answer within 2 s: too late")
    assert (found["b"].unanswered, found["b"].ends) == ("", {7: 4})


def test_a_client_that_never_answers_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cluster()
    admin.topics = {"a": None}
    assert describe(monkeypatch, admin, "a") == {"a": TopicView(topic="a", unanswered="b:1 did not answer within 7 s")}


@pytest.mark.parametrize("kind", [LATEST, EARLIEST])
def test_a_topic_without_an_offset_is_unanswered(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    admin = cluster()
    admin.offsets["a", 0, kind] = refusal(KafkaError.NOT_LEADER_FOR_PARTITION, "no leader")
    found = describe(monkeypatch, admin, "a", "b")
    assert found["a"].unanswered == "b:1 did not answer within 2 s: no leader"
    assert found["a"].ends[1] == found["a"].starts[1] == 0
    assert (found["b"].unanswered, found["b"].starts, found["b"].ends) == ("", {7: 1}, {7: 4})


def test_a_topic_without_settings_is_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cluster()
    admin.configs["a"] = refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed")
    found = describe(monkeypatch, admin, "a", "b")
    assert (found["a"].unanswered, found["a"].retention) == ("b:1 did not answer within 2 s: not allowed", "unknown")
    assert (found["b"].unanswered, found["b"].retention) == ("", "retention.ms=6, retention.bytes=7")
    admin = cluster()
    admin.configs["a"] = settings(cleanup_policy=None)
    found = describe(monkeypatch, admin, "a")
    assert (found["a"].unanswered, found["a"].is_compacted) == ("", False)
