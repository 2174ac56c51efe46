"""The response of an API when the whole request failed: the same code in every place where it can stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hailbus_broker.protocol.api import response_class
from hailbus_broker.protocol.schema import Field, Message, Struct

if TYPE_CHECKING:
    from hailbus_broker.protocol.errors import ErrorCode

# Where a request and its response name the same list differently.
_SAME_LISTS = {
    "responses": ("topic_data", "topics", "topic_names"),
    "partition_responses": ("partition_data",),
    "results": ("topics", "resources", "groups_names"),
    "groups": ("groups", "groups_names"),
    "coordinators": ("coordinator_keys",),
    "partitions": ("partitions", "partition_indexes"),
    "topics": ("topics",),
    "markers": ("markers",),
    "partition_result": ("partitions",),
    "results_by_transaction": ("transactions",),
    "topic_results": ("topics",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "members": ("members",),
    "replica_election_results": ("topic_partitions",),
    "transaction_states": ("transactional_ids",),
}
_SAME_VALUES = {
    "partition_index": ("partition_index", "index", "partition"),
    "index": ("index",),
    "name": ("name", "topic"),
    "topic": ("topic", "name"),
    "key": ("key",),
    "group_id": ("group_id",),
}


class _Refusal(NamedTuple):
    code: ErrorCode
    text: str | None


def error_response(api_key: int, version: int, request: Message, code: ErrorCode, text: str | None = None) -> Message:
    """Mirror the request's lists into the response, with the code at every leaf that has one.

    Args:
        api_key: Of the request.
        version: Of the request.
        request: What was asked.
        code: Why it failed.
        text: What to do about it, for the responses that have an error message.
    """
    response = response_class(api_key)()
    _fill(response, request, version, _Refusal(code, text))
    return response


def _fill(response: Struct, request: object, version: int, refusal: _Refusal) -> None:
    for field in response.__fields__:
        if version not in field.versions:
            continue
        if field.name in {"error_code", "partition_error_code"}:
            setattr(response, field.name, refusal.code)
        elif field.name == "error_message":
            if refusal.text is not None:
                setattr(response, field.name, refusal.text)
        elif field.kind == "array" and isinstance(field.element, type):
            setattr(response, field.name, _mirror(field, request, version, refusal))
        elif isinstance(request, Struct) and field.name != "throttle_time_ms":
            for name in _SAME_VALUES.get(field.name, (field.name,)):
                value: Any = getattr(request, name, None)
                if value is not None and not isinstance(value, (list, Struct)):
                    setattr(response, field.name, value)
                    break


def _mirror(field: Field, request: object, version: int, refusal: _Refusal) -> list[Struct]:
    assert isinstance(field.element, type)
    for name in _SAME_LISTS.get(field.name, (field.name,)):
        items = getattr(request, name, None)
        if not items:
            continue
        mirrored = []
        for item in items:
            element = field.element()
            if isinstance(item, Struct):
                _fill(element, item, version, refusal)
            else:
                _fill(element, None, version, refusal)
                first = next((inner for inner in element.__fields__ if inner.kind in {"string", "int32"}), None)
                if first is not None:
                    setattr(element, first.name, item)
            mirrored.append(element)
        return mirrored
    return []
