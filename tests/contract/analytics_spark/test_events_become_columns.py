"""Every event has a home in silver: each field a column, each column of a type that holds the field's JSON."""

import re
from typing import Any

import pytest
from analytics_spark.schemas import column_name, event_columns, silver_specs, table_of
from hailbus import Event, event_info
from ride_events import CATALOGUE, TOPICS
from ride_events.rides import RideStarted

SCALARS = {"string": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}


@pytest.mark.parametrize(
    "event", list(CATALOGUE), ids=lambda event: f"{event_info(event).type}-v{event_info(event).version}"
)
def test_each_field_is_a_column_that_holds_its_json(event: type[Event]) -> None:
    info = event_info(event)
    columns = {column.name: column.type for column in silver_specs(CATALOGUE)[info.topic.name].columns}
    schema = event.model_json_schema(mode="serialization")
    for name, field in schema["properties"].items():
        assert columns[column_name(name)] == spark_type_of(field, schema.get("$defs", {})), name


def test_each_topic_has_a_table_of_its_own() -> None:
    names = [table_of(topic.name) for topic in TOPICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"silver\.[a-z][a-z0-9_]*", name) for name in names)
    assert "silver.quarantine" not in names


def test_a_new_field_is_a_new_column() -> None:
    class Tipped(RideStarted, type="ride.started", version=99):
        tip_minor: int = 0

    known = event_columns([RideStarted])
    assert event_columns([RideStarted, Tipped]) == known | {"tip_minor": "bigint"}


def spark_type_of(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The column type that JSON of this JSON Schema needs: a second way to it, from pydantic's own description."""
    if "$ref" in field:
        return spark_type_of(definitions[field["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in field:
        kinds = {spark_type_of(one, definitions) for one in field["anyOf"] if one.get("type") != "null"}
        return kinds.pop() if len(kinds) == 1 else "string"
    if field.get("format") == "date-time":
        return "timestamp"
    if field["type"] == "array":
        return f"array<{spark_type_of(field['items'], definitions)}>"
    if field["type"] == "object":
        inner = ", ".join(f"`{name}`: {spark_type_of(one, definitions)}" for name, one in field["properties"].items())
        return f"struct<{inner}>"
    return SCALARS[field["type"]]
