"""Proposed changes of a schema: what comes out, and which cannot be proposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dashboard.domain import proposals
from dashboard.domain.contracts import Contracts
from dashboard.domain.proposals import ProposalError, Schema
from hailbus.contract import contract_of
from ride_events import CATALOGUE

PLACE: Schema = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "lng": {"type": "number"}},
    "required": ["lat", "lng"],
}
SCHEMA: Schema = {
    "$defs": {"Place": PLACE},
    "type": "object",
    "properties": {
        "ride_id": {"type": "string"},
        "pickup": {"$ref": "#/$defs/Place"},
        "dropoff": {"$ref": "#/$defs/Place"},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        "seats": {"type": "integer", "default": 1},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["ride_id", "pickup", "dropoff", "stops", "seats", "note"],
}


def paths(schema: Schema) -> list[str]:
    return [path for path, _, _ in proposals.fields(schema)]


def field(schema: Schema, path: str) -> Schema:
    return next(found for name, found, _ in proposals.fields(schema) if name == path)


def is_present(schema: Schema, path: str) -> bool:
    return next(found for name, _, found in proposals.fields(schema) if name == path)


def test_fields_are_listed_through_references_and_lists() -> None:
    assert paths(proposals.inlined(SCHEMA)) == [
        "ride_id",
        "pickup",
        "pickup.lat",
        "pickup.lng",
        "dropoff",
        "dropoff.lat",
        "dropoff.lng",
        "stops",
        "stops[].lat",
        "stops[].lng",
        "seats",
        "note",
    ]


def test_every_event_of_the_language_can_be_shown_and_changed() -> None:
    contracts = Contracts(CATALOGUE, [])
    assert len(contracts.entries) == len(CATALOGUE)
    for cls in CATALOGUE:
        schema = contract_of(cls).schema
        for path in paths(proposals.inlined(schema)):
            assert path not in paths(proposals.remove(schema, path))


def test_a_change_of_one_place_leaves_the_others_and_the_original() -> None:
    changed = proposals.remove(SCHEMA, "pickup.lat")
    assert "pickup.lat" not in paths(changed)
    assert {"dropoff.lat", "stops[].lat"} <= set(paths(changed))
    assert changed["properties"]["pickup"]["required"] == ["lng"]
    assert "lat" in PLACE["properties"]
    assert "stops[].lng" not in paths(proposals.remove(SCHEMA, "stops[].lng"))


def test_a_renamed_field_keeps_its_place_and_presence() -> None:
    changed = proposals.rename(SCHEMA, "ride_id", "trip_id")
    assert paths(changed)[0] == "trip_id"
    assert changed["required"][0] == "trip_id"


def test_required_fields_have_no_default_and_optional_ones_are_null_by_default() -> None:
    required = proposals.require(SCHEMA, "seats")
    assert (field(required, "seats"), is_present(required, "seats")) == ({"type": "integer"}, True)
    optional = proposals.make_optional(SCHEMA, "ride_id")
    assert field(optional, "ride_id") == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    nullable = proposals.make_optional(SCHEMA, "pickup")
    assert {"pickup.lat", "pickup.lng"} <= set(paths(nullable))


def test_another_type_keeps_a_default_that_it_has() -> None:
    assert field(proposals.retype(SCHEMA, "seats", "number", is_nullable=False), "seats") == {
        "type": "number",
        "default": 1,
    }
    assert field(proposals.retype(SCHEMA, "seats", "string", is_nullable=False), "seats") == {"type": "string"}
    assert "anyOf" in field(proposals.retype(SCHEMA, "ride_id", "string", is_nullable=True), "ride_id")


def test_a_field_is_added_with_and_without_default() -> None:
    without = proposals.add(SCHEMA, "tip", "integer", is_nullable=False)
    assert (field(without, "tip"), is_present(without, "tip")) == ({"type": "integer"}, True)
    null = proposals.add(SCHEMA, "pickup.floor", "integer", is_nullable=True, default=None)
    assert field(null, "pickup.floor")["default"] is None
    assert "dropoff.floor" not in paths(null)
    assert "stops[].floor" in paths(proposals.add(SCHEMA, "stops[].floor", "integer", is_nullable=False, default=0))


REFUSED: dict[str, Callable[[], Any]] = {
    "there is no field 'tip'; there are ride_id, pickup, pickup.lat": lambda: proposals.remove(SCHEMA, "tip"),
    "there is no field 'pickup.up'": lambda: proposals.rename(SCHEMA, "pickup.up", "down"),
    "there is a field 'lng' already": lambda: proposals.rename(SCHEMA, "pickup.lat", "lng"),
    "ride_id is required already": lambda: proposals.require(SCHEMA, "ride_id"),
    "note is optional already": lambda: proposals.make_optional(SCHEMA, "note"),
    "seats is integer already": lambda: proposals.retype(SCHEMA, "seats", "integer", is_nullable=False),
    "there is a field 'seats' already": lambda: proposals.add(SCHEMA, "seats", "integer", is_nullable=False),
    "nothing with fields is at 'seats'": lambda: proposals.add(SCHEMA, "seats.x", "integer", is_nullable=False),
    "the default 'two' is no integer": lambda: proposals.add(
        SCHEMA, "tip", "integer", is_nullable=False, default="two"
    ),
    "the default True is no number": lambda: proposals.add(SCHEMA, "tip", "number", is_nullable=False, default=True),
    "the default None is no string": lambda: proposals.add(SCHEMA, "tip", "string", is_nullable=False, default=None),
    "the default 'today' is no string": lambda: proposals.add(
        SCHEMA, "at", "date-time", is_nullable=False, default="today"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_change_that_cannot_be_made_is_refused(words: str) -> None:
    with pytest.raises(ProposalError) as caught:
        REFUSED[words]()
    assert str(caught.value).startswith(words)


def nested(depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(rounds: int) -> Schema:
    """Return a small schema whose references double it with each round."""
    twice = {f"D{at}": {"anyOf": [{"$ref": f"#/$defs/D{at + 1}"}] * 2} for at in range(rounds)}
    definitions = {**twice, f"D{rounds}": {"type": "string"}}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": definitions}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "an event is an object"),
        ({"type": "object"}, "an event is an object"),
        ({"type": "object", "properties": []}, "an event is an object"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "this is no JSON Schema: at properties/a/type"),
        ({"type": "object", "properties": {"a": {"minimum": "1"}}}, "this is no JSON Schema: at properties/a/minimum"),
        ({"type": "object", "properties": {"a": 3}}, "this is no JSON Schema: at properties/a"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}, "'#/$defs/A' refers to nothing"),
        ({"type": "object", "properties": {"a": {"$ref": "http://x"}}, "$defs": []}, "'http://x' refers to nothing"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}},
            },
            "#/$defs/A refers to itself",
        ),
        (nested(5_000), "the schema has more than 2000 parts or is nested more than 60 deep"),
        (doubling(12), "the schema has more than 2000 parts"),
    ],
)
def test_what_is_no_schema_of_an_event_is_refused(schema: Schema, words: str) -> None:
    with pytest.raises(ProposalError) as caught:
        proposals.edited(schema)
    assert str(caught.value).startswith(words)


def test_an_edited_schema_is_inlined() -> None:
    assert proposals.edited(SCHEMA) == proposals.inlined(SCHEMA)
