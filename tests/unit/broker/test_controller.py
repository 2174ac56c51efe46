"""What the controller decides: records for the metadata log, or a refusal that says why."""

from __future__ import annotations

import random

import pytest
from hailbus_broker.cluster.controller import Controller
from hailbus_broker.cluster.metadata.image import MetadataImage, ResourceType
from hailbus_broker.cluster.metadata.records import decode_record, encode_record
from hailbus_broker.cluster.options import BROKER_OPTIONS, TOPIC_OPTIONS, BrokerConfig, to_text, topic_value
from hailbus_broker.config import load
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import Message
from hailbus_broker.runtime.addresses import parse_listeners
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.runtime.errors import StartError


class Cluster:
    def __init__(self, **settings: str) -> None:
        self.image = MetadataImage()
        self.config = BrokerConfig({name.replace("_", "."): value for name, value in settings.items()})
        self.controller = Controller(
            self.image, self.config, node_id=1, directory_id=b"d" * 16, chance=random.Random(3)
        )
        self.write(self.controller.register_broker(broker_epoch=0, was_clean=True, incarnation_id=bytes(16)))

    def write(self, records: list[Message]) -> None:
        for record in records:
            self.image.replay(decode_record(encode_record(record)))

    def create(self, name: str, **changes: object) -> None:
        self.write(self.controller.create_topic(name, **changes).records)  # type: ignore[arg-type]  # as the caller says


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(num_partitions="3")


