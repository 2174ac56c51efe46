"""Records of `__cluster_metadata`: a frame version, the record's type and version, its fields (KIP-631)."""

from __future__ import annotations

from typing import Final

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.codec import read_uvarint, write_uvarint
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.schema import Message

_FRAME_VERSION: Final = 1

# The versions that we write; all that exist are read.
_WRITTEN: Final[dict[type[Message], int]] = {
    RegisterBrokerRecord: 3,
    TopicRecord: 0,
    PartitionRecord: 1,
    ConfigRecord: 0,
    PartitionChangeRecord: 1,
    RemoveTopicRecord: 0,
    FeatureLevelRecord: 0,
    ProducerIdsRecord: 0,
    NoOpRecord: 0,
}
_TYPES: Final = {cls.__api_key__: cls for cls in _WRITTEN}


def encode_record(record: Message) -> bytes:
    """A record's value; metadata records have no key."""
    out = bytearray()
    version = _WRITTEN[type(record)]
    write_uvarint(_FRAME_VERSION, out)
    write_uvarint(record.__api_key__, out)
    write_uvarint(version, out)
    return bytes(codec.encode(record, version, out))


def decode_record(value: bytes | memoryview) -> Message:
    """The record in a value.

    Raises:
        ProtocolError: It is none that this broker knows.
    """
    view = memoryview(value)
    frame_version, position = read_uvarint(view, 0, len(view))
    if frame_version != _FRAME_VERSION:
        raise ProtocolError(f"a metadata record has frame version {frame_version}, known is {_FRAME_VERSION}")
    key, position = read_uvarint(view, position, len(view))
    version, position = read_uvarint(view, position, len(view))
    if key not in _TYPES:
        raise ProtocolError(f"a metadata record has the unknown type {key}")
    return codec.decode(_TYPES[key], view, version, position=position)
