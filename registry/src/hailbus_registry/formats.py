"""Avro and Protobuf schemas: what is one, and whether data of one can be read by another."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from hailbus.compatibility import Level

__all__ = ["avro_document", "format_breaks", "protobuf_document"]

Check = Callable[[Any, Any], list[str]]
"""Why a reader's schema cannot read data of a writer's."""


def avro_document(text: str) -> Any:  # Any: an Avro schema
    """Parse an Avro schema. Raises `ValueError` when it is none."""
    document = json.loads(text)
    try:
        fastavro.parse_schema(document)
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        message = str(error) or repr(error)
        raise ValueError(message) from error
    return document


def protobuf_document(text: str) -> FileDescriptorProto:
    """Parse a Protobuf file, serialized, in base64. Raises `ValueError` when it is none."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError) as error:
        message = "send the file descriptor, serialized and in base64, as Confluent's serializers do; not .proto text"
        raise ValueError(message) from error
    if not file.message_type:
        message = "it declares no message"
        raise ValueError(message)
    return file


def format_breaks(kind: str, new: Any, history: Sequence[Any], level: Level) -> list[str]:  # Any: parsed schemas
    """Why a level forbids a new schema after those of a history, oldest first; nothing when it allows it."""
    check: Check = avro_unreadable if kind == "AVRO" else protobuf_unreadable
    found: list[str] = []
    for old in history if level.is_transitive else history[-1:]:
        if level.checks_backward:
            found += [f"the new schema cannot read old data: {reason}" for reason in check(new, old)]
        if level.checks_forward:
            found += [f"old schemas cannot read new data: {reason}" for reason in check(old, new)]
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------ Avro

_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


def avro_unreadable(reader: Any, writer: Any) -> list[str]:  # Any: Avro schemas
    """Why a reader with one schema cannot read data of another, by Avro's rules of schema resolution."""
    return _Resolution(reader, writer).unreadable(reader, writer, "#")


class _Resolution:
    def __init__(self, reader: Any, writer: Any) -> None:
        self._readers: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        _named(reader, "", self._readers)
        _named(writer, "", self._writers)
        self._compared: set[tuple[str, str]] = set()

    def unreadable(self, reader: Any, writer: Any, path: str) -> list[str]:
        reader, writer = _found(reader, self._readers), _found(writer, self._writers)
        if isinstance(writer, list):
            return [reason for branch in writer for reason in self.unreadable(reader, branch, path)]
        if isinstance(reader, list):
            if any(not self.unreadable(branch, writer, path) for branch in reader):
                return []
            return [f"{path}: no branch of the reader's union takes {_kind(writer)}"]
        if _kind(reader) != _kind(writer):
            if _kind(reader) in _PROMOTIONS.get(_kind(writer), ()):
                return []
            return [f"{path}: {_kind(writer)} cannot be read as {_kind(reader)}"]
        match _kind(reader):
            case "record" | "error":
                return self._record(reader, writer, path)
            case "enum":
                missing = [name for name in writer["symbols"] if name not in reader["symbols"]]
                if missing and "default" not in reader:
                    return [f"{path}: the reader's enum lacks {', '.join(missing)} and has no default"]
                return _renamed(reader, writer, path)
            case "fixed":
                if reader["size"] != writer["size"]:
                    return [f"{path}: a fixed of {writer['size']} bytes cannot be read as one of {reader['size']}"]
                return _renamed(reader, writer, path)
            case "array":
                return self.unreadable(reader["items"], writer["items"], f"{path}[]")
            case "map":
                return self.unreadable(reader["values"], writer["values"], f"{path}{{}}")
            case _:
                return []

    def _record(self, reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> list[str]:
        if renamed := _renamed(reader, writer, path):
            return renamed
        pair = (_short(reader["name"]), _short(writer["name"]))
        if path != "#" and pair in self._compared:
            return []
        self._compared.add(pair)
        found = []
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            if source is not None:
                found += self.unreadable(field["type"], source["type"], f"{path}/{field['name']}")
            elif "default" not in field:
                found.append(f"{path}/{field['name']}: it is missing in the writer's schema and has no default")
        return found


def _renamed(reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> list[str]:
    names = {_short(reader["name"]), *(_short(alias) for alias in reader.get("aliases", ()))}
    if _short(writer["name"]) in names:
        return []
    return [f"{path}: {_kind(writer)} {_short(writer['name'])!r} is called {_short(reader['name'])!r} by the reader"]


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, Mapping) else schema)


