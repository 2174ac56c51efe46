"""Silver's columns, derived from the event classes: a field that is added to an event is a column at the next start.

One table per topic holds the fields of all its event types and versions; a row has null where its own event has no such
field.
"""

import re
import types
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hailbus import Catalogue, Event, event_info
from pydantic import BaseModel

from analytics_spark.tables import Column, TableSpec

__all__ = ["ENVELOPE", "column_name", "event_columns", "silver_spec", "silver_specs", "spark_type", "table_of"]

_LONG = "bigint"
_TEXT = "string"

ENVELOPE = (
    Column("ce_id", "string", "unique with ce_source"),
    Column("ce_source", "string"),
    Column("ce_type", "string"),
    Column("ce_version", "int"),
    Column("ce_time", "timestamp", "when it happened: event time"),
    Column("ce_subject", "string"),
    Column("correlation_id", "string"),
    Column("causation_id", "string"),
    Column("traceparent", "string"),
)
_COORDINATES = (
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp", "of the record"),
    Column("ingested_at", "timestamp", "when bronze landed it"),
    Column("silver_batch", "bigint"),
)
_FIXED = frozenset(column.name for column in (*ENVELOPE, *_COORDINATES))


def table_of(topic: str) -> str:
    """The silver table of a topic: `driver-locations.v1` → `silver.driver_locations`, `a.v2` → `silver.a_v2`."""
    base, _, version = topic.rpartition(".v")
    name = topic if not base or not version.isdigit() else base if version == "1" else f"{base}_v{version}"
    return "silver." + re.sub(r"[^a-z0-9_]", "_", name.lower())


def column_name(field: str) -> str:
    """The column of an event's field. An underscore keeps a field apart from the columns that every table has."""
    return f"{field}_" if field in _FIXED else field


def silver_specs(catalogue: Catalogue) -> dict[str, TableSpec]:
    """Topic → its silver table, for every topic of a catalogue."""
    return {topic.name: silver_spec(catalogue, topic.name) for topic in catalogue.topics}


def silver_spec(catalogue: Catalogue, topic: str) -> TableSpec:
    """The silver table of one topic."""
    fields = event_columns(catalogue.on_topic(topic))
    return TableSpec(
        name=table_of(topic),
        comment=f"Events of topic {topic}, typed, each event id once",
        columns=(
            *ENVELOPE,
            *(Column(column_name(name), kind) for name, kind in fields.items()),
            *_COORDINATES,
        ),
        partition="days(ce_time)",
        batch_column="silver_batch",
    )


def event_columns(events: Sequence[type[Event]]) -> dict[str, str]:
    """Field → Spark SQL type over several event classes, in the order of declaration.

    Where two classes give a field different types: numbers become double, everything else JSON text.
    """
    merged: dict[str, str] = {}
    # Older versions first, so that a new version appends its columns.
    for event in sorted(events, key=lambda cls: event_info(cls).version):
        for name, kind in _fields(event):
            known = merged.setdefault(name, kind)
            if known != kind:
                merged[name] = "double" if {known, kind} <= {_LONG, "double"} else _TEXT
    return merged


def _fields(model: type[BaseModel]) -> list[tuple[str, str]]:
    return [
        (info.serialization_alias or info.alias or name, spark_type(info.annotation, info.metadata))
        for name, info in model.model_fields.items()
    ]


def spark_type(annotation: Any, metadata: Sequence[Any] = ()) -> str:  # annotations are any expression
    """The Spark SQL type that holds the JSON which pydantic writes for a field.

    Args:
        annotation: As in the model: `str`, `int | None`, `tuple[LatLng, ...]`, …
        metadata: Of `Annotated`, for the digits of a Decimal.

    Returns:
        A type in Spark's DDL; `string` with the JSON text for what has no type of its own (unions, Any).
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return spark_type(arguments[0], arguments[1:])
    if origin in {Union, types.UnionType}:
        kinds = {spark_type(one, metadata) for one in arguments if one is not type(None)}
        return kinds.pop() if len(kinds) == 1 else "double" if kinds == {_LONG, "double"} else _TEXT
    if origin is Literal:
        return _of_values(arguments)
    if origin in {list, set, frozenset, Sequence} or (origin is tuple and arguments):
        inner = {spark_type(one) for one in arguments if one is not Ellipsis}
        return f"array<{inner.pop() if len(inner) == 1 else _TEXT}>"
    if origin in {dict, Mapping}:
        return f"map<string, {spark_type(arguments[1])}>"
    if not isinstance(annotation, type):
        return _TEXT
    if issubclass(annotation, Enum):
        return _of_values(tuple(member.value for member in annotation))
    if issubclass(annotation, BaseModel):
        return "struct<" + ", ".join(f"`{name}`: {kind}" for name, kind in _fields(annotation)) + ">"
    # bool before int and datetime before date: each is a subclass of the other.
    for kind, name in ((bool, "boolean"), (int, _LONG), (float, "double"), (datetime, "timestamp"), (date, "date")):
        if issubclass(annotation, kind):
            return name
    if issubclass(annotation, Decimal):
        return _decimal(metadata)
    # str, UUID, timedelta (ISO 8601), bytes, URLs …: pydantic writes text.
    return _TEXT


def _of_values(values: tuple[Any, ...]) -> str:
    kinds = {type(value) for value in values if value is not None}
    return {bool: "boolean", int: _LONG, float: "double"}.get(kinds.pop(), _TEXT) if len(kinds) == 1 else _TEXT


def _decimal(metadata: Sequence[Any]) -> str:
    digits, places = 38, 9
    # pydantic's Field keeps its constraints one level down.
    for part in (inner for outer in metadata for inner in (outer, *getattr(outer, "metadata", ()))):
        digits = getattr(part, "max_digits", None) or digits
        places = getattr(part, "decimal_places", None) or places
    return f"decimal({min(digits, 38)},{places})"
