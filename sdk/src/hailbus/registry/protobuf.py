"""Events as Protobuf: a message from an event class, values from JSON and back. Needs the extra `protobuf`.

The number of a field is its place in the class, counted from 1, unless `Annotated[int, Tag(7)]` gives one. So add
fields at the end, and give a `Tag` to those that stay when another is removed.
"""

from __future__ import annotations

import base64
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hailbus._extras import extra

with extra("protobuf"):
    from google.protobuf import duration_pb2, timestamp_pb2
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.json_format import MessageToJson, Parse
    from google.protobuf.message_factory import GetMessageClass

from hailbus.errors import ConfigurationError
from hailbus.event import Event, event_info
from hailbus.registry.written import written_name

__all__ = ["Tag", "indexes_of", "protobuf_reader", "protobuf_schema", "protobuf_writer", "varints"]

_SIMPLE: dict[type, FieldDescriptorProto.Type.ValueType] = {
    str: FieldDescriptorProto.TYPE_STRING,
    int: FieldDescriptorProto.TYPE_INT64,
    float: FieldDescriptorProto.TYPE_DOUBLE,
    bool: FieldDescriptorProto.TYPE_BOOL,
    bytes: FieldDescriptorProto.TYPE_BYTES,
    date: FieldDescriptorProto.TYPE_STRING,
    time: FieldDescriptorProto.TYPE_STRING,
    UUID: FieldDescriptorProto.TYPE_STRING,
    Decimal: FieldDescriptorProto.TYPE_STRING,
    timedelta: FieldDescriptorProto.TYPE_STRING,  # ISO 8601, as in JSON
}
TIMESTAMP = ".google.protobuf.Timestamp"


@dataclass(frozen=True, slots=True)
class Tag:
    """The number of a field in Protobuf: `Annotated[int, Tag(7)]`."""

    number: int


def protobuf_schema(cls: type[Event]) -> FileDescriptorProto:
    """Derive the Protobuf file of an event class: one message, with those of nested models inside.

    Raises:
        ConfigurationError: A field has a type that Protobuf cannot have, or two have one number; the message names it.
    """
    info = event_info(cls)
    package = f"{info.type}.v{info.version}".replace("-", "_")
    file = FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto",
        package=package,
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    _fill(file.message_type.add(), cls, f".{package}.{cls.__name__}", {cls: f".{package}.{cls.__name__}"}, file)
    return file


def _fill(
    message: DescriptorProto,
    model: type[BaseModel],
    path: str,
    known: dict[type, str],
    file: FileDescriptorProto,
) -> None:
    message.name = model.__name__
    numbers: dict[int, str] = {}
    for place, (name, field) in enumerate(model.model_fields.items(), start=1):
        where = f"field {model.__name__}.{name}"
        number = next((m.number for m in field.metadata if isinstance(m, Tag)), place)
        if number in numbers:
            text = f"{where} has the number {number} of {numbers[number]}; give it a Tag of its own"
            raise ConfigurationError(text)
        numbers[number] = name
        _add(message, model, field, number, where, path, known, file, name)


def _add(
    message: DescriptorProto,
    model: type[BaseModel],
    field: FieldInfo,
    number: int,
    where: str,
    path: str,
    known: dict[type, str],
    file: FileDescriptorProto,
    name: str,
) -> None:
    written = written_name(model, name, field)
    made = message.field.add(name=written, json_name=written, number=number)
    made.label = FieldDescriptorProto.LABEL_OPTIONAL
    kind, optional = _plain(field.annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        entry = message.nested_type.add(name=f"{''.join(part.title() for part in written.split('_'))}Entry")
        entry.options.map_entry = True
        key = entry.field.add(name="key", number=1, json_name="key", label=FieldDescriptorProto.LABEL_OPTIONAL)
        key.type = FieldDescriptorProto.TYPE_STRING
        value = entry.field.add(name="value", number=2, json_name="value", label=FieldDescriptorProto.LABEL_OPTIONAL)
        _set_type(value, model, _plain(arguments[1])[0], where, message, path, known, file)
        made.label, made.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
        made.type_name = f"{path}.{entry.name}"
        return
    if origin is not None and isinstance(origin, type) and issubclass(origin, (Sequence, AbstractSet)):
        made.label = FieldDescriptorProto.LABEL_REPEATED
        _set_type(made, model, _plain(arguments[0])[0], where, message, path, known, file)
        return
    _set_type(made, model, kind, where, message, path, known, file)
    if optional and made.type != FieldDescriptorProto.TYPE_MESSAGE:
        made.proto3_optional = True
        made.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{written}")


def _plain(kind: Any) -> tuple[Any, bool]:  # Any: annotations
    """An annotation without its wrappers, and whether it may be None."""
    while True:
        alias = getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)
        if alias is not None:
            kind = alias
        elif get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        else:
            break
    if get_origin(kind) in {Union, types.UnionType}:
        rest = [inner for inner in get_args(kind) if inner is not type(None)]
        if len(rest) == 1:
            return _plain(rest[0])[0], len(rest) < len(get_args(kind))
    return kind, False


