"""Names and numbers that metadata is full of."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from hailbus_broker.protocol.errors import ProtocolError

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2
"""In a PartitionChangeRecord: the leader and its epoch stay."""


class ResourceType(IntEnum):
    """What a config belongs to, as in ConfigRecord and DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class InconsistentRecordError(ProtocolError):
    """A metadata record changes something that the image does not have. The node must stop."""
