"""The APIs by key: what versions they have and where their messages are described.

Definitions are loaded when a message of theirs is met for the first time, so that a broker starts without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Final

from hailbus_broker.protocol.definitions import APIS as _TABLE
from hailbus_broker.protocol.schema import Message


class ApiKey(IntEnum):
    """Number of a request in the protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the protocol's table."""

    key: int
    name: str
    first: int
    last: int
    flexible_since: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


APIS: Final = {key: Api(key, *row) for key, row in _TABLE.items()}


def header_versions(key: int, version: int) -> tuple[int, int]:
    """Version of the request header and of the response header."""
    if version >= APIS[key].flexible_since:
        # A client that does not know yet what the broker speaks must be able to read this one answer (KIP-511).
        return 2, 0 if key == ApiKey.API_VERSIONS else 1
    return 1, 0


@cache
def request_class(key: int) -> type[Message]:
    """The definition of an API's request."""
    return _load(APIS[key].name + "Request")


@cache
def response_class(key: int) -> type[Message]:
    """The definition of an API's response."""
    return _load(APIS[key].name + "Response")


def _load(name: str) -> type[Message]:
    module = "".join("_" + char.lower() if char.isupper() else char for char in name)[1:]
    found: type[Message] = getattr(import_module(f"hailbus_broker.protocol.definitions.{module}"), name)
    return found
