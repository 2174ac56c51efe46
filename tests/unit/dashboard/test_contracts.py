"""Who reads which field, and what a proposed change would break for whom."""

from __future__ import annotations

from functools import partial

from dashboard.domain import proposals
from dashboard.domain.contracts import Contracts, Effect, Entry, verdict
from hailbus import Catalogue, Event, Topic
from hailbus.needs import need_of
from pydantic import BaseModel, Field

ORDERS = Topic("orders.v1", partitions=1, description="Orders")


class Place(BaseModel):
    """A place."""

    lat: float
    lng: float


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    """An order."""

    order_id: str
    place: Place
    amount: int = Field(description="In cents.")
    note: str = ""


EXAMPLE = Placed(order_id="a", place=Place(lat=1, lng=2), amount=3)
CONTRACTS = Contracts(
    Catalogue.of(Placed),
    [
        need_of(EXAMPLE, consumer="till", fields=["order_id", "amount"]),
        need_of(EXAMPLE, consumer="map", fields=["place.lat"]),
        need_of(EXAMPLE, consumer="depot", fields=["place"]),
    ],
)


def entry() -> Entry:
    found = CONTRACTS.find("order.placed", 1)
    assert found is not None
    return found


def kinds(effects: list[Effect]) -> list[tuple[str, str, str]]:
    return [(effect.kind, effect.consumer, effect.field) for effect in effects]


def test_each_field_has_its_readers() -> None:
    found = {field.path: field for field in entry().fields}
    assert {path: dict(field.readers) for path, field in found.items()} == {
        "order_id": {"till": "reads"},
        "place": {"map": "in part", "depot": "reads"},
        "place.lat": {"map": "reads", "depot": "reads"},
        "place.lng": {"depot": "reads"},
        "amount": {"till": "reads"},
        "note": {},
    }
    assert (found["amount"].type, found["amount"].about, found["amount"].is_required) == ("integer", "In cents.", True)
    assert not found["note"].is_required
    assert found["place"].about == "A place."
    assert entry().consumers == ("depot", "map", "till")
    assert [reader.name for reader in entry().whole] == ["event-logger", "lake"], "a timeline has no orders"
    assert CONTRACTS.find("order.placed", 2) is None


def test_a_removed_field_breaks_the_consumers_that_read_it_and_readers_with_the_old_class() -> None:
    effects = CONTRACTS.judge(entry(), lambda schema: proposals.remove(schema, "place.lat"))
    assert kinds(effects) == [
        ("consumer", "map", "place.lat"),
        ("consumer", "depot", "place.lat"),
        ("readers", "", "place.lat"),
        ("safe", "till", ""),
    ]
    assert effects[0].words == "map needs this field: it is not written, and is expected without a default"
    assert effects[-1].words == "till still gets what it reads: amount, order_id"
    assert verdict(effects) == (
        "Breaking: depot, map lose fields that they read; readers with the old class fail on new events. "
        "Publish it as a new version of the event."
    )


def test_a_field_with_a_default_that_nobody_reads_can_go() -> None:
    effects = CONTRACTS.judge(entry(), lambda schema: proposals.remove(schema, "note"))
    assert not any(effect.is_breaking for effect in effects)
    assert ("safe", "", "note") in kinds(effects)
    assert verdict(effects).startswith("Safe: ")


def test_a_new_field_is_safe_with_a_default_and_without_one_old_records_cannot_be_read() -> None:
    add = partial(proposals.add, path="tip", type="integer", is_nullable=False)
    safe = CONTRACTS.judge(entry(), lambda schema: add(schema, default=0))
    assert not any(effect.is_breaking for effect in safe)
    assert ("safe", "", "tip") in kinds(safe)
    breaking = CONTRACTS.judge(entry(), add)
    assert [found for found in kinds(breaking) if found[0] != "safe"] == [("records", "", "tip")]
    assert "today's readers fail on events that were written before" in breaking[0].words
    assert "records that were written before can no longer be read" in verdict(breaking)


def test_another_type_breaks_all_three() -> None:
    effects = CONTRACTS.judge(entry(), lambda schema: proposals.retype(schema, "amount", "string", is_nullable=False))
    assert [found for found in kinds(effects) if found[0] != "safe"] == [
        ("consumer", "till", "amount"),
        ("records", "", "amount"),
        ("readers", "", "amount"),
    ]
    assert verdict(effects).startswith("Breaking: till loses fields that it reads; records")


def test_a_rename_is_told_with_the_new_name() -> None:
    effects = CONTRACTS.judge(entry(), lambda schema: proposals.rename(schema, "amount", "total"))
    (records,) = [effect for effect in effects if effect.kind == "records"]
    assert (records.field, "was it renamed" in records.words) == ("total", True)


def test_an_unchanged_schema_has_no_effect() -> None:
    assert CONTRACTS.judge(entry(), proposals.inlined) == []
    assert verdict([]) == "This changes nothing."