def _named(schema: Any, namespace: str, found: dict[str, Any]) -> None:
    """Collect the named types of a schema, by short and by full name."""
    if isinstance(schema, list):
        for branch in schema:
            _named(branch, namespace, found)
    elif isinstance(schema, Mapping):
        if isinstance(schema.get("type"), (Mapping, list)):
            _named(schema["type"], namespace, found)
        if "name" in schema and "type" in schema:
            namespace = schema.get("namespace", namespace)
            found[_short(schema["name"])] = schema
            found[f"{namespace}.{_short(schema['name'])}"] = schema
        for field in schema.get("fields", ()):
            _named(field["type"], namespace, found)
        for inner in ("items", "values"):
            if inner in schema:
                _named(schema[inner], namespace, found)


def _found(schema: Any, named: Mapping[str, Any]) -> Any:
    """A schema without wrappers: a name becomes what it names, `{"type": "string"}` becomes `string`."""
    while True:
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        elif isinstance(schema, Mapping) and isinstance(schema["type"], (Mapping, list)):
            schema = schema["type"]
        else:
            return schema


# ------------------------------------------------------------------------------------------------ Protobuf

_F = FieldDescriptorProto
_SAME_ON_THE_WIRE = (
    {_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM},
    {_F.TYPE_SINT32, _F.TYPE_SINT64},
    {_F.TYPE_FIXED32, _F.TYPE_SFIXED32},
    {_F.TYPE_FIXED64, _F.TYPE_SFIXED64},
    {_F.TYPE_STRING, _F.TYPE_BYTES},
)


def protobuf_unreadable(reader: Any, writer: Any) -> list[str]:  # Any: file descriptors
    """Why a reader with one file cannot read data of another: what a number means has changed."""
    found: list[str] = []
    if reader.package != writer.package:
        found.append(f"the package {writer.package!r} is called {reader.package!r} by the reader")
    readers = _messages("", reader.message_type)
    for name, message in _messages("", writer.message_type).items():
        other = readers.get(name)
        if other is None:
            found.append(f"message {name} is missing in the reader's schema")
            continue
        fields = {field.number: field for field in other.field}
        for field in message.field:
            same = fields.get(field.number)
            if same is not None and (reason := _changed(same, field)):
                found.append(f"{name}.{field.name}: {reason}")
    return found


def _messages(prefix: str, messages: Sequence[DescriptorProto]) -> dict[str, DescriptorProto]:
    found: dict[str, DescriptorProto] = {}
    for message in messages:
        found[f"{prefix}{message.name}"] = message
        found |= _messages(f"{prefix}{message.name}.", message.nested_type)
    return found


def _changed(reader: FieldDescriptorProto, writer: FieldDescriptorProto) -> str:
    if reader.type != writer.type and not any({reader.type, writer.type} <= group for group in _SAME_ON_THE_WIRE):
        return f"number {writer.number} has another type in the reader's schema"
    if reader.type_name != writer.type_name and _F.TYPE_MESSAGE in {reader.type, writer.type}:
        return f"number {writer.number} is another message in the reader's schema"
    is_repeated = [field.label == _F.LABEL_REPEATED for field in (reader, writer)]
    if is_repeated[0] != is_repeated[1]:
        return f"number {writer.number} is repeated on one side only"
    if reader.name != writer.name:
        return f"number {writer.number} is called {reader.name!r} by the reader, so its values would change places"
    return ""
