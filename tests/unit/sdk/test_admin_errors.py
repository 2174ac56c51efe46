"""Whatever the client library raises comes out of an admin as an error of hailbus."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka import errors as kafka_errors
from hailbus import BrokerUnreachableError, ConfigurationError, HailbusError, KafkaBus, Topic
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
