"""A coordinator that loads any records takes them in or raises ProtocolError, and goes on with what it then has."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.consumer_records import CONSUMER_VALUE_TYPES
from hailbus_broker.coordinators.group.shard import KEY_TYPES, GroupShard
from hailbus_broker.coordinators.transaction.shard import TransactionConfig, TransactionShard
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.group_metadata_value import GroupMetadataValue
from hailbus_broker.protocol.definitions.offset_commit_value import OffsetCommitValue
from hailbus_broker.protocol.definitions.transaction_log_key import TransactionLogKey
from hailbus_broker.protocol.definitions.transaction_log_value import TransactionLogValue
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.schema import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.broker.test_decoders import struct_of

VALUE_TYPES: dict[int, type[Message]] = {
    0: OffsetCommitValue,
    1: OffsetCommitValue,
    2: GroupMetadataValue,
    **CONSUMER_VALUE_TYPES,
}
NAMES = {"group": "g", "group_id": "g", "member_id": "m", "topic": "t", "transactional_id": "i"}
Record = tuple[bytes, bytes | None]


@st.composite
def records(draw: st.DrawFn, keys: dict[int, type[Message]], values: dict[int, type[Message]]) -> Record:
    """A record of the right form with any content; often damaged."""
    number = draw(st.sampled_from(sorted(keys)))
    key = draw(struct_of(keys[number], 0))
    if draw(st.booleans()):  # of the same group or member as other records
        for field, name in NAMES.items():
            if hasattr(key, field):
                setattr(key, field, name)
    key_data = bytes(codec.encode(key, 0, bytearray(struct.pack(">h", number))))
    if draw(st.integers(0, 5)) == 0:
        return key_data, None
    cls = values[number]
    version = draw(st.integers(cls.__versions__.first, cls.__versions__.last))
    value_data = codec.encode(draw(struct_of(cls, version)), version, bytearray(struct.pack(">h", version)))
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=40) | st.just(key_data)), bytes(value_data[: draw(st.integers(0, 60))])
    return key_data, bytes(value_data)


@settings(max_examples=50, deadline=None)
@given(st.lists(records(KEY_TYPES, VALUE_TYPES), max_size=8))
@example(
    [
        (
            b"\x00\x02\x00\x00",  # a group without name, in its last generation, with a member
            bytes.fromhex("0002 0000 7fffffff ffff ffff" + "00" * 8 + "00000001 000130" + "00" * 20),
        )
    ]
)
def test_a_group_shard_takes_in_any_records(found: list[Record]) -> None:
    shard = GroupShard(
        GroupConfig(), image=MetadataImage(), group_settings=lambda _: (45_000, 5_000), rng=random.Random(1)
    )
    for key, value in found:
        with suppress(ProtocolError):
            shard.replay(key, value, now_ms=1_000)
    for group in shard.list_groups():
        shard.describe(group.group_id)
        shard.describe_consumer(group.group_id)
        shard.subscribed_topics(group.group_id)
    shard.expire_offsets(wall_ms=2**50)
    for _ in range(20):
        due_ms = shard.next_deadline_ms()
        if due_ms is None:
            break
        for outcome in shard.tick(due_ms, wall_ms=2_000):
            outcome.install()
            for record in outcome.records:
                shard.replay(record.encode_key(), record.encode_value(), now_ms=due_ms)


@settings(max_examples=50, deadline=None)
@given(st.lists(records({0: TransactionLogKey}, {0: TransactionLogValue}), max_size=6))
def test_a_transaction_shard_takes_in_any_records(found: list[Record]) -> None:
    shard = TransactionShard(TransactionConfig(), coordinator_epoch=1)
    for key, value in found:
        with suppress(ProtocolError):
            shard.replay(key, value, now_ms=1_000, wall_ms=2_000)
    for name in list(shard.transactions):
        shard.describe(name)
    shard.resume()
    for outcome in shard.tick(2**62, wall_ms=2_000):
        outcome.install()
        for record in outcome.records:
            shard.replay(record.encode_key(), record.encode_value(), now_ms=2**62)
