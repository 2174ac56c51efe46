"""Administrative requests about the quorum, elections and reassignments, beside `admin_requests`.

Field names, types and versions are those of Kafka's message specifications.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
)

from hailbus._transport.admin_requests import NO_TAGS, TAGS, AdminRequest, Uuid, struct

__all__ = [
    "METADATA_TOPIC",
    "Features",
    "add_raft_voter",
    "alter_partition_reassignments",
    "api_versions",
    "describe_cluster",
    "describe_quorum",
    "elect_leaders",
    "features_in",
    "list_partition_reassignments",
    "remove_raft_voter",
    "update_features",
]

METADATA_TOPIC: Final = "__cluster_metadata"
_TEXT: Final = CompactString("utf-8")
_INT32S: Final = CompactArray(Int32)


class _UInt16(AbstractType):  # type: ignore[misc]  # aiokafka is untyped
    @classmethod
    def decode(cls, data: io.BytesIO) -> int:
        return int.from_bytes(data.read(2), "big")

    @classmethod
    def encode(cls, value: int) -> bytes:
        return value.to_bytes(2, "big")


_LISTENERS: Final = CompactArray(("name", _TEXT), ("host", _TEXT), ("port", _UInt16), TAGS)


# ------------------------------------------------------------------------------------------------------ the quorum

_REPLICAS: Final = CompactArray(
    ("replica_id", Int32),
    ("directory_id", Uuid),
    ("log_end_offset", Int64),
    ("last_fetch_ms", Int64),
    ("last_caught_up_ms", Int64),
    TAGS,
)
_DESCRIBE_QUORUM: Final = struct(
    55,
    2,
    Schema(
        ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(("index", Int32), TAGS)), TAGS)), TAGS
    ),
    Schema(
        ("error_code", Int16),
        ("error_message", _TEXT),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("index", Int32),
                        ("error_code", Int16),
                        ("error_message", _TEXT),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("high_watermark", Int64),
                        ("voters", _REPLICAS),
                        ("observers", _REPLICAS),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        ("nodes", CompactArray(("node_id", Int32), ("listeners", _LISTENERS), TAGS)),
        TAGS,
    ),
)


def describe_quorum() -> AdminRequest:
    """DescribeQuorum of the metadata."""
    topics = [(METADATA_TOPIC, [(0, NO_TAGS)], NO_TAGS)]
    return AdminRequest("DescribeQuorum with directories", 55, {2: _DESCRIBE_QUORUM}, {2: (topics, NO_TAGS)})


_VOTER: Final = (("voter_id", Int32), ("directory_id", Uuid))
_VOTER_ANSWER: Final = Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("error_message", _TEXT), TAGS)
_ADD_RAFT_VOTER: Final = {
    0: struct(
        80,
        0,
        Schema(("cluster_id", _TEXT), ("timeout_ms", Int32), *_VOTER, ("listeners", _LISTENERS), TAGS),
        _VOTER_ANSWER,
    ),
    1: struct(
        80,
        1,
        Schema(
            ("cluster_id", _TEXT),
            ("timeout_ms", Int32),
            *_VOTER,
            ("listeners", _LISTENERS),
            ("ack_when_committed", Boolean),
            TAGS,
        ),
        _VOTER_ANSWER,
    ),
}
_REMOVE_RAFT_VOTER: Final = struct(81, 0, Schema(("cluster_id", _TEXT), *_VOTER, TAGS), _VOTER_ANSWER)


def add_raft_voter(
    voter_id: int, directory_id: bytes, endpoints: Sequence[tuple[str, str, int]], *, timeout_ms: int
) -> AdminRequest:
    """AddRaftVoter, answered when the new voters are committed.

    Args:
        voter_id: Node id of the controller.
        directory_id: Of its metadata directory.
        endpoints: Listener, host and port of each of its controllers' listeners.
        timeout_ms: How long the leader may take.
    """
    listeners = [(*endpoint, NO_TAGS) for endpoint in endpoints]
    before = (None, timeout_ms, voter_id, directory_id, listeners)
    return AdminRequest("AddRaftVoter", 80, _ADD_RAFT_VOTER, {0: (*before, NO_TAGS), 1: (*before, True, NO_TAGS)})


def remove_raft_voter(voter_id: int, directory_id: bytes) -> AdminRequest:
    """RemoveRaftVoter, answered when the new voters are committed."""
    values = (None, voter_id, directory_id, NO_TAGS)
    return AdminRequest("RemoveRaftVoter", 81, {0: _REMOVE_RAFT_VOTER}, {0: values})


_BROKER: Final = (("broker_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))
_DESCRIBE_CLUSTER: Final = {
    0: struct(
        60,
        0,
        Schema(("include_operations", Boolean), TAGS),
        Schema(
            ("throttle_time_ms", Int32),
            ("error_code", Int16),
            ("error_message", _TEXT),
            ("cluster_id", _TEXT),
            ("controller_id", Int32),
            ("brokers", CompactArray(*_BROKER, TAGS)),
            ("operations", Int32),
            TAGS,
        ),
    ),
    2: struct(
        60,
        2,
        Schema(("include_operations", Boolean), ("endpoint_type", Int8), ("include_fenced", Boolean), TAGS),
        Schema(
            ("throttle_time_ms", Int32),
            ("error_code", Int16),
            ("error_message", _TEXT),
            ("endpoint_type", Int8),
            ("cluster_id", _TEXT),
            ("controller_id", Int32),
            ("brokers", CompactArray(*_BROKER, ("is_fenced", Boolean), TAGS)),
            ("operations", Int32),
            TAGS,
        ),
    ),
}
_OF_BROKERS: Final = 1


def describe_cluster(*, includes_fenced: bool = False) -> AdminRequest:
    """DescribeCluster: its id, and the brokers with their racks.

    Args:
        includes_fenced: Whether fenced brokers are listed, too, by a cluster that serves version 2.
    """
    values = {0: (False, NO_TAGS), 2: (False, _OF_BROKERS, includes_fenced, NO_TAGS)}
    return AdminRequest("DescribeCluster", 60, _DESCRIBE_CLUSTER, values)


# ------------------------------------------------------------------------------------------------------ features


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a broker says about features.

    Attributes:
        supported: Lowest and highest level that the broker supports, by feature.
        finalized: Level of each feature that the cluster has finalized.
        epoch: Offset of the metadata that `finalized` was read from; None if the broker has none.
    """

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int | None


