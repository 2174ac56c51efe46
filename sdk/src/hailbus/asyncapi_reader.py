"""Contracts from an AsyncAPI 3.0 document: those that hailbus writes, and others whose payloads are JSON Schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hailbus.contract import Contract
from hailbus.errors import ConfigurationError
from hailbus.event import Topic

__all__ = ["contracts_in", "topics_in"]

Json = Any  # Any: JSON
_COMPONENT = "#/components/schemas/"
_VERSION = re.compile(r"(?P<name>.*?)[.\-_]?v(?P<version>[1-9][0-9]*)\Z")


def contracts_in(document: Mapping[str, Json]) -> list[Contract]:
    """A contract for each message of each channel.

    A message of hailbus says its type, version and key in `x-hailbus`. Of another the name is the type; a `v2` at its
    end, or at the end of its key, is the version; it has no key.

    Raises:
        ConfigurationError: It is no AsyncAPI 3 document, or has no messages.
    """
    if not str(document.get("asyncapi", "")).startswith("3."):
        message = f"it is no AsyncAPI 3 document: asyncapi is {document.get('asyncapi')!r}"
        raise ConfigurationError(message)
    found: dict[tuple[str, int], Contract] = {}
    for channel in _resolved(document, document.get("channels", {})).values():
        channel = _resolved(document, channel)  # noqa: PLW2901 the channel behind a reference
        topic = channel.get("bindings", {}).get("kafka", {}).get("topic") or channel.get("address")
        for name, reference in channel.get("messages", {}).items():
            message = _resolved(document, reference)
            own = message.get("x-hailbus", {})
            type_, version = own.get("type"), own.get("version")
            if type_ is None:
                type_, version = _named(str(message.get("name") or name), name)
            payload = message.get("payload", {})
            if "schemaFormat" in payload:
                payload = payload.get("schema", {})
            if _is_structured(message):
                # A structured event: what surrounds it is not part of its contract.
                payload = _resolved(document, payload).get("properties", {}).get("data", {})
            schema = _payload(document, payload)
            found[type_, version] = Contract(
                type=type_, version=version, topic=str(topic), key=own.get("key"), schema=schema
            )
    if not found:
        message = "the AsyncAPI document has no messages"
        raise ConfigurationError(message)
    return [contract for _, contract in sorted(found.items())]


def topics_in(document: Mapping[str, Json]) -> dict[str, Topic]:
    """The topics of a document's channels, with the settings of their Kafka bindings."""
    found: dict[str, Topic] = {}
    for channel in document.get("channels", {}).values():
        channel = _resolved(document, channel)  # noqa: PLW2901 what the reference leads to
        binding = channel.get("bindings", {}).get("kafka", {})
        name = binding.get("topic") or channel.get("address")
        configuration = dict(binding.get("topicConfiguration", {}))
        policy: Json = ",".join(sorted(configuration.pop("cleanup.policy", ["delete"])))
        retention_ms = configuration.pop("retention.ms", None)
        messages = [_resolved(document, message) for message in channel.get("messages", {}).values()]
        found[name] = Topic(
            name,
            partitions=int(binding.get("partitions", 6)),
            cleanup_policy=policy,
            retention=timedelta(milliseconds=retention_ms) if retention_ms is not None else None,
            config={key: str(value) for key, value in configuration.items()},
            description=str(channel.get("description", "")),
            content_mode="structured" if any(_is_structured(message) for message in messages) else None,
        )
    return found


def _is_structured(message: Mapping[str, Json]) -> bool:
    return str(message.get("contentType", "")).startswith("application/cloudevents")


def _named(name: str, key: str) -> tuple[str, int]:
    matched = _VERSION.match(name)
    if matched:
        return _type(matched["name"]), int(matched["version"])
    matched = _VERSION.match(key)
    return _type(name), int(matched["version"]) if matched else 1


def _type(name: str) -> str:
    """A name as hailbus allows it: lower case words joined by dots, at least two."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", ".", name).lower()
    words = re.sub(r"[^a-z0-9_.-]+", ".", words).strip(".-_")
    return words if "." in words else f"event.{words}"


def _resolved(document: Mapping[str, Json], node: Json) -> Json:
    for _ in range(20):
        if not isinstance(node, Mapping) or "$ref" not in node:
            break
        reference = str(node["$ref"])
        if not reference.startswith("#/"):
            message = f"the reference {reference} leads out of the document; put it in first, as `asyncapi bundle` does"
            raise ConfigurationError(message)
        node = document
        for part in reference[2:].split("/"):
            node = node.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, Mapping) else {}
    return node


def _payload(document: Mapping[str, Json], payload: Json) -> dict[str, Json]:
    """A payload that stands alone: every component that it refers to becomes one of its `$defs`."""
    definitions: dict[str, Json] = {}

    def inside(node: Json) -> Json:
        if isinstance(node, list):
            return [inside(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith(_COMPONENT):
            name = reference.rsplit("/", 1)[-1]
            if name not in definitions:
                definitions[name] = {}  # it may refer to itself
                definitions[name] = inside(_resolved(document, node))
            return {**{k: inside(v) for k, v in node.items() if k != "$ref"}, "$ref": f"#/$defs/{name}"}
        return {k: inside(v) for k, v in node.items() if k != "$defs"}

    schema: dict[str, Json] = inside(_resolved(document, payload))
    return {"$defs": definitions, **schema} if definitions else schema
