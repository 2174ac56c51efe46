"""Values as Avro and Protobuf: schemas from event classes, reading and writing, and what a registry forbids."""

from __future__ import annotations

import base64
import json
import types
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import fastavro
import httpx
import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Catalogue,
    ConfigurationError,
    Context,
    Event,
    ExactlyOnce,
    FromHeader,
    IncompatibleSchemaError,
    InvalidPayloadError,
    Outbox,
    RetryTopics,
    Service,
    Topic,
    bus_reader,
)
from hailbus.database import create_engine
from hailbus.registry import SchemaRegistry, Schemas, schema_id_of
from hailbus.registry.avro import avro_reader, avro_schema, avro_writer
from hailbus.registry.protobuf import (
    Tag,
    indexes_of,
    protobuf_reader,
    protobuf_schema,
    protobuf_writer,
    varints,
)
from hailbus.schema_id import HEADER
from hailbus.testing import MemoryBus
from hailbus_registry.formats import avro_unreadable, protobuf_unreadable
from hailbus_registry.server import create_app
from pydantic import BaseModel, ConfigDict, Field

ORDERS = Topic("orders.v1", partitions=1)
FORMATS = ["avro", "protobuf"]
PLACES = ["header", "prefix"]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = "1 m"  # no Avro name
    LARGE = "2 m"


class Address(BaseModel):
    street: str
    number: int | None = None


class Line(BaseModel):
    sku: str
    count: int = 1


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    """An order.

    With more to say.
    """

    order_id: str = Field(description="Its key.")
    amount: int
    ratio: float
    is_new: bool
    at: datetime
    day: date
    hour: time
    took: timedelta
    uid: UUID
    price: Decimal
    colour: Colour = Colour.RED
    size: Size = Size.SMALL
    kind: Literal["web", "shop"] = "web"
    note: str | None = None
    ship_to: Address
    bill_to: Address | None = None
    lines: list[Line] = Field(default_factory=list)
    tags: dict[str, str] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    camel: str = Field(default="x", alias="camelCase")


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid", version=2):
    order_id: str


def placed(order_id: str = "a") -> OrderPlaced:
    return OrderPlaced(
        order_id=order_id,
        amount=2**60,
        ratio=0.1,
        is_new=True,
        at=datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=UTC),
        day=date(2024, 5, 1),
        hour=time(1, 2, 3, 4),
        took=timedelta(minutes=3, microseconds=7),
        uid=UUID(int=7),
        price=Decimal("12.3400"),
        colour=Colour.BLUE,
        size=Size.LARGE,
        kind="shop",
        ship_to=Address(street="Höhe", number=3),
        bill_to=Address(street="x"),
        lines=[Line(sku="a"), Line(sku="b", count=2)],
        tags={"k": "v"},
        counts={"n": 5},
        camelCase="y",
    )


def json_of(event: Event) -> bytes:
    return event.model_dump_json().encode()


def text_of(cls: type[Event]) -> str:
    return base64.b64encode(protobuf_schema(cls).SerializeToString()).decode()


# ------------------------------------------------------------------------------------------------ schemas


def test_avro_schema_of_an_event() -> None:
    schema = avro_schema(OrderPlaced)
    fastavro.parse_schema(schema)
    assert (schema["name"], schema["namespace"], schema["doc"]) == ("OrderPlaced", "order", "An order.")
    assert schema["hailbus"] == {"dataschema": "hailbus:order.placed/v1", "topic": "orders.v1", "key": "order_id"}
    fields = {field["name"]: field for field in schema["fields"]}
    assert fields["order_id"] == {"name": "order_id", "type": "string", "doc": "Its key."}
    assert fields["at"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert fields["colour"] == {
        "name": "colour",
        "type": {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]},
        "default": "red",
    }
    assert fields["size"] == {"name": "size", "type": "string", "default": "1 m"}
    assert fields["note"] == {"name": "note", "type": ["null", "string"], "default": None}
    assert fields["bill_to"] == {"name": "bill_to", "type": ["null", "Address"], "default": None}
    assert fields["lines"]["default"] == []
    assert fields["tags"] == {"name": "tags", "type": {"type": "map", "values": "string"}, "default": {}}
    assert "camel" in fields, "as it is written in JSON"


def test_what_avro_cannot_have_is_refused_by_name() -> None:
    class Odd(Event, topic=ORDERS, type="odd.one"):
        anything: Any

    class Dashed(Event, topic=ORDERS, type="odd.two"):
        model_config = ConfigDict(serialize_by_alias=True)
        name: str = Field(serialization_alias="a-b")

    with pytest.raises(ConfigurationError, match=r"Odd: field Odd\.anything has the type typing\.Any"):
        avro_schema(Odd)
    with pytest.raises(ConfigurationError, match="written as 'a-b', which is no Avro name"):
        avro_schema(Dashed)


