"""Topics and their settings: what is created, changed, described and refused."""

from __future__ import annotations

from typing import Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode

from tests.conformance.conftest import Cluster, MakeTopic, has_leaders
from tests.conformance.deviations import expected
from tests.conformance.wire import Wire, batch_of
from tests.support import wait_for

TOPIC, BROKER = 2, 4
"""Types of config resources."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs."""


def create(wire: Wire, name: str, *, validate_only: bool = False, **more: Any) -> Any:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, **more}
    answer = wire.call(ApiKey.CREATE_TOPICS, 7, topics=[wanted], timeout_ms=20_000, validate_only=validate_only)
    return answer.topics[0]


def describe(wire: Wire, name: str) -> Any:
    return wire.call(ApiKey.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics[0]


def test_a_topic_is_created_with_its_settings_and_found_by_name_and_id(wire: Wire, name: str) -> None:
    made = create(wire, name, num_partitions=3, configs=[{"name": "retention.ms", "value": "1234"}])
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 3, 1)
    configs = {config.name: (config.value, config.config_source) for config in made.configs}
    assert configs["retention.ms"] == ("1234", 1)  # 1: the topic's own
    assert configs["cleanup.policy"] == ("delete", 5)  # 5: the default
    wait_for("leaders", lambda: has_leaders(wire, name, 3))
    by_name = describe(wire, name)
    assert by_name.topic_id == made.topic_id != bytes(16)
    assert sorted(part.partition_index for part in by_name.partitions) == [0, 1, 2]
    by_id = wire.call(ApiKey.METADATA, 12, topics=[{"topic_id": made.topic_id, "name": None}]).topics[0]
    assert (by_id.name, by_id.error_code) == (name, 0)
    unknown = wire.call(ApiKey.METADATA, 12, topics=[{"topic_id": b"\x07" * 16, "name": None}]).topics[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_validating_creates_nothing(wire: Wire, name: str) -> None:
    assert create(wire, name, validate_only=True).error_code == 0
    assert describe(wire, name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 9}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [{"name": "retention.msec", "value": "5"}]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [{"name": "cleanup.policy", "value": "burn"}]}, ErrorCode.INVALID_CONFIG),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [99]}],
            },
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"assignments": [{"partition_index": 0, "broker_ids": [1]}]},
            ErrorCode.INVALID_REQUEST,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else None,
)
def test_what_cannot_be_created_is_refused_with_a_reason(
    wire: Wire, name: str, more: dict[str, Any], code: ErrorCode
) -> None:
    answer = create(wire, name, **more)
    assert answer.error_code == code
    assert answer.error_message


@pytest.mark.parametrize("bad", ["", ".", "..", "a b", "ä", "x" * 250, "a/b"])
def test_names_that_no_topic_has(wire: Wire, bad: str) -> None:
    assert create(wire, bad).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_name_of_the_metadata_log_is_no_topics(wire: Wire) -> None:
    name = "__cluster_metadata"
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for validate_only in (True, False):
        refused = create(wire, name, validate_only=validate_only)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert refused.error_message == "Creation of internal topic __cluster_metadata is prohibited."
    for _ in range(2):
        asked = wire.call(ApiKey.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=True)
        assert asked.topics[0].error_code == unknown
    assert wire.produce(name, batch_of(b"a record among the metadata")).error_code == unknown
    assert wire.fetch(name, 0).error_code == unknown
    deleted = wire.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": name}], timeout_ms=20_000)
    assert deleted.responses[0].error_code == unknown
    more = [{"name": name, "count": 3, "assignments": None}]
    grown = wire.call(ApiKey.CREATE_PARTITIONS, 3, topics=more, timeout_ms=20_000, validate_only=False)
    assert grown.results[0].error_code == unknown
    assert alter(wire, name, ("retention.ms", SET, "5")).error_code == unknown


@pytest.mark.parametrize("asked_name", [None, "", "any"])
@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_begins_with_version_12(wire: Wire, topic: str, version: int, asked_name: str | None) -> None:
    topic_id = describe(wire, topic).topic_id
    for asked_id in (topic_id, b"\x07" * 16):
        answer = wire.call(ApiKey.METADATA, version, topics=[{"topic_id": asked_id, "name": asked_name}])
        found = answer.topics[0]
        assert (found.error_code, found.name) == (ErrorCode.INVALID_REQUEST, asked_name or "")


