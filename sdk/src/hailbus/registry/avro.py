"""Events as Avro: a schema from an event class, values from JSON and back. Needs the extra `avro` (fastavro)."""

from __future__ import annotations

import io
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from hailbus._extras import extra

with extra("avro"):
    import fastavro

from hailbus.errors import ConfigurationError
from hailbus.event import Event, event_info
from hailbus.registry.written import written_name

__all__ = ["avro_reader", "avro_schema", "avro_writer"]

ATTRIBUTE = "hailbus"
"""The attribute of a schema that names the event: Avro keeps attributes that it does not know."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SIMPLE: dict[Any, Any] = {  # Any: types, and Avro schemas
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    bytes: "bytes",
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
    Decimal: "string",  # exact, whatever its precision
    timedelta: "string",  # ISO 8601, as in JSON
}


def avro_schema(cls: type[Event]) -> dict[str, Any]:  # Any: JSON
    """Derive the Avro schema of an event class.

    Raises:
        ConfigurationError: A field has a type or a name that Avro cannot have; the message names it.
    """
    info = event_info(cls)
    namespace = info.type.rpartition(".")[0].replace("-", "_")
    derived = _Derivation(namespace, cls.__name__).record(cls)
    return {
        **derived,
        ATTRIBUTE: {"dataschema": info.dataschema, "topic": info.topic.name, "key": info.key_field},
    }


class _Derivation:
    """The schemas of one event's models; each is written once, and named after that."""

    def __init__(self, namespace: str, event: str) -> None:
        self._namespace = namespace
        self._event = event
        self._known: dict[str, type] = {}

    def record(self, model: type[BaseModel]) -> dict[str, Any]:
        """The record of a model."""
        fields = [self._field(model, name, field) for name, field in model.model_fields.items()]
        found: dict[str, Any] = {"type": "record", "name": model.__name__, "namespace": self._namespace}
        if doc := (model.__dict__.get("__doc__") or "").strip():
            found["doc"] = doc.splitlines()[0]
        return {**found, "fields": fields}

    def _field(self, model: type[BaseModel], name: str, field: FieldInfo) -> dict[str, Any]:
        written = written_name(model, name, field)
        where = f"{self._event}: field {model.__name__}.{name}"
        if not _NAME.match(written):
            message = f"{where} is written as {written!r}, which is no Avro name"
            raise ConfigurationError(message)
        default = field.default
        if default is PydanticUndefined and field.default_factory in {list, dict}:
            default = field.default_factory()
        schema = self.of(field.annotation, where, first=default)
        found: dict[str, Any] = {"name": written, "type": schema}
        plain = default.value if isinstance(default, Enum) else default
        if plain is None or isinstance(plain, (str, int, float, bool)) or plain in ([], {}):
            found["default"] = plain
        if field.description:
            found["doc"] = field.description
        return found

    def of(self, kind: Any, where: str, *, first: Any = PydanticUndefined) -> Any:  # Any: annotations, Avro schemas
        """The schema of an annotation. In a union the type of the default comes first, as Avro demands."""
        while (alias := getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)) is not None:
            kind = alias  # NewType, and `type X = …`
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(arguments[0], where, first=first)
        if origin in {Union, types.UnionType}:
            return self._union(arguments, where, first)
        if origin is Literal:
            return self.of(type(arguments[0]), where)
        if kind is type(None):
            return "null"
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self._enum(kind, where)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self._named(kind, where, lambda: self.record(kind))
        if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "map", "values": self.of(arguments[1], where)}
        if origin is not None and isinstance(origin, type) and issubclass(origin, (Sequence, AbstractSet)):
            return {"type": "array", "items": self.of(arguments[0], where)}
        for simple, schema in _SIMPLE.items():
            if kind is simple:
                return schema
        for simple, schema in ((bool, "boolean"), (str, "string"), (int, "long"), (float, "double")):
            if isinstance(kind, type) and issubclass(kind, simple):
                return schema
        message = f"{where} has the type {kind!r}, which has no counterpart in Avro"
        raise ConfigurationError(message)

    def _union(self, kinds: Sequence[Any], where: str, first: Any) -> Any:
        branches = []
        for kind in sorted(kinds, key=lambda kind: kind is not type(None) if first is None else kind is type(None)):
            schema = self.of(kind, where)
            if schema not in branches:
                branches.append(schema)
        return branches if len(branches) > 1 else branches[0]

    def _enum(self, kind: type[Enum], where: str) -> Any:
        values = [member.value for member in kind]
        if all(isinstance(value, str) and _NAME.match(value) for value in values):
            return self._named(kind, where, lambda: {"type": "enum", "name": kind.__name__, "symbols": values})
        return self.of(type(values[0]), where)

    def _named(self, kind: type, where: str, derive: Callable[[], dict[str, Any]]) -> Any:
        known = self._known.get(kind.__name__)
        if known is kind:
            return kind.__name__
        if known is not None:
            message = f"{where}: two types are called {kind.__name__}; Avro needs a name for each"
            raise ConfigurationError(message)
        self._known[kind.__name__] = kind
        return derive()


def avro_writer(cls: type[Event]) -> Callable[[bytes], bytes]:
    """Make a function that turns an event's JSON value into Avro.

    Raises:
        ConfigurationError: As `avro_schema`.
    """
    derived = avro_schema(cls)
    schema, namespace = fastavro.parse_schema(derived), derived["namespace"]
    validate = cls.__pydantic_validator__.validate_json

    def write(value: bytes) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, _datum(validate(value), namespace))
        return out.getvalue()

    return write


def _datum(value: Any, namespace: str) -> Any:  # Any: whatever a field holds, and what Avro takes
    match value:
        case Enum():
            return value.value
        case BaseModel():
            model = type(value)
            # The first tells fastavro the branch of a union of records.
            return {"-type": f"{namespace}.{model.__name__}"} | {
                written_name(model, name, field): _datum(getattr(value, name), namespace)
                for name, field in model.model_fields.items()
            }
        case Mapping():
            return {str(_datum(name, namespace)): _datum(inner, namespace) for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_datum(inner, namespace) for inner in value]
        case datetime():
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        case Decimal():
            return str(value)
        case timedelta():
            return to_jsonable_python(value)
        case _:
            return value


def avro_reader(schema: Any) -> Callable[[bytes], bytes]:  # Any: an Avro schema
    """Make a function that turns an Avro value, written with this schema, into JSON."""
    parsed = fastavro.parse_schema(schema)

    def read(payload: bytes) -> bytes:
        found = fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)
        return json.dumps(found, default=_as_json, ensure_ascii=False, separators=(",", ":")).encode()

    return read


def _as_json(value: Any) -> Any:  # Any: what Avro gives and JSON lacks
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    return str(value)