def test_numbers_of_a_protobuf_message_are_places_or_tags() -> None:
    class Tagged(Event, topic=ORDERS, type="tag.ged"):
        first: str
        second: Annotated[int, Tag(7)]
        third: str | None = None

    (message,) = protobuf_schema(Tagged).message_type
    assert [(f.name, f.number, f.proto3_optional) for f in message.field] == [
        ("first", 1, False),
        ("second", 7, False),
        ("third", 3, True),
    ]

    class Twice(Event, topic=ORDERS, type="tag.twice"):
        first: str
        second: Annotated[int, Tag(1)]

    with pytest.raises(ConfigurationError, match=r"Twice\.second has the number 1 of first"):
        protobuf_schema(Twice)

    class Either(Event, topic=ORDERS, type="tag.either"):
        what: int | str

    with pytest.raises(ConfigurationError, match="no counterpart in Protobuf"):
        protobuf_schema(Either)


def test_bytes_come_back_where_json_can_hold_them() -> None:
    class Raw(Event, topic=ORDERS, type="raw.bytes"):
        model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        data: bytes

    class Text(Event, topic=ORDERS, type="raw.text"):
        data: bytes

    event = Raw(data=b"\xff\x00a")
    write, read = protobuf_writer(Raw), protobuf_reader(text_of(Raw), [0])
    assert Raw.model_validate_json(read(write(json_of(event)))) == event
    with pytest.raises(ConfigurationError, match=r"Text\.data holds bytes"):
        protobuf_schema(Text)
    write, read = avro_writer(Text), avro_reader(avro_schema(Text))
    assert Text.model_validate_json(read(write(json_of(Text(data=b"a"))))) == Text(data=b"a")


@pytest.mark.parametrize("format_", FORMATS)
def test_values_come_back_as_they_were(format_: str) -> None:
    event = placed()
    if format_ == "avro":
        write, read = avro_writer(OrderPlaced), avro_reader(avro_schema(OrderPlaced))
    else:
        write, read = protobuf_writer(OrderPlaced), protobuf_reader(text_of(OrderPlaced), [0])
    encoded = write(json_of(event))
    assert not encoded.startswith(b"{")
    assert OrderPlaced.model_validate_json(read(encoded)) == event
    assert len(encoded) < len(json_of(event)) / 2


def test_avro_finds_the_branch_of_a_union_of_models() -> None:
    class Cash(BaseModel):
        cents: int

    class Card(BaseModel):
        cents: int
        number: str

    class Settled(Event, topic=ORDERS, type="union.ed"):
        by: Cash | Card
        others: list[Card | Cash | None] = Field(default_factory=list)

    write, read = avro_writer(Settled), avro_reader(avro_schema(Settled))
    for event in (
        Settled(by=Cash(cents=1), others=[Card(cents=2, number="n"), None, Cash(cents=3)]),
        Settled(by=Card(cents=1, number="x")),
    ):
        assert Settled.model_validate_json(read(write(json_of(event)))) == event


@pytest.mark.parametrize("indexes", [[0], [1], [0, 0], [3, 200, 1]])
def test_message_indexes_are_confluents(indexes: list[int]) -> None:
    from io import BytesIO

    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    out = BytesIO()
    ProtobufSerializer._encode_varints(out, indexes)
    assert varints(indexes) == out.getvalue()
    assert indexes_of(varints(indexes) + b"rest") == (indexes, b"rest")


@pytest.mark.parametrize("broken", [b"", b"\x02", b"\xff\xff\xff\xff\xff\xff\xff", b"\x01"])
def test_broken_message_indexes_are_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="message indexes"):
        indexes_of(broken)


# ------------------------------------------------------------------------------------------------ services


@pytest.fixture
async def registry(bus: MemoryBus) -> AsyncIterator[SchemaRegistry]:
    app = create_app(MemoryBus())
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with SchemaRegistry("http://registry", transport=transport) as found:
            yield found


def schemas(registry: SchemaRegistry, format_: Any, place: Any = "header") -> Schemas:
    return Schemas(registry, format=format_, place=place, patience=timedelta(seconds=5))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("format_", FORMATS)