def _has_base64(model: type[BaseModel]) -> bool:
    config = model.model_config
    return config.get("ser_json_bytes") == "base64" == config.get("val_json_bytes")


def _set_type(
    field: FieldDescriptorProto,
    model: type[BaseModel],
    kind: Any,  # Any: annotations
    where: str,
    message: DescriptorProto,
    path: str,
    known: dict[type, str],
    file: FileDescriptorProto,
) -> None:
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        kind = type(next(iter(kind)).value)
    if kind is datetime:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, TIMESTAMP
        return
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if kind not in known:
            known[kind] = f"{path}.{kind.__name__}"
            _fill(message.nested_type.add(), kind, known[kind], known, file)
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, known[kind]
        return
    if kind is bytes and not _has_base64(model):
        text = (
            f"{where} holds bytes, which are base64 in Protobuf's JSON; set ser_json_bytes='base64' and "
            "val_json_bytes='base64' in the model_config of its class"
        )
        raise ConfigurationError(text)
    for simple, found in _SIMPLE.items():
        if kind is simple or (simple in {str, int, float} and isinstance(kind, type) and issubclass(kind, simple)):
            if kind is bool:
                found = FieldDescriptorProto.TYPE_BOOL  # noqa: PLW2901 a bool is an int as well
            field.type = found
            return
    message_text = f"{where} has the type {kind!r}, which has no counterpart in Protobuf"
    raise ConfigurationError(message_text)


# ------------------------------------------------------------------------------------------------ values


def _message_class(file: FileDescriptorProto, indexes: Sequence[int]) -> Any:  # Any: a generated class
    pool = DescriptorPool()
    for builtin in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(builtin.DESCRIPTOR.serialized_pb)
    for name in file.dependency:
        _add_builtin(pool, name)
    pool.Add(file)
    found = file.message_type[indexes[0]]
    path = found.name
    for index in indexes[1:]:
        found = found.nested_type[index]
        path = f"{path}.{found.name}"
    return GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{path}" if file.package else path))


def _add_builtin(pool: DescriptorPool, name: str) -> None:
    """Add a file that comes with Protobuf, and what it imports."""
    from google.protobuf.descriptor_pool import Default

    try:
        file = Default().FindFileByName(name)
    except KeyError as error:
        message = f"the schema imports {name!r}, which neither comes with Protobuf nor is inside of it"
        raise ConfigurationError(message) from error
    for inner in file.dependencies:
        _add_builtin(pool, inner.name)
    pool.AddSerializedFile(file.serialized_pb)


def protobuf_writer(cls: type[Event]) -> Callable[[bytes], bytes]:
    """Make a function that turns an event's JSON value into Protobuf."""
    made = _message_class(protobuf_schema(cls), [0])

    def write(value: bytes) -> bytes:
        encoded: bytes = Parse(value, made(), ignore_unknown_fields=True).SerializeToString(deterministic=True)
        return encoded

    return write


def protobuf_reader(schema: str, indexes: Sequence[int]) -> Callable[[bytes], bytes]:
    """Make a function that turns a Protobuf value into JSON.

    Args:
        schema: The file, serialized, in base64: what registries give for `format=serialized`.
        indexes: Which message of the file, and of that message.
    """
    made = _message_class(FileDescriptorProto.FromString(base64.b64decode(schema)), indexes)

    def read(payload: bytes) -> bytes:
        return MessageToJson(
            made.FromString(payload), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        ).encode()

    return read


def message_name(schema: str, indexes: Sequence[int]) -> str:
    """The name of a message of a file, as it is declared there."""
    found = FileDescriptorProto.FromString(base64.b64decode(schema)).message_type[indexes[0]]
    for index in indexes[1:]:
        found = found.nested_type[index]
    return str(found.name)


def package_of(schema: str) -> str:
    """The package of a file."""
    return str(FileDescriptorProto.FromString(base64.b64decode(schema)).package)


# ------------------------------------------------------------------------------------------------ indexes


def varints(indexes: Sequence[int]) -> bytes:
    """Message indexes as Confluent writes them after a schema id: zigzag varints, `[0]` as one byte."""
    if list(indexes) == [0]:
        return b"\x00"
    out = bytearray()
    for number in (len(indexes), *indexes):
        left = number << 1
        while left > 0x7F:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)
    return bytes(out)


def indexes_of(payload: bytes) -> tuple[list[int], bytes]:
    """Message indexes at the beginning of some bytes, and the bytes after them.

    Raises:
        ValueError: There are none.
    """
    count, at = _varint(payload, 0)
    if count == 0:
        return [0], payload[at:]
    if count < 0 or count > 100:
        message = f"{count} message indexes"
        raise ValueError(message)
    found = []
    for _ in range(count):
        index, at = _varint(payload, at)
        found.append(index)
    return found, payload[at:]


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(payload) or shift > 35:
            message = "the message indexes end too early"
            raise ValueError(message)
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
