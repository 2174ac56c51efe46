"""Columns come from the event classes, and from nowhere else."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from analytics_spark.schemas import event_columns, silver_spec, spark_type, table_of
from hailbus import Catalogue, Event, Topic
from pydantic import BaseModel, Field
from ride_events import LatLng, Money

PLACE = "struct<`lat`: double, `lng`: double>"


class Colour(StrEnum):
    RED = "red"


class Line(BaseModel):
    place: LatLng
    amounts: list[Money]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, "string"),
        (int, "bigint"),
        (bool, "boolean"),
        (float, "double"),
        (datetime, "timestamp"),
        (date, "date"),
        (timedelta, "string"),
        (UUID, "string"),
        (int | None, "bigint"),
        (int | float, "double"),
        (int | str, "string"),
        (Any, "string"),
        (Colour, "string"),
        (Literal["a", "b"], "string"),
        (Literal[1, 2], "bigint"),
        (Annotated[str, Field(min_length=1)], "string"),
        (tuple[str, ...], "array<string>"),
        (list[LatLng], "array<struct<`lat`: double, `lng`: double>>"),
        (dict[str, int], "map<string, bigint>"),
        (Decimal, "decimal(38,9)"),
        (Annotated[Decimal, Field(max_digits=10, decimal_places=2)], "decimal(10,2)"),
        (
            Line | None,
            f"struct<`place`: {PLACE}, `amounts`: array<struct<`amount_minor`: bigint, `currency`: string>>>",
        ),
    ],
)
def test_a_type_becomes_a_column_type(annotation: Any, expected: str) -> None:
    assert spark_type(annotation) == expected


@pytest.mark.parametrize(
    ("topic", "table"),
    [
        ("rides.v1", "silver.rides"),
        ("rides.v2", "silver.rides_v2"),
        ("driver-locations.v1", "silver.driver_locations"),
        ("audit", "silver.audit"),
        ("a.vb", "silver.a_vb"),
    ],
)
def test_each_topic_has_its_table(topic: str, table: str) -> None:
    assert table_of(topic) == table


THINGS = Topic("things.v1")


class ThingMade(Event, topic=THINGS, key="thing_id", type="thing.made", version=1):
    thing_id: str
    weight: int
    label: str


class ThingMadeAgain(Event, topic=THINGS, key="thing_id", type="thing.made", version=2):
    thing_id: str
    weight: float
    label: str
    colour: Colour = Colour.RED


class ThingLost(Event, topic=THINGS, key="thing_id", type="thing.lost", version=1):
    thing_id: str
    label: list[str]
    offset: int


def test_events_of_a_topic_share_columns_and_later_versions_append() -> None:
    assert event_columns([ThingMadeAgain, ThingMade, ThingLost]) == {
        "thing_id": "string",
        "weight": "double",
        "label": "string",
        "offset": "bigint",
        "colour": "string",
    }


def test_a_field_does_not_hide_a_column_of_every_table() -> None:
    names = [column.name for column in silver_spec(Catalogue.of(ThingLost), "things.v1").columns]
    assert "offset_" in names
    assert names.count("offset") == 1
    assert len(names) == len(set(names))
