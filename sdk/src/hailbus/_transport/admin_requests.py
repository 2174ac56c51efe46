"""Administrative requests that the client library does not have, in its own vocabulary of schemas.

Field names, types and versions are those of Kafka's message specifications.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.protocol.api import RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    AbstractType,
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from hailbus.errors import ConfigurationError

__all__ = [
    "NO_TAGS",
    "TAGS",
    "AdminRequest",
    "Uuid",
    "consumer_group_describe",
    "delete_groups",
    "describe_configs",
    "describe_groups",
    "describe_producers",
    "describe_transactions",
    "incremental_alter_configs",
    "init_producer_id",
    "list_groups",
    "list_transactions",
    "offset_delete",
    "struct",
    "write_txn_markers",
]

_TEXT: Final = CompactString("utf-8")
TAGS: Final = ("tags", TaggedFields)
NO_TAGS: Final[dict[int, bytes]] = {}


class Uuid(AbstractType):  # type: ignore[misc]  # aiokafka is untyped
    """16 bytes."""

    @classmethod
    def decode(cls, data: io.BytesIO) -> bytes:
        """Read them."""
        return data.read(16)

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Write them."""
        return value


class AdminRequest:
    """One request, in the newest version that the broker serves.

    Args:
        name: For the error of a broker that does not serve it.
        key: API key.
        structs: By version.
        values: By version.
    """

    ALLOW_UNKNOWN_API_VERSION = False

    def __init__(
        self, name: str, key: int, structs: Mapping[int, type[Any]], values: Mapping[int, tuple[object, ...]]
    ) -> None:
        self.API_KEY = key
        self._name = name
        self._structs = structs
        self._values = values

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """What the client library sends; it calls this with the broker's versions."""
        first, last = versions.get(self.API_KEY, (0, -1))
        for version in sorted(self._structs, reverse=True):
            if first <= version <= last:
                return self._structs[version](*self._values[version])
        message = (
            f"the broker does not serve {self._name} in a version that this command knows "
            f"({', '.join(map(str, sorted(self._structs)))}); it may be too old"
        )
        raise ConfigurationError(message)


def struct(
    key: int,
    version: int,
    request: Schema,
    response: Schema,
    *,
    is_flexible: bool = True,
    has_tagged_answer: bool = True,
) -> type[Any]:
    """Return the class of a request in one version.

    Args:
        key: API key.
        version: API version.
        request: Fields of the request.
        response: Fields of the response.
        is_flexible: Whether the request header has tagged fields.
        has_tagged_answer: Whether the response header of a flexible version has them, too: that of ApiVersions has not.
    """
    name = f"Api{key}V{version}"
    answer = type(f"{name}Response", (Response,), {"API_KEY": key, "API_VERSION": version, "SCHEMA": response})
    members = {
        "API_KEY": key,
        "API_VERSION": version,
        "SCHEMA": request,
        "RESPONSE_TYPE": answer,
        "FLEXIBLE_VERSION": is_flexible,
    }
    if not has_tagged_answer:
        members["parse_response_header"] = lambda _, read_buffer: ResponseHeader_v0.decode(read_buffer)
    return type(f"{name}Request", (RequestStruct,), members)


# ------------------------------------------------------------------------------------------------------ transactions

_LIST_TRANSACTIONS_ANSWER: Final = Schema(
    ("throttle_time_ms", Int32),
    ("error_code", Int16),
    ("unknown_state_filters", CompactArray(_TEXT)),
    ("states", CompactArray(("transactional_id", _TEXT), ("producer_id", Int64), ("state", _TEXT), TAGS)),
    TAGS,
)
_LIST_TRANSACTIONS_FILTERS: Final = (("states", CompactArray(_TEXT)), ("producer_ids", CompactArray(Int64)))
_LIST_TRANSACTIONS: Final = {
    0: struct(66, 0, Schema(*_LIST_TRANSACTIONS_FILTERS, TAGS), _LIST_TRANSACTIONS_ANSWER),
    1: struct(66, 1, Schema(*_LIST_TRANSACTIONS_FILTERS, ("duration_ms", Int64), TAGS), _LIST_TRANSACTIONS_ANSWER),
    2: struct(
        66,
        2,
        Schema(*_LIST_TRANSACTIONS_FILTERS, ("duration_ms", Int64), ("pattern", _TEXT), TAGS),
        _LIST_TRANSACTIONS_ANSWER,
    ),
}


def list_transactions(
    *, producer_ids: list[int] | None = None, duration_ms: int = -1, pattern: str | None = None
) -> AdminRequest:
    """ListTransactions: answered by each broker for the transactional ids that it coordinates."""
    values: dict[int, tuple[object, ...]] = {2: ([], producer_ids or [], duration_ms, pattern, NO_TAGS)}
    if not pattern:
        values[1] = ([], producer_ids or [], duration_ms, NO_TAGS)
        if duration_ms < 0:
            values[0] = ([], producer_ids or [], NO_TAGS)
    structs = {version: _LIST_TRANSACTIONS[version] for version in values}
    return AdminRequest("ListTransactions with these filters", 66, structs, values)


