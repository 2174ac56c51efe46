"""An AsyncAPI 3.0 document of services and their events, with Kafka bindings and message headers."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from hailbus.catalogue import Catalogue
from hailbus.event import Event, Topic, event_info
from hailbus.service import Service

__all__ = ["asyncapi", "catalogue_page"]

BINDING_VERSION = "0.5.0"
HEADERS: dict[str, Any] = {
    "type": "object",
    "required": ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_dataschema", "content-type"],
    "properties": {
        "ce_specversion": {"const": "1.0"},
        "ce_id": {"type": "string", "description": "Unique with ce_source; consumers dedupe on both."},
        "ce_source": {"type": "string", "format": "uri-reference"},
        "ce_type": {"type": "string"},
        "ce_time": {"type": "string", "format": "date-time", "description": "Event time."},
        "ce_dataschema": {"type": "string", "description": "hailbus:<type>/v<version>"},
        "ce_subject": {"type": "string", "description": "The record key as text."},
        "ce_correlationid": {"type": "string"},
        "ce_causationid": {"type": "string"},
        "ce_traceparent": {"type": "string"},
        "content-type": {"const": "application/json"},
    },
}


def asyncapi(
    services: Sequence[Service],
    *,
    title: str,
    version: str,
    catalogue: Catalogue | None = None,
    servers: Sequence[str] = (),
) -> dict[str, Any]:
    """The document, ready for `json.dumps`.

    Args:
        services: Whose operations it shows.
        title: Of the application.
        version: Of the application.
        catalogue: Events to show besides those of the services.
        servers: Bootstrap addresses.
    """
    events = _events(services, catalogue)
    channels: dict[str, Any] = {}
    for topic in sorted({event_info(cls).topic for cls in events}, key=lambda t: t.name):
        on_topic = [cls for cls in events if event_info(cls).topic.name == topic.name]
        channels[_slug(topic.name)] = {
            "address": topic.name,
            **({"description": topic.description} if topic.description else {}),
            "messages": {_message(cls): {"$ref": f"#/components/messages/{_message(cls)}"} for cls in on_topic},
            "bindings": {"kafka": _channel_binding(topic)},
        }
    operations: dict[str, Any] = {}
    for service in services:
        for topic_name, published in _by_topic(service.published):
            operations[_slug(f"{service.name}-sends-{topic_name}")] = _operation("send", topic_name, published, {})
        for group in sorted({subscription.group for subscription in service.subscriptions}):
            handled = [cls for s in service.subscriptions if s.group == group for cls in s.events]
            for topic_name, consumed in _by_topic(handled):
                binding = {
                    "groupId": {"type": "string", "const": group},
                    "clientId": {"type": "string", "const": service.name},
                    "bindingVersion": BINDING_VERSION,
                }
                name = _slug(
                    f"{service.name}-{group}-receives-{topic_name}"
                    if group != service.name
                    else f"{group}-receives-{topic_name}"
                )
                operations[name] = _operation("receive", topic_name, consumed, {"kafka": binding})
    schemas: dict[str, Any] = {"CloudEventHeaders": HEADERS}
    messages: dict[str, Any] = {}
    for cls in events:
        info = event_info(cls)
        schema = cls.model_json_schema(
            mode="serialization", ref_template=f"#/components/schemas/{_message(cls)}/$defs/{{model}}"
        )
        schemas[_message(cls)] = schema
        key = schema.get("properties", {}).get(info.key_field, {"type": "string"}) if info.key_field else None
        messages[_message(cls)] = {
            "name": info.type,
            "title": f"{cls.__name__} v{info.version}",
            **({"summary": cls.__doc__.strip().splitlines()[0]} if cls.__doc__ else {}),
            "contentType": "application/json",
            "x-hailbus": {"type": info.type, "version": info.version, "key": info.key_field},
            "headers": {"$ref": "#/components/schemas/CloudEventHeaders"},
            "payload": {"$ref": f"#/components/schemas/{_message(cls)}"},
            "bindings": {"kafka": {**({"key": key} if key else {}), "bindingVersion": BINDING_VERSION}},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        **(
            {
                "servers": {
                    f"kafka{index}": {
                        "host": host,
                        "protocol": "kafka",
                        "bindings": {"kafka": {"bindingVersion": BINDING_VERSION}},
                    }
                    for index, host in enumerate(servers)
                }
            }
            if servers
            else {}
        ),
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


def _events(services: Sequence[Service], catalogue: Catalogue | None) -> list[type[Event]]:
    found = {
        cls
        for service in services
        for cls in (*service.published, *(c for s in service.subscriptions for c in s.events))
    }
    found |= set(catalogue or ())
    return sorted(found, key=lambda cls: (event_info(cls).type, event_info(cls).version))


def _by_topic(events: Iterable[type[Event]]) -> list[tuple[str, list[type[Event]]]]:
    found: dict[str, list[type[Event]]] = {}
    for cls in events:
        found.setdefault(event_info(cls).topic.name, []).append(cls)
    return sorted(found.items())


def _operation(action: str, topic: str, events: Sequence[type[Event]], bindings: dict[str, Any]) -> dict[str, Any]:
    channel = f"#/channels/{_slug(topic)}"
    return {
        "action": action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{_message(cls)}"} for cls in events],
        **({"bindings": bindings} if bindings else {}),
    }


def _channel_binding(topic: Topic) -> dict[str, Any]:
    configs = topic.kafka_config()
    configuration: dict[str, Any] = {"cleanup.policy": configs["cleanup.policy"].split(",")}
    for name in ("retention.ms", "retention.bytes", "delete.retention.ms", "max.message.bytes"):
        if name in configs:
            configuration[name] = int(configs[name])
    return {
        "topic": topic.name,
        "partitions": topic.partitions,
        "topicConfiguration": configuration,
        "bindingVersion": BINDING_VERSION,
    }


def _message(cls: type[Event]) -> str:
    info = event_info(cls)
    return f"{_slug(info.type)}-v{info.version}"


def _slug(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")


def catalogue_page(services: Sequence[Service], *, title: str, catalogue: Catalogue | None = None) -> str:
    """One offline HTML page: every event with its fields, topic, key, and who publishes and consumes it."""
    rows = []
    for cls in _events(services, catalogue):
        info = event_info(cls)
        publishers = sorted({s.name for s in services if cls in s.published})
        consumers = sorted({x.group for s in services for x in s.subscriptions if cls in x.events})
        schema = cls.model_json_schema(mode="serialization")
        fields = "".join(
            f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_type_text(field))}</td>"
            f"<td>{html.escape(str(field.get('description', '')))}</td></tr>"
            for name, field in schema.get("properties", {}).items()
        )
        rows.append(
            f"<details id='{_message(cls)}'><summary><b>{html.escape(info.type)}</b> v{info.version} · topic "
            f"<code>{html.escape(info.topic.name)}</code> · key <code>{html.escape(info.key_field or '–')}</code> · "
            f"from {html.escape(', '.join(publishers) or '–')} · "
            f"to {html.escape(', '.join(consumers) or '–')}</summary>"
            f"<p>{html.escape((cls.__doc__ or '').strip())}</p><table>{fields}</table>"
            f"<details><summary>JSON Schema</summary><pre>{html.escape(json.dumps(schema, indent=2))}</pre></details>"
            "</details>"
        )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        "<style>body{font:15px system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "details{border-bottom:1px solid #ccc;padding:.5rem 0}table{border-collapse:collapse}"
        "td{padding:.1rem .8rem .1rem 0;vertical-align:top}pre{overflow:auto}</style>"
        f"<h1>{html.escape(title)}</h1>{''.join(rows)}</html>\n"
    )


def _type_text(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in field:
        return " | ".join(_type_text(choice) for choice in field["anyOf"])
    if "enum" in field or "const" in field:
        return " | ".join(str(value) for value in field.get("enum", [field.get("const")]))
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type_text(field.get('items', {}))}"
    return f"{kind} ({field['format']})" if "format" in field else kind