_API_VERSIONS: Final = struct(
    18,
    # Before version 4 brokers leave out features whose lowest level is 0.
    4,
    Schema(("software_name", _TEXT), ("software_version", _TEXT), TAGS),
    Schema(
        ("error_code", Int16),
        ("api_keys", CompactArray(("api_key", Int16), ("first", Int16), ("last", Int16), TAGS)),
        ("throttle_time_ms", Int32),
        TAGS,
    ),
    has_tagged_answer=False,
)
_SUPPORTED_TAG, _EPOCH_TAG, _FINALIZED_TAG = 0, 1, 2
_LEVELS: Final = CompactArray(("name", _TEXT), ("first", Int16), ("second", Int16), TAGS)


def api_versions() -> AdminRequest:
    """ApiVersions, for the features in its answer: see `features_in`."""
    return AdminRequest("ApiVersions with features", 18, {4: _API_VERSIONS}, {4: ("hailbus-cli", "1", NO_TAGS)})


def features_in(answer: Any) -> Features:
    """Return the features in an answer to `api_versions`."""

    def levels(tag: int) -> list[tuple[str, int, int]]:
        found = _LEVELS.decode(io.BytesIO(answer.tags[tag])) if tag in answer.tags else []
        return [(name, first, second) for name, first, second, *_ in found]

    epoch = int.from_bytes(answer.tags.get(_EPOCH_TAG, b""), "big", signed=True) if _EPOCH_TAG in answer.tags else -1
    return Features(
        supported={name: (low, high) for name, low, high in levels(_SUPPORTED_TAG)},
        finalized={name: high for name, high, _ in levels(_FINALIZED_TAG)},
        epoch=epoch if epoch >= 0 else None,
    )