_DESCRIBE_TRANSACTIONS: Final = struct(
    65,
    0,
    Schema(("transactional_ids", CompactArray(_TEXT)), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", _TEXT),
                ("state", _TEXT),
                ("timeout_ms", Int32),
                ("start_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), TAGS)),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def describe_transactions(transactional_ids: list[str]) -> AdminRequest:
    """DescribeTransactions, for the coordinator of these ids."""
    return AdminRequest("DescribeTransactions", 65, {0: _DESCRIBE_TRANSACTIONS}, {0: (transactional_ids, NO_TAGS)})


_DESCRIBE_PRODUCERS: Final = struct(
    61,
    0,
    Schema(("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), TAGS)), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", _TEXT),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("start_offset", Int64),
                                TAGS,
                            ),
                        ),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def describe_producers(partitions: Mapping[str, list[int]]) -> AdminRequest:
    """DescribeProducers, for the leader of these partitions."""
    topics = [(topic, indexes, NO_TAGS) for topic, indexes in partitions.items()]
    return AdminRequest("DescribeProducers", 61, {0: _DESCRIBE_PRODUCERS}, {0: (topics, NO_TAGS)})


_WRITE_TXN_MARKERS: Final = struct(
    27,
    1,
    Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("is_commit", Boolean),
                ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), TAGS)),
                ("coordinator_epoch", Int32),
                TAGS,
            ),
        ),
        TAGS,
    ),
    Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                (
                    "topics",
                    CompactArray(
                        ("topic", _TEXT),
                        ("partitions", CompactArray(("partition", Int32), ("error_code", Int16), TAGS)),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def write_txn_markers(
    topic: str, partition: int, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> AdminRequest:
    """WriteTxnMarkers with one abort, for the leader of the partition."""
    topics = [(topic, [partition], NO_TAGS)]
    marker = (producer_id, producer_epoch, False, topics, coordinator_epoch, NO_TAGS)
    return AdminRequest("WriteTxnMarkers", 27, {1: _WRITE_TXN_MARKERS}, {1: ([marker], NO_TAGS)})


_INIT_PRODUCER_ID: Final = struct(
    22,
    0,
    Schema(("transactional_id", String("utf-8")), ("timeout_ms", Int32)),
    Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("producer_id", Int64), ("producer_epoch", Int16)),
    is_flexible=False,
)


def init_producer_id(transactional_id: str, timeout_ms: int) -> AdminRequest:
    """InitProducerId, for the coordinator of the id: fences its producer and ends what that one has open."""
    return AdminRequest("InitProducerId", 22, {0: _INIT_PRODUCER_ID}, {0: (transactional_id, timeout_ms)})


# ------------------------------------------------------------------------------------------------------ groups

_LIST_GROUPS: Final = struct(
    16,
    5,
    Schema(("states", CompactArray(_TEXT)), ("types", CompactArray(_TEXT)), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            CompactArray(("group", _TEXT), ("protocol_type", _TEXT), ("state", _TEXT), ("type", _TEXT), TAGS),
        ),
        TAGS,
    ),
)


def list_groups(states: list[str], types: list[str]) -> AdminRequest:
    """ListGroups with states and types, answered by each broker for the groups that it coordinates."""
    return AdminRequest("ListGroups by state or type", 16, {5: _LIST_GROUPS}, {5: (states, types, NO_TAGS)})


_DESCRIBE_GROUPS: Final = struct(
    15,
    5,
    Schema(("groups", CompactArray(_TEXT)), ("include_operations", Boolean), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("group", _TEXT),
                ("state", _TEXT),
                ("protocol_type", _TEXT),
                ("protocol", _TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", _TEXT),
                        ("instance_id", _TEXT),
                        ("client_id", _TEXT),
                        ("host", _TEXT),
                        ("metadata", CompactBytes),
                        ("assignment", CompactBytes),
                        TAGS,
                    ),
                ),
                ("operations", Int32),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def describe_groups(group: str) -> AdminRequest:
    """DescribeGroups, for the group's coordinator: the classic protocol's view."""
    return AdminRequest("DescribeGroups", 15, {5: _DESCRIBE_GROUPS}, {5: ([group], False, NO_TAGS)})


def _consumer_group_describe(version: int) -> type[Any]:
    assignment = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("topic", _TEXT), ("partitions", CompactArray(Int32)), TAGS),
        ),
        TAGS,
    )
    member = (
        ("member_id", _TEXT),
        ("instance_id", _TEXT),
        ("rack_id", _TEXT),
        ("member_epoch", Int32),
        ("client_id", _TEXT),
        ("host", _TEXT),
        ("topics", CompactArray(_TEXT)),
        ("regex", _TEXT),
        ("assignment", assignment),
        ("target", assignment),
        *((("member_type", Int8),) if version >= 1 else ()),
        TAGS,
    )
    group = (
        ("error_code", Int16),
        ("error_message", _TEXT),
        ("group", _TEXT),
        ("state", _TEXT),
        ("group_epoch", Int32),
        ("assignment_epoch", Int32),
        ("assignor", _TEXT),
        ("members", CompactArray(*member)),
        ("operations", Int32),
        TAGS,
    )
    return struct(
        69,
        version,
        Schema(("groups", CompactArray(_TEXT)), ("include_operations", Boolean), TAGS),
        Schema(("throttle_time_ms", Int32), ("groups", CompactArray(*group)), TAGS),
    )


