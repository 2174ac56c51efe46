"""What consumers need: recorded by their tests, verified by the provider, exported for Pact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hailbus import Catalogue, ConfigurationError, Event, Topic, event_info, key_of
from hailbus.cli import app
from hailbus.contract import contract_of
from hailbus.needs import broken_by, merged, need_of, pact_files, read_needs, unmet, write_need
from hailbus.testing.plugin import NeedsRecorder
from pydantic import BaseModel
from typer.testing import CliRunner

ORDERS = Topic("orders.v1", partitions=1)


class Place(BaseModel):
    lat: float
    lng: float

    def label(self) -> str:
        return f"{self.lat:g}"


class Line(BaseModel):
    what: str
    count: int = 1


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    place: Place | None
    lines: list[Line]
    note: str = ""


EXAMPLE = Placed(order_id="a", place=Place(lat=1.5, lng=2), lines=[Line(what="x"), Line(what="y", count=2)])


def recorder(folder: Path, *, is_recording: bool = True) -> NeedsRecorder:
    return NeedsRecorder(folder, "test_it", is_recording=is_recording)


def test_what_is_read_is_needed_and_the_rest_is_not(tmp_path: Path) -> None:
    needs = recorder(tmp_path)
    event = needs("till", EXAMPLE)
    assert isinstance(event, Placed)
    assert event_info(event).type == "order.placed"
    assert key_of(event) == b"a"
    assert event.place is not None
    assert event.place.label() == "1.5"
    assert sum(line.count for line in event.lines) == 3
    (path,) = needs.finish()
    (need,) = read_needs(tmp_path)
    assert path == tmp_path / "till" / "order.placed.v1.json"
    assert need.fields == ("lines[].count", "order_id", "place.lat")
    assert need.example == json.loads(EXAMPLE.model_dump_json())
    assert need.schema["required"] == ["order_id", "place", "lines"]
    assert need.schema["properties"]["lines"]["items"]["properties"] == {"count": {"type": "integer"}}
    assert Placed.model_validate_json(EXAMPLE.model_dump_json()) == EXAMPLE, "the example itself is as it was"


def test_a_model_that_is_handed_on_is_needed_whole(tmp_path: Path) -> None:
    needs = recorder(tmp_path)
    assert needs("till", EXAMPLE).place is not None
    needs.finish()
    (need,) = read_needs(tmp_path)
    assert need.fields == ("place",)
    assert need.schema["properties"]["place"]["anyOf"][0]["required"] == ["lat", "lng"]


def test_several_tests_make_one_need(tmp_path: Path) -> None:
    for read in ("order_id", "note"):
        needs = recorder(tmp_path)
        getattr(needs("till", EXAMPLE), read)
        needs.finish()
    (need,) = read_needs(tmp_path)
    assert need.fields == ("note", "order_id")
    assert sorted(need.schema["properties"]) == ["note", "order_id"]
    one, other = (need_of(EXAMPLE, consumer="t", fields=[f]) for f in ("place.lat", "place.lng"))
    assert merged(one, other).schema == need_of(EXAMPLE, consumer="t", fields=["place.lat", "place.lng"]).schema


def test_without_recording_a_test_needs_no_more_than_its_file_says(tmp_path: Path) -> None:
    missing = recorder(tmp_path, is_recording=False)
    assert missing("till", EXAMPLE).order_id == "a"
    with pytest.raises(AssertionError, match="does not say so; run pytest --record-needs"):
        missing.finish()
    write_need(tmp_path, need_of(EXAMPLE, consumer="till", fields=["order_id", "note"]))
    missing.finish()
    more = recorder(tmp_path, is_recording=False)
    assert more("till", EXAMPLE).lines
    with pytest.raises(AssertionError, match=r"till needs lines of order\.placed"):
        more.finish()


def test_declared_fields_are_a_fence(tmp_path: Path) -> None:
    needs = recorder(tmp_path)
    event = needs("till", EXAMPLE, fields=("order_id", "place.lat"))
    assert event.order_id == "a"
    assert event.place is not None
    assert event.place.lat == 1.5
    with pytest.raises(AssertionError, match=r"till reads place\.lng of order\.placed, which it does not declare"):
        _ = event.place.lng
    with pytest.raises(AssertionError, match="till reads note"):
        _ = event.note
    with pytest.raises(ConfigurationError, match="has no field nowhere; there are lines, "):
        need_of(EXAMPLE, consumer="till", fields=["nowhere"])
    silent = recorder(tmp_path)
    silent("till", EXAMPLE)
    with pytest.raises(AssertionError, match=r"till read no field of order\.placed"):
        silent.finish()


def changed(**fields: object) -> Catalogue:
    class Now(Event, topic=ORDERS, key="order_id", type="order.placed"):
        __annotations__ = {"order_id": str, "lines": list[Line], "place": Place | None, "note": str, **fields}

    return Catalogue.of(Now)


def test_the_provider_hears_which_consumer_loses_which_field() -> None:
    need = need_of(EXAMPLE, consumer="till", fields=["place.lat", "lines[].count"])

    class Half(BaseModel):
        lng: float

    class Word(BaseModel):
        what: str
        count: str

    assert unmet([need], Catalogue.of(Placed)) == []
    assert unmet([need], changed(extra=int | None)) != [], "the example lacks a field that is required now"
    (half, *_) = unmet([need], changed(place=Half | None))
    assert str(half).startswith("BREAKING: order.placed v1 place.lat: till needs this field: it is not written")
    (word, *_) = unmet([need], changed(lines=list[Word]))
    assert (word.path, word.pointer) == ("lines[].count", "#/properties/lines/items/properties/count")
    assert "string is written, integer is expected" in word.sentence
    note = need_of(EXAMPLE, consumer="till", fields=["order_id"])
    assert unmet([note], changed(note=str)) == [], "what nobody needs may change"


def test_a_proposed_contract_is_judged_for_each_consumer_of_its_event() -> None:
    till = need_of(EXAMPLE, consumer="till", fields=["place.lat"])
    kitchen = need_of(EXAMPLE, consumer="kitchen", fields=["lines[].count"])
    now = contract_of(Placed)
    assert broken_by([till, kitchen], now) == []

    fields = {name: field for name, field in now.schema["properties"].items() if name != "place"}
    proposed = replace(now, schema={**now.schema, "properties": fields, "required": sorted(fields)})
    (lost,) = broken_by([till, kitchen], proposed)
    words = "till needs this field: it is not written, and is expected without a default"
    assert str(lost) == f"BREAKING: order.placed v1 place: {words}", "fields that it does not read are no renames"
    assert lost.pointer == "#/properties/place"
    assert broken_by([till], replace(proposed, version=2)) == [], "the need is one of version 1"
    assert broken_by([till], replace(proposed, type="order.paid")) == []


@pytest.mark.parametrize("specification", ["3", "4"])
def test_pact_files_have_the_needed_values_and_match_by_type(specification: str) -> None:
    need = need_of(EXAMPLE, consumer="till", fields=["order_id", "place.lat", "lines[].count"])
    files = pact_files([need], provider="shop", specification="3" if specification == "3" else "4")
    document = files["till-shop.json"]
    assert (document["consumer"], document["provider"]) == ({"name": "till"}, {"name": "shop"})
    values = {"order_id": "a", "place": {"lat": 1.5}, "lines": [{"count": 1}, {"count": 2}]}
    if specification == "3":
        (message,) = document["messages"]
        assert document["metadata"]["pactSpecification"]["version"] == "3.0.0"
        assert (message["contents"], message["metaData"]["ce_type"]) == (values, "order.placed")
    else:
        (message,) = document["interactions"]
        assert document["metadata"]["pactSpecification"]["version"] == "4.0"
        assert message["type"] == "Asynchronous/Messages"
        assert message["contents"] == {"content": values, "contentType": "application/json", "encoded": False}
    assert message["matchingRules"]["body"] == {
        "$.order_id": {"combine": "AND", "matchers": [{"match": "type"}]},
        "$.place.lat": {"combine": "AND", "matchers": [{"match": "number"}]},
        "$.lines": {"combine": "AND", "matchers": [{"match": "type", "min": 1}]},
        "$.lines[*].count": {"combine": "AND", "matchers": [{"match": "number"}]},
    }


def test_the_commands_list_export_and_verify(tmp_path: Path) -> None:
    write_need(tmp_path / "needs", need_of(EXAMPLE, consumer="till", fields=["order_id"]))
    run = CliRunner()
    listed = run.invoke(app, ["needs", "ls", str(tmp_path / "needs"), "--json"])
    assert json.loads(listed.output) == {
        "consumer": "till",
        "type": "order.placed",
        "version": 1,
        "fields": ["order_id"],
    }
    made = run.invoke(
        app, ["needs", "pact", str(tmp_path / "needs"), "--provider", "shop", "-o", str(tmp_path / "pacts")]
    )
    assert made.output.strip() == str(tmp_path / "pacts" / "till-shop.json")
    unknown = run.invoke(app, ["check", "ride_events", "--needs", str(tmp_path / "needs")])
    assert unknown.exit_code == 1
    assert "till needs it, and nobody publishes it any more" in unknown.output
    (tmp_path / "needs" / "till" / "broken.json").write_text("{}")
    broken = run.invoke(app, ["needs", "ls", str(tmp_path / "needs")])
    assert (broken.exit_code, "is no consumer's need" in broken.output) == (2, True)
    assert run.invoke(app, ["check", "ride_events", "--needs", str(tmp_path / "nowhere")]).exit_code == 2
