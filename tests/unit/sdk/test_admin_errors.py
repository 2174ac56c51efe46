"""Whatever the client library raises comes out of an admin as an error of hailbus."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors as kafka_errors
from hailbus import BrokerUnreachableError, ConfigurationError, HailbusError, KafkaBus, Topic
from hailbus._transport import kafka_admin
from hailbus._transport.kafka_admin import KafkaAdmin


class Broken:
    """A client whose every call fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: object, **__: object) -> None:
            raise self.error

        return fail


def admin_with(error: Exception) -> KafkaAdmin:
    admin = KafkaAdmin(KafkaBus(bootstrap_servers="127.0.0.1:9"), client_id="x")
    admin._client = Broken(error)
    return admin


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.KafkaConnectionError("gone"),
        kafka_errors.NodeNotReadyError("node 0"),
        kafka_errors.RequestTimedOutError("slow"),
        ConnectionResetError("reset"),
    ],
)
async def test_a_broker_that_went_away_is_unreachable(error: Exception) -> None:
    with pytest.raises(BrokerUnreachableError, match=r"no Kafka broker answers at 127\.0\.0\.1:9") as found:
        await admin_with(error).describe(["a"])
    assert found.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.TopicAuthorizationFailedError("orders"),
        kafka_errors.ClusterAuthorizationFailedError("no"),
        kafka_errors.InvalidTopicError("bad"),
        kafka_errors.UnsupportedVersionError("old"),
    ],
)
async def test_a_refusal_says_which_cluster_and_why(error: Exception) -> None:
    calls: list[Callable[[KafkaAdmin], Coroutine[Any, Any, object]]] = [
        lambda admin: admin.describe(["a"]),
        lambda admin: admin.create([Topic("a")]),
        lambda admin: admin.committed("g"),
        lambda admin: admin.delete(["a"]),
        lambda admin: admin.add_partitions("a", 2),
    ]
    for call in calls:
        with pytest.raises(HailbusError) as found:
            await call(admin_with(error))
        assert isinstance(found.value, ConfigurationError)
        assert "127.0.0.1:9" in str(found.value)


class Cluster:
    """The admin client of a cluster whose brokers hear of a new topic at different times, or do not answer."""

    def __init__(self, *views: Callable[[int], int | None]) -> None:
        self._views = views
        self.asked: dict[int, int] = dict.fromkeys(range(len(views)), 0)
        self.created = False

    async def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"node_id": node} for node in self.asked]}

    async def create_topics(self, topics: list[Any], timeout_ms: int) -> Any:
        assert timeout_ms > 0
        self.created = True
        return SimpleNamespace(topic_errors=[(topic.name, 0, None) for topic in topics])

    async def _get_cluster_metadata(self) -> Any:
        return _metadata(0 if self.created else None)

    async def _send_request_to_node(self, node: int, _: object) -> Any:
        self.asked[node] += 1
        return _metadata(self._views[node](self.asked[node]))


def _metadata(leader: int | None) -> Any:
    partition = {"partition": 0, "leader": leader, "replicas": [0, 1, 2], "isr": [0, 1, 2]}
    topics = [] if leader is None else [{"topic": "a", "error_code": 0, "partitions": [partition]}]
    return SimpleNamespace(to_object=lambda: {"topics": topics})


def _gone(_: int) -> int | None:
    raise kafka_errors.NodeNotReadyError("node 2")


async def test_a_topic_is_created_when_every_broker_that_answers_knows_its_leader() -> None:
    admin = KafkaAdmin(KafkaBus(bootstrap_servers="127.0.0.1:9"), client_id="x")
    # The first knows at once, the second at the third time, at first without a leader; the last is down.
    cluster = Cluster(lambda _: 0, lambda times: (None, -1, 0)[times - 1], _gone)
    admin._client = cluster
    assert await admin.create([Topic("a")]) == {"a"}
    assert cluster.asked == {0: 3, 1: 3, 2: 3}


async def test_a_cluster_whose_brokers_are_all_silent_has_not_created_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "LED_WITHIN_S", 0.3)
    admin = KafkaAdmin(KafkaBus(bootstrap_servers="127.0.0.1:9"), client_id="x")
    admin._client = Cluster(_gone, _gone)
    with pytest.raises(BrokerUnreachableError, match="new topics got no leader"):
        await admin.create([Topic("a")])