_UPDATES: Final = (
    ("timeout_ms", Int32),
    ("updates", CompactArray(("feature", _TEXT), ("level", Int16), ("upgrade_type", Int8), TAGS)),
    ("validate_only", Boolean),
    TAGS,
)
_UPDATED: Final = (("throttle_time_ms", Int32), ("error_code", Int16), ("error_message", _TEXT))
_UPDATE_FEATURES: Final = {
    1: struct(
        57,
        1,
        Schema(*_UPDATES),
        Schema(
            *_UPDATED,
            ("results", CompactArray(("feature", _TEXT), ("error_code", Int16), ("error_message", _TEXT), TAGS)),
            TAGS,
        ),
    ),
    2: struct(57, 2, Schema(*_UPDATES), Schema(*_UPDATED, TAGS)),
}


def update_features(levels: Mapping[str, int], upgrade_type: int, *, is_dry: bool, timeout_ms: int) -> AdminRequest:
    """UpdateFeatures: all of them, or none.

    Args:
        levels: The new level of each feature; 0 disables it.
        upgrade_type: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade.
        is_dry: Whether the controller validates the change without making it.
        timeout_ms: How long the controller may take.
    """
    updates = [(name, level, upgrade_type, NO_TAGS) for name, level in sorted(levels.items())]
    values = (timeout_ms, updates, is_dry, NO_TAGS)
    return AdminRequest("UpdateFeatures", 57, _UPDATE_FEATURES, {1: values, 2: values})


# ------------------------------------------------------------------------------------------------------ elections

_ELECT_LEADERS: Final = struct(
    43,
    2,
    Schema(
        ("election_type", Int8),
        ("topics", CompactArray(("topic", _TEXT), ("partitions", _INT32S), TAGS)),
        ("timeout_ms", Int32),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(("index", Int32), ("error_code", Int16), ("error_message", _TEXT), TAGS),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def elect_leaders(
    election_type: int, partitions: Mapping[str, Sequence[int]] | None, *, timeout_ms: int
) -> AdminRequest:
    """ElectLeaders; None for all partitions. Types: 0 preferred, 1 unclean."""
    topics = None if partitions is None else [(topic, list(found), NO_TAGS) for topic, found in partitions.items()]
    values = (election_type, topics, timeout_ms, NO_TAGS)
    return AdminRequest("ElectLeaders", 43, {2: _ELECT_LEADERS}, {2: values})


# ------------------------------------------------------------------------------------------------------ reassignments

_ALTER_REASSIGNMENTS: Final = struct(
    45,
    0,
    Schema(
        ("timeout_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT), ("partitions", CompactArray(("index", Int32), ("replicas", _INT32S), TAGS)), TAGS
            ),
        ),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", _TEXT),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(("index", Int32), ("error_code", Int16), ("error_message", _TEXT), TAGS),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def alter_partition_reassignments(
    replicas: Mapping[str, Mapping[int, Sequence[int] | None]], *, timeout_ms: int
) -> AdminRequest:
    """AlterPartitionReassignments: the replicas of each partition, or None to cancel its reassignment."""
    topics = [
        (
            topic,
            [(index, None if wanted is None else list(wanted), NO_TAGS) for index, wanted in partitions.items()],
            NO_TAGS,
        )
        for topic, partitions in replicas.items()
    ]
    values = (timeout_ms, topics, NO_TAGS)
    return AdminRequest("AlterPartitionReassignments", 45, {0: _ALTER_REASSIGNMENTS}, {0: values})


_LIST_REASSIGNMENTS: Final = struct(
    46,
    0,
    Schema(("timeout_ms", Int32), ("topics", CompactArray(("topic", _TEXT), ("partitions", _INT32S), TAGS)), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", _TEXT),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("index", Int32), ("replicas", _INT32S), ("adding", _INT32S), ("removing", _INT32S), TAGS
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def list_partition_reassignments(*, timeout_ms: int) -> AdminRequest:
    """ListPartitionReassignments of all partitions."""
    return AdminRequest("ListPartitionReassignments", 46, {0: _LIST_REASSIGNMENTS}, {0: (timeout_ms, None, NO_TAGS)})


def rows(answer: Any) -> list[tuple[str, Any]]:  # Any: of the client library
    """Return topic and partition result of each partition in an answer whose last field is its topics."""
    return [(topic, partition) for topic, partitions, *_ in answer.topics for partition in partitions]