async def test_written_and_read_by_every_kind_of_handler(
    bus: MemoryBus, registry: SchemaRegistry, format_: str, place: str
) -> None:
    writer = Service("writer", schemas=schemas(registry, format_, place))
    orders = writer.publishes(OrderPlaced)
    reader = Service("reader", schemas=schemas(registry, "json"), catalogue=Catalogue.of(OrderPlaced, OrderPaid))
    seen: dict[str, list[Event]] = {"one": [], "batch": [], "exactly": []}

    @reader.on(OrderPlaced, group="one")
    async def one(event: OrderPlaced, ctx: Context) -> None:
        assert ctx.envelope.source == "/writer"
        assert dict(ctx.headers)["content-type"] == f"application/{format_}".encode()
        seen["one"].append(event)

    @reader.on_batch(OrderPlaced, group="batch")
    async def batches(batch: Batch[OrderPlaced]) -> None:
        seen["batch"].extend(batch.events)

    @reader.on(OrderPlaced, group="exactly", delivery=ExactlyOnce())
    async def exactly(event: OrderPlaced, ctx: Context) -> None:
        seen["exactly"].append(event)

    async with bus.run(writer, reader) as t:
        await orders.publish(placed("0"))
        await orders.publish_many([placed(str(n)) for n in range(1, 20)])
        await t.settle()
    expected = [placed(str(n)) for n in range(20)]
    assert seen == {"one": expected, "batch": expected, "exactly": expected}
    record = bus.records(ORDERS)[0]
    found = schema_id_of(record.headers, record.value)
    assert found is not None
    assert (found.id is not None) == (place == "prefix")
    assert (HEADER in dict(record.headers)) == (place == "header")
    assert (record.value or b"")[:1] != b"{"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("format_", FORMATS)
async def test_readers_without_a_group_are_given_the_registry(
    bus: MemoryBus, registry: SchemaRegistry, format_: str, place: str
) -> None:
    writer = Service("writer", schemas=schemas(registry, format_, place))
    orders = writer.publishes(OrderPlaced)
    async with bus.run(writer):
        await orders.publish(placed())
    read = bus_reader(bus, OrderPlaced, start="earliest", until_end=True, schemas=Schemas(registry), on_error="raise")
    assert [delivery.event async for delivery in read] == [placed()]
    without = bus_reader(bus, OrderPlaced, start="earliest", until_end=True, on_error="raise")
    with pytest.raises(InvalidPayloadError):
        _ = [delivery async for delivery in without]


