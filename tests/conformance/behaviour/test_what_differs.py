"""The deviations that no other test meets on its way: each is shown on both kinds of broker."""

from __future__ import annotations

import struct
import uuid

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import BatchView, RecordToWrite, build_batch
from hailbus_broker.records.building import update_crc

from tests.conformance.behaviour.test_classic_groups import NewMember, new_member
from tests.conformance.behaviour.test_topics import BROKER, configs
from tests.conformance.conftest import Cluster
from tests.conformance.deviations import expected
from tests.conformance.wire import Wire, batches, now_ms

__all__ = ["new_member"]


def test_defaults(cluster: Cluster, wire: Wire) -> None:
    (broker,) = wire.call(ApiKey.METADATA, 4, topics=[]).brokers
    found = configs(wire, BROKER, str(broker.node_id))

    def default(name: str) -> str | None:
        return next((str(item.value) for item in found[name].synonyms if item.source == 5), None)  # 5: default

    internal = expected(cluster, apache="50", ours="4", deviation="internal-topics-have-4-partitions")
    assert default("offsets.topic.num.partitions") == internal
    assert default("transaction.state.log.num.partitions") == internal
    never = str(2**63 - 1)
    assert default("log.flush.interval.messages") == expected(
        cluster, apache=never, ours="1", deviation="acknowledged-is-on-the-disk"
    )


def test_a_member_of_the_new_protocol_joins_a_classic_group(
    cluster: Cluster,
    wire: Wire,
    new_member: NewMember,
    topic: str,
    name: str,
) -> None:
    member = new_member()
    member.join()
    nothing = struct.pack(">hii", 0, 0, -1)  # an assignment as consumers write it: version 0, no topics, no user data
    assert member.sync({member.id: nothing}).error_code == 0
    answer = wire.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id=name,
        member_id=str(uuid.uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    assert answer.error_code == expected(
        cluster, apache=ErrorCode.NONE, ours=ErrorCode.GROUP_ID_NOT_FOUND, deviation="classic-groups-do-not-change-over"
    )


def test_a_header_that_lies_about_the_newest_timestamp(cluster: Cluster, wire: Wire, topic: str) -> None:
    now = now_ms()
    batch = build_batch([RecordToWrite(key=None, value=b"v", timestamp=now)])
    struct.pack_into(">q", batch, 35, now - 1000)  # the maximum of the batch's timestamps
    update_crc(batch)
    assert BatchView(batch).header.max_timestamp == now - 1000
    found = wire.produce(topic, batch)
    assert found.error_code == 0
    (view,) = batches(wire.fetch(topic, 0).records)
    assert view.header.max_timestamp == expected(
        cluster, apache=now, ours=now - 1000, deviation="a-headers-timestamps-are-believed"
    )