def test_a_topic_has_partitions_led_by_this_node(cluster: Cluster) -> None:
    cluster.create("rides", configs={"cleanup.policy": "compact"})
    topic = cluster.image.topics["rides"]
    assert [(state.index, state.leader, state.isr, state.leader_epoch) for state in topic.partitions] == [
        (index, 1, (1,), 0) for index in range(3)
    ]
    assert cluster.image.topics_by_id[topic.topic_id] is topic
    assert cluster.image.configs(ResourceType.TOPIC, "rides") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("rides", {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (".", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a" * 250, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("new.york", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__cluster_metadata", {}, ErrorCode.INVALID_REQUEST),
        ("new", {"partition_count": 0}, ErrorCode.INVALID_PARTITIONS),
        ("new", {"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"assignments": {0: [2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("new", {"assignments": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("new", {"assignments": {0: [1]}, "partition_count": 1}, ErrorCode.INVALID_REQUEST),
        ("new", {"configs": {"retention.msec": "1"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"cleanup.policy": "shred"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"preallocate": "true"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_topics_that_are_refused(cluster: Cluster, name: str, changes: dict[str, object], code: ErrorCode) -> None:
    cluster.create("rides")
    cluster.create("new_york")
    with pytest.raises(ApiError) as refused:
        cluster.controller.create_topic(name, **changes)  # type: ignore[arg-type]  # as the table says
    assert refused.value.code is code
    assert refused.value.message


def test_partitions_can_be_added_and_never_taken_away(cluster: Cluster) -> None:
    cluster.create("rides")
    cluster.write(cluster.controller.create_partitions("rides", 5))
    assert len(cluster.image.topics["rides"].partitions) == 5
    for count in (5, 4):
        with pytest.raises(ApiError) as refused:
            cluster.controller.create_partitions("rides", count)
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS


def test_a_deleted_topic_takes_its_configs_with_it(cluster: Cluster) -> None:
    cluster.create("rides", configs={"retention.ms": "1000"})
    cluster.write(cluster.controller.delete_topic(cluster.image.topics["rides"]))
    assert cluster.image.topics == {}
    cluster.create("rides")
    assert cluster.image.configs(ResourceType.TOPIC, "rides") == {}


def test_the_image_counts_the_partitions_of_all_topics(cluster: Cluster) -> None:
    cluster.create("rides")
    cluster.create("cars")
    cluster.write(cluster.controller.create_partitions("rides", 5))
    assert cluster.image.partition_count == cluster.image.copy().partition_count == 8
    cluster.write(cluster.controller.delete_topic(cluster.image.topics["rides"]))
    assert cluster.image.partition_count == 3


def test_configs_are_set_and_taken_back(cluster: Cluster) -> None:
    cluster.create("rides")
    cluster.write(cluster.controller.alter_configs(ResourceType.TOPIC, "rides", {"retention.ms": "1000"}))
    overrides = cluster.image.configs(ResourceType.TOPIC, "rides")
    assert topic_value(overrides, cluster.config, "retention.ms") == 1_000
    cluster.write(cluster.controller.alter_configs(ResourceType.TOPIC, "rides", {"retention.ms": None}))
    overrides = cluster.image.configs(ResourceType.TOPIC, "rides")
    assert topic_value(overrides, cluster.config, "retention.ms") == 168 * 3_600_000


def test_only_dynamic_settings_of_the_broker_can_be_altered(cluster: Cluster) -> None:
    cluster.write(cluster.controller.alter_configs(ResourceType.BROKER, "", {"num.partitions": "7"}))
    cluster.config.refresh(cluster.image.configs(ResourceType.BROKER, ""))
    assert cluster.config["num.partitions"] == 7
    with pytest.raises(ApiError) as refused:
        cluster.controller.alter_configs(ResourceType.BROKER, "1", {"node.id": "2"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("kind", "name", "throttle"),
    [
        (ResourceType.BROKER, "1", "leader.replication.throttled.rate"),
        (ResourceType.TOPIC, "rides", "follower.replication.throttled.replicas"),
    ],
)
def test_a_throttle_cannot_be_set_and_may_be_removed(
    cluster: Cluster, kind: ResourceType, name: str, throttle: str
) -> None:
    cluster.create("rides")
    assert cluster.controller.alter_configs(kind, name, {throttle: None}) == []
    with pytest.raises(ApiError) as refusal:
        cluster.controller.alter_configs(kind, name, {throttle: "1000"})
    assert refusal.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("min.cleanable.dirty.ratio", "0_1"),
        ("min.cleanable.dirty.ratio", "٠.٥"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣٣"),
    ],
)
def test_what_only_python_takes_for_a_number_is_refused(cluster: Cluster, option: str, text: str) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.create("rides", configs={option: text})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert text in (refused.value.message or "")


def test_blocks_of_producer_ids_do_not_overlap(cluster: Cluster) -> None:
    first, records = cluster.controller.allocate_producer_ids()
    cluster.write(records)
    second, _ = cluster.controller.allocate_producer_ids()
    assert (first, second) == (0, 1_000)


def test_every_default_is_a_value_of_its_option() -> None:
    for option in (*BROKER_OPTIONS.values(), *TOPIC_OPTIONS.values()):
        if option.default is not None:
            assert option.parse(to_text(option.parse(option.default))) == option.parse(option.default), option.name
    assert all(option.broker_name in BROKER_OPTIONS for option in TOPIC_OPTIONS.values())


def test_settings_come_from_file_environment_and_flags_in_that_order() -> None:
    config = load(
        file_text="# a comment\nnum.partitions=2\nnode.id=4\nlog.retention.hours=1\n",
        environment={"BROKER_NUM_PARTITIONS": "3", "BROKER_NODE_ID": "5", "HOME": "/"},
        settings=["num.partitions=4"],
        flags={"log.dirs": "/data"},
    )
    assert (config["num.partitions"], config["node.id"], config["log.dirs"]) == (4, 5, "/data")
    assert config["log.retention.ms"] == 3_600_000


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"settings": ["num.partition=4"]}, "did you mean 'num.partitions'?"),
        ({"settings": ["num.partitions"]}, "is not name=value"),
        ({"settings": ["num.partitions=0"]}, "at least 1"),
        ({"environment": {"BROKER_NUM_PARTITION": "4"}}, "BROKER_NUM_PARTITION"),
    ],
)
def test_wrong_settings_say_what_is_wrong(arguments: dict[str, object], hint: str) -> None:
    with pytest.raises(StartError, match=hint.replace("?", r"\?")):
        load(**({"environment": {}} | arguments))  # type: ignore[arg-type]  # as the table says


def test_listeners_are_read_and_wrong_ones_refused() -> None:
    assert parse_listeners("INTERNAL://0.0.0.0:29092,HOST://[::1]:9092", "listeners") == {
        "INTERNAL": ("0.0.0.0", 29092),  # noqa: S104 - read, not bound
        "HOST": ("::1", 9092),
    }
    for text in ("127.0.0.1:9092", "A://h:port", "A://h:70000", "A://h:1,A://h:2"):
        with pytest.raises(StartError):
            parse_listeners(text, "listeners")


@pytest.mark.parametrize(
    ("group", "hash_code"), [("a", 97), ("g1", 3_242), ("polygenelubricants", -2_147_483_648), ("event-logger", None)]
)
def test_a_group_lies_in_the_partition_where_kafka_has_it(group: str, hash_code: int | None) -> None:
    # Java: Math.abs(hashCode) with the smallest int giving 0
    if hash_code is not None:
        assert partition_for(group, 50) == (0 if hash_code == -(2**31) else abs(hash_code) % 50)
    assert 0 <= partition_for(group, 50) < 50