def test_names_that_differ_only_in_dots_and_underscores_collide(wire: Wire, name: str) -> None:
    dotted = name.replace("-", ".")
    assert create(wire, dotted).error_code == 0
    assert create(wire, dotted.replace(".", "_")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_exists_once(wire: Wire, topic: str) -> None:
    assert create(wire, topic).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_replicas_are_assigned_by_hand(wire: Wire, name: str) -> None:
    broker = wire.call(ApiKey.METADATA, 4, topics=[]).brokers[0]
    by_hand = [{"partition_index": index, "broker_ids": [broker.node_id]} for index in range(2)]
    assert create(wire, name, num_partitions=-1, replication_factor=-1, assignments=by_hand).error_code == 0
    wait_for("leaders", lambda: has_leaders(wire, name, 2))


def test_a_topic_that_was_deleted_is_gone_with_its_records(wire: Wire, topic: str) -> None:
    wire.write(topic, b"old")
    before = describe(wire, topic).topic_id
    answer = wire.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": topic}], timeout_ms=20_000)
    assert answer.responses[0].error_code == 0
    wait_for("it is gone", lambda: describe(wire, topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    again = wire.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": topic}], timeout_ms=20_000)
    assert again.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert create(wire, topic).error_code == 0
    wait_for("the new one serves", lambda: wire.list_offset(topic, -1).offset == 0)
    assert describe(wire, topic).topic_id != before


def test_a_topic_is_deleted_by_id(wire: Wire, topic: str) -> None:
    topic_id = describe(wire, topic).topic_id
    asked = [{"name": None, "topic_id": topic_id}]
    assert wire.call(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=20_000).responses[0].error_code == 0
    unknown = wire.call(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=20_000).responses[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_partitions_are_added_and_never_taken(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(2)

    def ask(count: int, *, validate_only: bool = False) -> Any:
        answer = wire.call(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": topic, "count": count, "assignments": None}],
            timeout_ms=20_000,
            validate_only=validate_only,
        )
        return answer.results[0]

    for count in (1, 2):
        refused = ask(count)
        assert refused.error_code == ErrorCode.INVALID_PARTITIONS
        assert "2" in refused.error_message
    assert ask(5, validate_only=True).error_code == 0
    assert len(describe(wire, topic).partitions) == 2
    assert ask(3).error_code == 0
    wait_for("the third partition leads", lambda: has_leaders(wire, topic, 3))


def test_asking_for_a_topic_creates_it_where_that_is_wanted(wire: Wire, name: str) -> None:
    first = wire.call(ApiKey.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=True).topics[0]
    assert first.error_code in {0, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    wait_for("it is there", lambda: describe(wire, name).error_code == 0)
    wait_for("it leads", lambda: has_leaders(wire, name, 1))


def test_internal_topics_are_marked(wire: Wire, name: str) -> None:
    wire.find_coordinator(name)
    assert describe(wire, "__consumer_offsets").is_internal
    assert create(wire, "__consumer_offsets").error_code == ErrorCode.TOPIC_ALREADY_EXISTS


# Settings.


def configs(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, Any]:
    answer = wire.call(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}],
        include_synonyms=True,
        include_documentation=True,
    )
    (result,) = answer.results
    assert result.error_code == 0, result
    return {config.name: config for config in result.configs}


def alter(wire: Wire, topic: str, *operations: tuple[str, int, str | None], validate_only: bool = False) -> Any:
    listed = [{"name": name, "config_operation": kind, "value": value} for name, kind, value in operations]
    answer = wire.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": TOPIC, "resource_name": topic, "configs": listed}],
        validate_only=validate_only,
    )
    return answer.responses[0]


def test_settings_are_described_with_source_type_and_synonyms(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(retention_ms="5000000")
    found = configs(wire, TOPIC, topic)
    mine = found["retention.ms"]
    assert (mine.value, mine.config_source, mine.read_only, mine.is_sensitive) == ("5000000", 1, False, False)
    assert (mine.config_type, bool(mine.documentation)) == (5, True)  # 5: long
    assert (mine.synonyms[0].name, mine.synonyms[0].source) == ("retention.ms", 1)
    default = found["segment.bytes"]
    assert (default.value, default.config_source, default.config_type) == ("1073741824", 5, 3)  # 3: int
    assert found["cleanup.policy"].config_type == 7  # 7: list
    assert found["min.cleanable.dirty.ratio"].value == "0.5"
    assert found["unclean.leader.election.enable"].value == "false"
    assert set(configs(wire, TOPIC, topic, "retention.ms")) == {"retention.ms"}


def test_ours_knows_the_topic_settings_of_apache_kafka(cluster: Cluster, wire: Wire, topic: str) -> None:
    """Listed here as Apache Kafka 4.3 names them, so that one added there is noticed."""
    found = set(configs(wire, TOPIC, topic))
    tiered_and_throttled = {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
    everywhere = {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
    assert found - tiered_and_throttled - {"errors.deadletterqueue.group.enable"} == everywhere
    assert bool(found & tiered_and_throttled) == expected(
        cluster, apache=True, ours=False, deviation="no-settings-of-what-is-not-there"
    )


def test_settings_are_changed_one_by_one(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(retention_ms="1000000", cleanup_policy="delete")
    changes: list[tuple[str, int, str | None]] = [
        ("max.message.bytes", SET, "2000"),
        ("retention.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
    ]
    assert alter(wire, topic, *changes, validate_only=True).error_code == 0
    assert configs(wire, TOPIC, topic)["retention.ms"].value == "1000000"
    assert alter(wire, topic, *changes).error_code == 0
    found: dict[str, Any] = {}

    def has_changed() -> bool:
        found.update(configs(wire, TOPIC, topic))
        return bool(found["max.message.bytes"].value == "2000")

    wait_for("the change", has_changed)
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("604800000", 5)
    assert found["cleanup.policy"].value == "delete,compact"
    assert alter(wire, topic, ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    wait_for("the change", lambda: configs(wire, TOPIC, topic)["cleanup.policy"].value == "compact")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "-2"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "1_000"), ErrorCode.INVALID_CONFIG),
        (("min.cleanable.dirty.ratio", SET, "nan"), ErrorCode.INVALID_CONFIG),
        (("retention.msec", SET, "5"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", SET, "burn"), ErrorCode.INVALID_CONFIG),
        (("max.message.bytes", SET, "-1"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(
    wire: Wire, topic: str, change: tuple[str, int, str], code: ErrorCode
) -> None:
    answer = alter(wire, topic, change)
    assert answer.error_code == code
    assert answer.error_message


def test_settings_of_a_topic_that_does_not_exist(wire: Wire, name: str) -> None:
    assert alter(wire, name, ("retention.ms", SET, "5")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = wire.call(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}],
    )
    assert answer.results[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_changed_limit_counts_for_the_next_write(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, batch_of(b"x" * 3000)).error_code == 0
    alter(wire, topic, ("max.message.bytes", SET, "2000"))
    wait_for(
        "the limit counts",
        lambda: wire.produce(topic, batch_of(b"x" * 3000)).error_code == ErrorCode.MESSAGE_TOO_LARGE,
    )


def test_the_brokers_settings_say_whether_they_can_be_changed(wire: Wire) -> None:
    broker = wire.call(ApiKey.METADATA, 4, topics=[]).brokers[0]
    found = configs(wire, BROKER, str(broker.node_id))
    assert found["num.partitions"].value == "1"
    assert found["log.dirs"].read_only
    assert not found["log.retention.ms"].read_only
    assert not found["message.max.bytes"].read_only


# DeleteRecords.


def test_records_are_deleted_up_to_an_offset(wire: Wire, topic: str) -> None:
    for number in range(5):
        wire.write(topic, b"%d" % number)

    def delete(offset: int, partition: int = 0) -> Any:
        where = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
        answer = wire.call(ApiKey.DELETE_RECORDS, 2, topics=where, timeout_ms=10_000)
        return answer.topics[0].partitions[0]

    done = delete(2)
    assert (done.error_code, done.low_watermark) == (0, 2)
    assert wire.list_offset(topic, -2).offset == 2
    assert delete(1).low_watermark == 2  # what is gone stays gone
    assert delete(6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(0, partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(-1).low_watermark == 5  # the high watermark: everything
    assert wire.list_offset(topic, -2).offset == 5


def test_records_of_a_compacted_topic_are_not_deleted(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(cleanup_policy="compact")
    where = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]
    answer = wire.call(ApiKey.DELETE_RECORDS, 2, topics=where, timeout_ms=10_000)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