_CONSUMER_GROUP_DESCRIBE: Final = {version: _consumer_group_describe(version) for version in (0, 1)}


def consumer_group_describe(group: str) -> AdminRequest:
    """ConsumerGroupDescribe, for the group's coordinator: the consumer protocol's view (KIP-848)."""
    values = ([group], False, NO_TAGS)
    return AdminRequest(
        "ConsumerGroupDescribe", 69, _CONSUMER_GROUP_DESCRIBE, dict.fromkeys(_CONSUMER_GROUP_DESCRIBE, values)
    )


_DELETE_GROUPS: Final = struct(
    42,
    2,
    Schema(("groups", CompactArray(_TEXT)), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        ("results", CompactArray(("group", _TEXT), ("error_code", Int16), TAGS)),
        TAGS,
    ),
)


def delete_groups(group: str) -> AdminRequest:
    """DeleteGroups, for the group's coordinator."""
    return AdminRequest("DeleteGroups", 42, {2: _DELETE_GROUPS}, {2: ([group], NO_TAGS)})


_PLAIN_TEXT: Final = String("utf-8")
_OFFSET_DELETE: Final = struct(
    47,
    0,
    Schema(
        ("group", _PLAIN_TEXT),
        ("topics", Array(("topic", _PLAIN_TEXT), ("partitions", Array(("partition", Int32), ("_", Schema()))))),
    ),
    Schema(
        ("error_code", Int16),
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(("topic", _PLAIN_TEXT), ("partitions", Array(("partition", Int32), ("error_code", Int16)))),
        ),
    ),
    is_flexible=False,
)


def offset_delete(group: str, partitions: Mapping[str, list[int]]) -> AdminRequest:
    """OffsetDelete, for the group's coordinator."""
    topics = [(topic, [(index, ()) for index in indexes]) for topic, indexes in partitions.items()]
    return AdminRequest("OffsetDelete", 47, {0: _OFFSET_DELETE}, {0: (group, topics)})


# ------------------------------------------------------------------------------------------------------ configs

_DESCRIBE_CONFIGS: Final = struct(
    32,
    4,
    Schema(
        ("resources", CompactArray(("type", Int8), ("name", _TEXT), ("keys", CompactArray(_TEXT)), TAGS)),
        ("include_synonyms", Boolean),
        ("include_documentation", Boolean),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("type", Int8),
                ("name", _TEXT),
                (
                    "configs",
                    CompactArray(
                        ("name", _TEXT),
                        ("value", _TEXT),
                        ("is_read_only", Boolean),
                        ("source", Int8),
                        ("is_sensitive", Boolean),
                        ("synonyms", CompactArray(("name", _TEXT), ("value", _TEXT), ("source", Int8), TAGS)),
                        ("config_type", Int8),
                        ("documentation", _TEXT),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def describe_configs(resource_type: int, name: str) -> AdminRequest:
    """DescribeConfigs of one resource, all values."""
    values = ([(resource_type, name, None, NO_TAGS)], False, False, NO_TAGS)
    return AdminRequest("DescribeConfigs", 32, {4: _DESCRIBE_CONFIGS}, {4: values})


_INCREMENTAL_ALTER_CONFIGS: Final = struct(
    44,
    1,
    Schema(
        (
            "resources",
            CompactArray(
                ("type", Int8),
                ("name", _TEXT),
                ("configs", CompactArray(("name", _TEXT), ("operation", Int8), ("value", _TEXT), TAGS)),
                TAGS,
            ),
        ),
        ("validate_only", Boolean),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            CompactArray(("error_code", Int16), ("error_message", _TEXT), ("type", Int8), ("name", _TEXT), TAGS),
        ),
        TAGS,
    ),
)
SET: Final = 0
DELETE: Final = 1


def incremental_alter_configs(resource_type: int, name: str, add: Mapping[str, str], remove: list[str]) -> AdminRequest:
    """IncrementalAlterConfigs of one resource: what is not named stays."""
    configs: list[tuple[str, int, str | None, dict[int, bytes]]]
    configs = [(key, SET, value, NO_TAGS) for key, value in add.items()]
    configs += [(key, DELETE, None, NO_TAGS) for key in remove]
    resources = [(resource_type, name, configs, NO_TAGS)]
    values = (resources, False, NO_TAGS)
    return AdminRequest("IncrementalAlterConfigs", 44, {1: _INCREMENTAL_ALTER_CONFIGS}, {1: values})