@pytest.mark.parametrize("format_", FORMATS)
async def test_outbox_rows_are_json_and_records_are_not(
    bus: MemoryBus, registry: SchemaRegistry, format_: str, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    svc = Service("shop", schemas=schemas(registry, format_))
    orders = svc.publishes(OrderPlaced)
    svc.relays(Outbox(engine))
    seen: list[Event] = []

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        seen.append(event)

    async with bus.run(svc) as t:
        async with engine.begin() as tx:
            await orders.publish(placed(), tx=tx)
        await t.settle()
        assert t.published(OrderPlaced).one() == placed()
    assert seen == [placed()]
    await engine.dispose()


@pytest.mark.parametrize("format_", FORMATS)
async def test_retries_and_dead_letters_keep_the_bytes(bus: MemoryBus, registry: SchemaRegistry, format_: str) -> None:
    svc = Service("shop", schemas=schemas(registry, format_))
    orders = svc.publishes(OrderPlaced)
    calls: list[OrderPlaced] = []
    policy = AtLeastOnce(retry=Backoff(attempts=1), then=RetryTopics(timedelta(seconds=5)))

    @svc.on(OrderPlaced, delivery=policy)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        calls.append(event)
        raise ValueError("no")

    async with bus.run(svc) as t:
        await orders.publish(placed())
        await t.settle()
        letter = t.dead_letters(ORDERS).one()
        original = bus.records(ORDERS)[0]
        assert (letter.key, letter.value) == (original.key, original.value)
        assert tuple(letter.headers[: len(original.headers)]) == original.headers
        assert letter.event == placed()
    assert calls == [placed(), placed()]


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_value_that_its_schema_does_not_fit_is_a_dead_letter(
    bus: MemoryBus, registry: SchemaRegistry, format_: str
) -> None:
    svc = Service("shop", schemas=schemas(registry, format_))
    orders = svc.publishes(OrderPlaced)

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None: ...

    async with bus.run(svc) as t:
        await orders.publish(placed())
        good = bus.records(ORDERS)[0]
        await t.given_record(ORDERS, b"\xff\xff\xff", key=b"a", headers=good.headers)
        await t.settle()
        letter = t.dead_letters(ORDERS).one()
        assert letter.error == "hailbus.errors.InvalidPayloadError"
        assert letter.value == b"\xff\xff\xff"
        assert bus.lag("shop") == 0


async def test_an_incompatible_change_stops_the_start(bus: MemoryBus, registry: SchemaRegistry) -> None:
    await registry.register(
        "orders.v1-order.paid.v2",
        {**avro_schema(OrderPaid), "fields": [{"name": "other", "type": "string"}]},
        type="AVRO",
    )
    svc = Service("shop", schemas=schemas(registry, "avro"))
    svc.publishes(OrderPaid)
    with pytest.raises(IncompatibleSchemaError, match="order_id: it is missing in the writer's schema"):
        await svc.start(bus)


def test_formats_are_checked() -> None:
    registry = SchemaRegistry("http://x")
    wrong: Any = "xml"
    with pytest.raises(ConfigurationError, match="'xml' is not one of 'json', 'avro' and 'protobuf'"):
        Schemas(registry, format=wrong)


PLAIN = Topic(
    "legacy",
    partitions=1,
    content_mode="plain",
    discriminator=FromHeader("event-type", {"Created": "legacy.created"}),
)


class LegacyCreated(Event, topic=PLAIN, key="id", type="legacy.created"):
    id: str


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("format_", FORMATS)
async def test_plain_records_have_schemas_too(
    bus: MemoryBus, registry: SchemaRegistry, format_: str, place: str
) -> None:
    svc = Service("shop", schemas=schemas(registry, format_, place))
    created = svc.publishes(LegacyCreated)
    ids: list[str] = []

    @svc.on(LegacyCreated)
    async def take(event: LegacyCreated, ctx: Context) -> None:
        ids.append(f"{event.id} {ctx.envelope.id}")

    async with bus.run(svc) as t:
        await created.publish(LegacyCreated(id="a"))
        await t.settle()
    (record,) = bus.records(PLAIN)
    assert not [name for name, _ in record.headers if name.startswith("ce_")]
    assert schema_id_of(record.headers, record.value) is not None
    assert ids == ["a legacy-0-0"]


# ------------------------------------------------------------------------------------------------ compatibility


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


MAP = {"type": "map", "values": "long"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        (record(field("a", "long")), record(field("a", "int")), None),
        (record(field("a", "int")), record(field("a", "long")), "long cannot be read as int"),
        (record(field("a", "string"), field("b", "int", default=1)), record(field("a", "string")), None),
        (record(field("a", "string"), field("b", "int")), record(field("a", "string")), "has no default"),
        (record(field("a", "string")), record(field("a", "string"), field("b", "int")), None),
        (record(field("b", "int", aliases=["a"])), record(field("a", "int")), None),
        (record(field("a", ["null", "string"])), record(field("a", "string")), None),
        (record(field("a", "string")), record(field("a", ["null", "string"])), "null cannot be read as string"),
        (record(field("a", ["null", "int"])), record(field("a", "string")), "no branch"),
        (record(field("a", ENUM)), record(field("a", {**ENUM, "symbols": ["A", "B", "C"]})), "lacks C"),
        (record(field("a", {**ENUM, "default": "A"})), record(field("a", {**ENUM, "symbols": ["C"]})), None),
        (
            record(field("a", {"type": "array", "items": "int"})),
            record(field("a", {"type": "array", "items": "string"})),
            "string cannot be read as int",
        ),
        (
            record(field("a", {"type": "map", "values": "long"})),
            record(field("a", {"type": "map", "values": "int"})),
            None,
        ),
        (record(name="R"), {**record(), "name": "S"}, "record 'S' is called 'R'"),
        ({**record(), "aliases": ["S"]}, {**record(), "name": "S"}, None),
        (
            record(field("next", ["null", "R"], default=None), field("v", "int")),
            record(field("next", ["null", "R"], default=None), field("v", "string")),
            "string cannot be read as int",
        ),
    ],
)
def test_avro_resolution(reader: Any, writer: Any, reason: str | None) -> None:
    found = avro_unreadable(reader, writer)
    if reason is None:
        assert found == []
    else:
        assert reason in found[0]
    # fastavro, which decodes by the same rules, agrees wherever it can decide without data
    fastavro.parse_schema(json.loads(json.dumps(reader)))


def test_protobuf_numbers_must_keep_their_meaning() -> None:
    def file(*annotations: tuple[str, Any]) -> Any:
        namespace = {"__annotations__": dict(annotations), "__module__": __name__}
        return protobuf_schema(
            types.new_class(
                "Moved", (Event,), {"topic": ORDERS, "type": "moved.on"}, lambda body: body.update(namespace)
            )
        )

    first = file(("a", str), ("b", int))
    assert protobuf_unreadable(file(("a", str), ("b", int), ("c", str)), first) == []
    assert protobuf_unreadable(first, file(("a", str), ("b", int), ("c", str))) == []
    assert protobuf_unreadable(file(("b", int), ("a", str)), first) == [
        "Moved.a: number 1 has another type in the reader's schema",
        "Moved.b: number 2 has another type in the reader's schema",
    ]
    assert "so its values would change places" in protobuf_unreadable(file(("x", str), ("b", int)), first)[0]
    assert "repeated on one side" in protobuf_unreadable(file(("a", list[str])), first)[0]
