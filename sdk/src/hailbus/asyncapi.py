"""An AsyncAPI 3.0 document of services and their events, with Kafka bindings and message headers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from hailbus.catalogue import Catalogue
from hailbus.compatibility import type_text
from hailbus.envelope import STRUCTURED_CONTENT_TYPE
from hailbus.event import Event, EventInfo, FromHeader, Topic, event_info, type_and_version
from hailbus.needs import Need
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
        "__value_schema_id": {
            "type": "string",
            "format": "binary",
            "description": "Byte 1 and the GUID of the value's schema in the registry; only where one is used.",
        },
    },
}


def asyncapi(
    services: Sequence[Service],
    *,
    title: str,
    version: str,
    catalogue: Catalogue | None = None,
    servers: Sequence[str] = (),
    registry: str | None = None,
    schema_ids: Literal["header", "prefix"] = "header",
) -> dict[str, Any]:
    """The document, ready for `json.dumps`.

    Args:
        services: Services whose operations it shows.
        title: Of the application.
        version: Of the application.
        catalogue: Events to show besides those of the services.
        servers: Bootstrap addresses.
        registry: URL of the schema registry whose ids the records carry.
        schema_ids: Where they carry it.
    """
    server_binding: dict[str, Any] = {"bindingVersion": BINDING_VERSION}
    message_binding: dict[str, Any] = {"bindingVersion": BINDING_VERSION}
    if registry is not None:
        server_binding |= {"schemaRegistryUrl": registry, "schemaRegistryVendor": "confluent"}
        location = {"header": "header", "prefix": "payload"}[schema_ids]
        message_binding |= {"schemaIdLocation": location, "schemaLookupStrategy": "TopicRecordNameStrategy"}
        if location == "payload":
            message_binding["schemaIdPayloadEncoding"] = "confluent"
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
        is_structured = info.topic.content_mode == "structured" or any(
            cls in service.structured for service in services
        )
        messages[_message(cls)] = {
            "name": info.type,
            "title": f"{cls.__name__} v{info.version}",
            **({"summary": cls.__doc__.strip().splitlines()[0]} if cls.__doc__ else {}),
            "x-hailbus": {"type": info.type, "version": info.version, "key": info.key_field},
            **_layout(info, f"#/components/schemas/{_message(cls)}", is_structured=is_structured),
            "bindings": {"kafka": {**({"key": key} if key else {}), **message_binding}},
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
                        "bindings": {"kafka": server_binding},
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


def _layout(info: EventInfo, data: str, *, is_structured: bool) -> dict[str, Any]:
    """Content type, headers and payload of a message."""
    if is_structured:
        return _structured(info, data)
    if info.topic.content_mode == "plain":
        return _plain(info, data)
    binary = _binary(info, data)
    if info.topic.reads_plain:  # others write it without CloudEvents attributes
        plain = _plain(info, data)
        return {
            **binary,
            "headers": {"anyOf": [binary["headers"], plain["headers"]]},
            "payload": {"anyOf": [binary["payload"], plain["payload"]]}
            if plain["payload"] != binary["payload"]
            else binary["payload"],
        }
    return binary


def _plain(info: EventInfo, data: str) -> dict[str, Any]:
    """What a message says about an event without CloudEvents attributes: the header or field that names it."""
    topic = info.topic
    headers: dict[str, Any] = {"type": "object"}
    payload: dict[str, Any] = {"$ref": data}
    if topic.discriminator is not None:
        kind = (info.type, info.version)
        names = [name for name, text in topic.discriminator.names.items() if type_and_version(text) == kind]
        named: dict[str, Any] = {"enum": names} if names else {"const": info.type}
        if topic.default_event is not None and type_and_version(topic.default_event) == kind:
            named["description"] = "This event is meant where it is missing."
            required = []
        else:
            required = [topic.discriminator]
        if isinstance(topic.discriminator, FromHeader):
            headers |= {"properties": {topic.discriminator.name: named}}
            headers |= {"required": [found.name for found in required if isinstance(found, FromHeader)]}
        else:
            shape: dict[str, Any] = named
            for part in reversed(topic.discriminator.path.split(".")):
                shape = {"type": "object", "properties": {part: shape}, **({"required": [part]} if required else {})}
            payload = {"allOf": [payload, shape]}
    more = {
        source.name: {"type": "string", "description": f"CloudEvents attribute {name}."}
        for name, source in topic.attributes.items()
        if isinstance(source, FromHeader)
    }
    if more:
        headers["properties"] = {**headers.get("properties", {}), **more}
    return {"contentType": "application/json", "headers": headers, "payload": payload}


def _binary(info: EventInfo, data: str) -> dict[str, Any]:
    """What a message says about an event whose attributes are headers."""
    return {
        "contentType": "application/json",
        "headers": {
            "allOf": [
                {"$ref": "#/components/schemas/CloudEventHeaders"},
                {"properties": {"ce_type": {"const": info.type}, "ce_dataschema": {"const": info.dataschema}}},
            ]
        },
        "payload": {"$ref": data},
    }


def _structured(info: EventInfo, data: str) -> dict[str, Any]:
    """What a message says about an event that is whole in the value."""
    attributes = {
        name.removeprefix("ce_"): schema for name, schema in HEADERS["properties"].items() if name.startswith("ce_")
    }
    required = [name.removeprefix("ce_") for name in HEADERS["required"] if name.startswith("ce_")]
    return {
        "contentType": STRUCTURED_CONTENT_TYPE.decode(),
        "headers": {
            "type": "object",
            "required": ["content-type"],
            "properties": {"content-type": {"const": STRUCTURED_CONTENT_TYPE.decode()}},
        },
        "payload": {
            "type": "object",
            "required": [*required, "data"],
            "properties": {
                **attributes,
                "datacontenttype": HEADERS["properties"]["content-type"],
                "type": {"const": info.type},
                "dataschema": {"const": info.dataschema},
                "data": {"$ref": data},
            },
        },
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


# ------------------------------------------------------------------------------------------------ for people


def catalogue_page(
    services: Sequence[Service], *, title: str, catalogue: Catalogue | None = None, needs: Sequence[Need] = ()
) -> str:
    """One HTML page without references to any network: every event, who publishes and who consumes it, its fields.

    Args:
        services: Who publishes and consumes.
        title: Of the page.
        catalogue: Events to show besides those of the services.
        needs: What consumers have recorded to read; shown field by field.
    """
    events = _events(services, catalogue)
    rows: list[str] = []
    sections: list[str] = []
    for topic, on_topic in _by_topic(events):
        rows.append(f"<tr class='topic'><th colspan='5'>{_code(topic)}{_about(on_topic[0])}</th></tr>")
        for cls in on_topic:
            info = event_info(cls)
            own = [need for need in needs if (need.type, need.version) == (info.type, info.version)]
            publishers = sorted({s.name for s in services if cls in s.published})
            consumers = {x.group for s in services for x in s.subscriptions if cls in x.events}
            consumers |= {need.consumer for need in own}
            rows.append(
                f"<tr><td><a href='#{_message(cls)}'>{html.escape(info.type)}</a></td><td>v{info.version}</td>"
                f"<td>{_code(info.key_field)}</td><td>{_names(publishers)}</td><td>{_names(sorted(consumers))}</td></tr>"
            )
            sections.append(_section(cls, own))
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><style>:root{color-scheme:light dark}"
        "body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;width:100%}th,td{padding:.25rem .8rem .25rem 0;vertical-align:top;"
        "text-align:left;border-bottom:1px solid #8884}.topic th{padding-top:1.2rem}small{font-weight:400;opacity:.75}"
        "details{border:1px solid #8886;border-radius:.4rem;padding:.5rem .8rem;margin:.6rem 0}"
        "summary{cursor:pointer;min-height:24px;overflow-wrap:anywhere}pre,.wide{overflow:auto}code{font-size:.92em}"
        "</style><main>"
        f"<h1>{html.escape(title)}</h1><p>{len(events)} events on {len(_by_topic(events))} topics.</p>"
        "<div class='wide' tabindex='0' role='group' aria-label='Events by topic'><table><thead><tr>"
        "<th>Event</th><th></th><th>Key</th><th>Published by</th><th>Consumed by</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div><h2>Events</h2>{''.join(sections)}</main>"
        "<script>addEventListener('hashchange',open_);function open_(){const d=document.getElementById("
        "location.hash.slice(1));if(d){d.open=true;d.scrollIntoView()}}open_()</script></html>\n"
    )


def _section(cls: type[Event], needs: Sequence[Need]) -> str:
    info = event_info(cls)
    schema = cls.model_json_schema(mode="serialization")
    readers: Mapping[str, list[str]] = {
        name: sorted({need.consumer for need in needs if any(_begins(path, name) for path in need.fields)})
        for name in schema.get("properties", {})
    }
    fields = "".join(
        f"<tr><td>{_code(name)}</td><td>{html.escape(type_text(field))}</td>"
        f"<td>{_prose(str(field.get('description', '')))}</td>"
        f"<td>{_names(readers[name]) if needs else ''}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    return (
        f"<details id='{_message(cls)}'><summary><b>{html.escape(info.type)}</b> v{info.version} · "
        f"{_prose((cls.__doc__ or '').strip().splitlines()[0] if cls.__doc__ else '')}</summary>"
        f"<p>{_prose((cls.__doc__ or '').strip())}</p>"
        f"<div class='wide' tabindex='0' role='group' aria-label='Fields of {html.escape(info.type)}'>"
        "<table><thead><tr><th>Field</th><th>Type</th><th></th>"
        f"<th>{'Read by' if needs else ''}</th></tr></thead>{fields}</table></div>"
        "<details><summary>JSON Schema</summary>"
        f"<pre tabindex='0'>{html.escape(json.dumps(schema, indent=2))}</pre></details>"
        "</details>"
    )


def _begins(path: str, name: str) -> bool:
    return path == name or path.startswith((f"{name}.", f"{name}["))


def _about(cls: type[Event]) -> str:
    topic = event_info(cls).topic
    kept = f"kept {topic.retention.days} days" if topic.retention is not None and topic.retention.days else ""
    parts = [topic.description, f"{topic.partitions} partitions", topic.cleanup_policy, kept]
    return f" <small>{_prose(' · '.join(part for part in parts if part))}</small>"


def _code(text: str | None) -> str:
    return f"<code>{html.escape(text)}</code>" if text else "–"


def _prose(text: str) -> str:
    """Return a docstring's text as HTML, with what stands between backticks as code."""
    return re.sub(r"(`{1,2})([^`]+)\1", r"<code>\2</code>", html.escape(text))


def _names(names: Sequence[str]) -> str:
    return html.escape(", ".join(names)) or "–"
