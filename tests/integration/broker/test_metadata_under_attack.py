"""What clients do with the name of the metadata log costs no topic, now or after a restart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing import ThreadedBroker

from tests.conformance.wire import Wire, batch_of, values, wire_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUEST_COUNT = 300
METADATA_LOG = "__cluster_metadata"


def create(wire: Wire, name: str) -> list[int]:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1}
    return codes(wire.call(ApiKey.CREATE_TOPICS, 7, topics=[wanted], timeout_ms=20_000).topics)


def codes(answers: list[Any]) -> list[int]:
    return [answer.error_code for answer in answers]


ATTACKS: dict[str, Callable[[Wire], list[int]]] = {
    "create": lambda wire: create(wire, METADATA_LOG),
    "create by asking": lambda wire: codes(
        wire.call(ApiKey.METADATA, 12, topics=[{"name": METADATA_LOG}], allow_auto_topic_creation=True).topics
    ),
    "delete": lambda wire: codes(
        wire.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": METADATA_LOG}], timeout_ms=20_000).responses
    ),
    "add partitions": lambda wire: codes(
        wire.call(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": METADATA_LOG, "count": 3, "assignments": None}],
            timeout_ms=20_000,
        ).results
    ),
    "produce": lambda wire: [wire.produce(METADATA_LOG, batch_of(b"x" * 100)).error_code],
    "fetch": lambda wire: [wire.fetch(METADATA_LOG, 0).error_code],
    "delete records": lambda wire: codes(
        wire.call(
            ApiKey.DELETE_RECORDS,
            2,
            topics=[{"name": METADATA_LOG, "partitions": [{"partition_index": 0, "offset": -1}]}],
            timeout_ms=20_000,
        )
        .topics[0]
        .partitions
    ),
}


@pytest.mark.parametrize("seed", range(3))
def test_the_name_of_the_metadata_log_is_of_no_use(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    settings = {"log.retention.check.interval.ms": "10", "log.cleaner.backoff.ms": "10"}
    topics: list[str] = []
    with ThreadedBroker(settings, data_dir=str(tmp_path)) as broker, wire_to(broker) as wire:
        for number in range(REQUEST_COUNT):
            if number % 30 == 0:
                topics.append(f"rides-{number}")
                assert create(wire, topics[-1]) == [0]
                wire.write(topics[-1], topics[-1].encode())
            name = rng.choice(sorted(ATTACKS))
            assert 0 not in ATTACKS[name](wire), name
    with ThreadedBroker(settings, data_dir=str(tmp_path)) as broker, wire_to(broker) as wire:
        found = {topic.name: topic.error_code for topic in wire.call(ApiKey.METADATA, 12, topics=None).topics}
        assert found == dict.fromkeys(topics, ErrorCode.NONE)
        for topic in topics:
            assert values(wire.fetch(topic, 0).records) == [topic.encode()]
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.endswith("-stray")]
