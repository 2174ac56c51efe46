"""Records of `__cluster_metadata`: a frame version, the record's type and version, its fields (KIP-631).

Every type of metadata level 30 is known. A record of another type or version is an error: a node that skipped it would
act on an image that the rest of the cluster does not have.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.codec import read_uvarint, write_uvarint
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.schema import Message

if TYPE_CHECKING:
    from hailbus_broker.records import Offset

METADATA_LEVEL: Final = 30
"""The `metadata.version` whose records are written here: that of Apache Kafka 4.3."""

_FRAME_VERSION: Final = 1
_NO_OFFSET: Final = -1

# Name and written version by type. All older versions are read.
_TYPES: Final[dict[int, tuple[str, int]]] = {
    0: ("RegisterBrokerRecord", 4),
    1: ("UnregisterBrokerRecord", 0),
    2: ("TopicRecord", 0),
    3: ("PartitionRecord", 2),
    4: ("ConfigRecord", 0),
    5: ("PartitionChangeRecord", 2),
    7: ("FenceBrokerRecord", 0),
    8: ("UnfenceBrokerRecord", 0),
    9: ("RemoveTopicRecord", 0),
    10: ("DelegationTokenRecord", 0),
    11: ("UserScramCredentialRecord", 0),
    12: ("FeatureLevelRecord", 0),
    14: ("ClientQuotaRecord", 0),
    15: ("ProducerIdsRecord", 0),
    17: ("BrokerRegistrationChangeRecord", 3),
    18: ("AccessControlEntryRecord", 0),
    19: ("RemoveAccessControlEntryRecord", 0),
    20: ("NoOpRecord", 0),
    21: ("ZkMigrationStateRecord", 0),
    22: ("RemoveUserScramCredentialRecord", 0),
    23: ("BeginTransactionRecord", 0),
    24: ("EndTransactionRecord", 0),
    25: ("AbortTransactionRecord", 0),
    26: ("RemoveDelegationTokenRecord", 0),
    27: ("RegisterControllerRecord", 0),
    28: ("ClearElrRecord", 0),
}
RECORD_TYPES: Final = tuple(_TYPES)


class UnknownRecordError(ProtocolError):
    """A metadata record that this version of the broker cannot apply. The node must stop.

    Attributes:
        type: API key of the record.
        version: Of the record.
        offset: In the metadata log, or -1 if the record has none, as in a snapshot.
    """

    def __init__(self, type_: int, version: int, offset: Offset) -> None:
        name = _TYPES[type_][0] if type_ in _TYPES else "unknown"
        super().__init__(
            f"the metadata record {_place(offset)}has type {type_} ({name}) in version {version}, which this broker "
            "does not know: run a broker that supports the cluster's metadata.version"
        )
        self.type = type_
        self.version = version
        self.offset = offset


def _place(offset: Offset) -> str:
    return "" if offset == _NO_OFFSET else f"at offset {offset} "


@cache
def record_class(key: int) -> type[Message]:
    """Return the definition of a record type; definitions are loaded when they are needed first."""
    name = _TYPES[key][0]
    module = "".join("_" + char.lower() if char.isupper() else char for char in name)[1:]
    found: type[Message] = getattr(import_module(f"hailbus_broker.protocol.definitions.{module}"), name)
    return found


def record_version(record: Message) -> int:
    """Return the version in which Apache Kafka writes a record at metadata level 30.

    That is the newest one, except for changes of a registration: these have the lowest version that has their fields.
    """
    if isinstance(record, BrokerRegistrationChangeRecord):
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    return _TYPES[record.__api_key__][1]


def encode_record(record: Message, version: int | None = None) -> bytes:
    """Return a record's value; metadata records have no key.

    Args:
        record: To write.
        version: Of the record; None for that of `record_version`.
    """
    out = bytearray()
    if version is None:
        version = record_version(record)
    write_uvarint(_FRAME_VERSION, out)
    write_uvarint(record.__api_key__, out)
    write_uvarint(version, out)
    return bytes(codec.encode(record, version, out))


def decode_record(value: bytes | memoryview, *, offset: Offset = _NO_OFFSET) -> Message:
    """Return the record in a value.

    Args:
        value: Of a record in the metadata log or in a snapshot.
        offset: Of that record, for the error.

    Raises:
        UnknownRecordError: The type or its version is not known here.
        ProtocolError: The bytes are no metadata record.
    """
    key, version, position, view = _frame(value, offset)
    if key not in _TYPES:
        raise UnknownRecordError(key, version, offset)
    cls = record_class(key)
    if version not in cls.__versions__:
        raise UnknownRecordError(key, version, offset)
    message, end = codec.decode_with_end(cls, view, version, position=position)
    if end != len(view):
        raise ProtocolError(f"the metadata record {_place(offset)}ends {len(view) - end} bytes before its value does")
    return message


def _frame(value: bytes | memoryview, offset: Offset) -> tuple[int, int, int, memoryview]:
    view = memoryview(value)
    frame_version, position = read_uvarint(view, 0, len(view))
    if frame_version != _FRAME_VERSION:
        raise ProtocolError(
            f"the metadata record {_place(offset)}has frame version {frame_version}; only {_FRAME_VERSION} is known"
        )
    key, position = read_uvarint(view, position, len(view))
    version, position = read_uvarint(view, position, len(view))
    return key, version, position, view
