"""Structured CloudEvents: who asks for them, what is written, what reads them, and where they are refused."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    Catalogue,
    ConfigurationError,
    Context,
    Envelope,
    Event,
    ExactlyOnce,
    InvalidPayloadError,
    Outbox,
    Service,
    Topic,
    event_info,
)
from hailbus.asyncapi import asyncapi
from hailbus.asyncapi_reader import contracts_in, topics_in
from hailbus.codec import decode, encode
from hailbus.contract import contract_of
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.delivery import Promise
from hailbus.fastapi import dead_letter_router
from hailbus.registry import SchemaRegistry, Schemas
from hailbus.testing import MemoryBus

NOON = datetime(2014, 5, 1, 12, tzinfo=UTC)
CONTENT_TYPE = ("content-type", b"application/cloudevents+json; charset=UTF-8")
ORDERS = Topic("orders.v1", partitions=2)
WHOLE = Topic("whole.v1", partitions=2, cleanup_policy="compact", content_mode="structured")


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed", version=2):
    order_id: str
    amount: int = 0


class Whole(Event, topic=WHOLE, key="name", type="whole.kept"):
    name: str


CATALOGUE = Catalogue.of(OrderPlaced, Whole)


def test_value_holds_attributes_and_data_and_reads_back() -> None:
    event = OrderPlaced(order_id="ö1", amount=3)
    envelope = Envelope(
        id="e1",
        source="/shop",
        type="order.placed",
        version=2,
        time=NOON,
        subject="ö1",
        causation_id="e0",
        extensions={"tenant": "t"},
    )
    key, value, headers = encode(event, envelope, "structured")
    assert headers == [CONTENT_TYPE]
    assert json.loads(value) == {
        "specversion": "1.0",
        "id": "e1",
        "source": "/shop",
        "type": "order.placed",
        "time": "2014-05-01T12:00:00Z",
        "dataschema": "hailbus:order.placed/v2",
        "datacontenttype": "application/json",
        "subject": "ö1",
        "causationid": "e0",
        "tenant": "t",
        "data": {"order_id": "ö1", "amount": 3},
    }
    record = SimpleNamespace(topic="orders.v1", key=key, value=value, headers=headers)
    assert decode(record, CATALOGUE) == (event, envelope)


def test_topic_decides_where_nobody_else_does() -> None:
    envelope = Envelope(id="e1", source="/shop", type="whole.kept", version=1, time=NOON)
    assert encode(Whole(name="a"), envelope).headers == [CONTENT_TYPE]
    assert ("ce_id", b"e1") in encode(Whole(name="a"), envelope, "binary").headers


async def test_publisher_comes_before_topic_and_topic_before_service(bus: MemoryBus) -> None:
    svc = Service("shop", content_mode="structured")
    by_service = svc.publishes(OrderPlaced)
    by_publisher = svc.publishes(OrderPlaced, content_mode="binary")
    plain = Service("plain")
    by_topic = plain.publishes(Whole)
    async with bus.run(svc, plain):
        await by_service.publish(OrderPlaced(order_id="a"), id="1", headers=[("tenant", b"t")])
        await by_publisher.publish(OrderPlaced(order_id="a"), id="2")
        await by_topic.publish_many([Whole(name="a")])
    first, second = bus.records(ORDERS)
    assert (first.key, first.headers) == (b"a", (CONTENT_TYPE, ("tenant", b"t")))
    assert json.loads(first.value or b"")["id"] == "1"
    assert json.loads(second.value or b"") == {"order_id": "a", "amount": 0}
    (third,) = bus.records(WHOLE)
    assert json.loads(third.value or b"")["data"] == {"name": "a"}


@pytest.mark.parametrize("delivery", [AtLeastOnce(), AtMostOnce(), ExactlyOnce()])
async def test_every_promise_reads_them(bus: MemoryBus, delivery: Promise) -> None:
    svc = Service("till", content_mode="structured")
    pub = svc.publishes(OrderPlaced)
    seen: list[tuple[str, int, str]] = []

    @svc.on(OrderPlaced, delivery=delivery)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.append((event.order_id, event.amount, ctx.envelope.id))

    async with bus.run(svc) as t:
        await pub.publish(OrderPlaced(order_id="a", amount=4), id="e1")
        await t.settle()
        assert t.committed(ORDERS) == t.end(ORDERS)
    assert seen == [("a", 4, "e1")]


async def test_batches_read_them(bus: MemoryBus) -> None:
    svc = Service("till", content_mode="structured")
    pub = svc.publishes(OrderPlaced)
    seen: list[tuple[int, int]] = []

    @svc.on_batch(OrderPlaced, max_wait=timedelta(milliseconds=2))
    async def placed(batch: Batch[OrderPlaced]) -> None:
        seen.extend((delivery.event.amount, delivery.ctx.attempt) for delivery in batch)

    async with bus.run(svc) as t:
        await pub.publish_many([OrderPlaced(order_id="a", amount=n) for n in range(5)])
        await t.settle()
    assert seen == [(n, 1) for n in range(5)]


@pytest.mark.parametrize("order", ["partition", "key"])
async def test_handlers_keep_the_order_that_they_ask_for(bus: MemoryBus, order: Literal["partition", "key"]) -> None:
    svc = Service("shop", content_mode="structured")
    pub = svc.publishes(OrderPlaced)
    running = {0: 0, 1: 0}
    most = 0
    amounts: dict[int, list[int]] = {0: [], 1: []}

    @svc.on(OrderPlaced, delivery=AtLeastOnce(order=order))
    async def take(event: OrderPlaced, ctx: Context) -> None:
        nonlocal most
        running[ctx.partition] += 1
        most = max(most, running[ctx.partition])
        await asyncio.sleep(1 / (event.amount + 1))
        running[ctx.partition] -= 1
        amounts[ctx.partition].append(event.amount)

    async with bus.run(svc) as t:
        for amount in range(6):
            await pub.publish(OrderPlaced(order_id=f"o{amount}", amount=amount))
        await t.settle()
    assert sorted(amounts[0] + amounts[1]) == list(range(6))
    in_order = all(found == sorted(found) for found in amounts.values())
    assert (most == 1, in_order) == ((True, True) if order == "partition" else (False, False))


async def test_dead_letter_and_replay_keep_the_bytes(bus: MemoryBus) -> None:
    svc = Service("till", content_mode="structured")
    pub = svc.publishes(OrderPlaced)
    seen: list[str] = []

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=2)))
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.append(ctx.envelope.id)
        if len(seen) < 3:
            raise ValueError("no")

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await pub.publish(OrderPlaced(order_id="a"), id="e1")
        await t.settle()
        (replayed,) = await DeadLetterQueue(bus, dead_letter_topic(ORDERS, "till")).replay()
        await t.settle()
    first, again = bus.records(ORDERS)
    assert replayed.record.value == first.value == again.value
    assert seen == ["e1"] * 3


async def test_dead_letters_say_what_they_are_by_the_attributes_in_their_values(bus: MemoryBus) -> None:
    svc = Service("till", content_mode="structured")
    pub = svc.publishes(OrderPlaced)

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(attempts=1)))
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        raise ValueError("no")

    queue = dead_letter_topic(ORDERS, "till")
    broken = b'{"type":"order.pla'
    app = FastAPI()
    app.include_router(dead_letter_router(bus), prefix="/dlq")
    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await pub.publish(OrderPlaced(order_id="a"), id="e1")
        producer = bus.producer(client_id="foreign")
        for value in (broken, b"[1]", None):
            await producer.send(ORDERS.name, 0, [(b"a", value, [CONTENT_TYPE])])
        await t.settle()
        letters = await DeadLetterQueue(bus, queue).letters()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as http:
            listed = (await http.get(f"/dlq/{queue}")).text
            shown = (await http.get(f"/dlq/{queue}/{letters[0].place}")).text
        facts = {letter.value: letter.facts for letter in letters}
        (whole,) = facts.keys() - {broken, b"[1]", None}
        assert (facts[whole]["ce_type"], facts[whole]["ce_id"]) == ("order.placed", "e1")
        assert (facts[whole]["ce_dataschema"], facts[whole]["hailbus-attempt"]) == ("hailbus:order.placed/v2", "1")
        for value in (broken, b"[1]", None):
            assert "ce_type" not in facts[value], value
            assert facts[value]["hailbus-failed-by"] == "decoder"
        assert listed.count("<td>order.placed</td>") == 1
        assert listed.count("<td>?</td>") == 3
        assert "<td>ce_type</td><td>order.placed</td>" in shown
        (place,) = (letter.place for letter in letters if letter.value == broken)
        await DeadLetterQueue(bus, queue).edit(place, b'{"type":"order.placed"}')
        assert (await DeadLetterQueue(bus, queue).letter(place)).facts["ce_type"] == "order.placed"


async def test_outbox_carries_them(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = Outbox(engine)
    await outbox.create_tables()
    svc = Service("shop", content_mode="structured")
    svc.relays(outbox)
    pub = svc.publishes(OrderPlaced)
    async with bus.run(svc) as t:
        async with engine.begin() as tx:
            await pub.publish(OrderPlaced(order_id="a", amount=4), id="e1", tx=tx)
        await t.settle()
    await engine.dispose()
    (record,) = bus.records(ORDERS)
    assert record.headers == (CONTENT_TYPE,)
    event, envelope = decode(record, CATALOGUE)
    assert (event, envelope.id) == (OrderPlaced(order_id="a", amount=4), "e1")


async def test_a_tombstone_is_refused(bus: MemoryBus) -> None:
    svc = Service("shop")
    pub = svc.publishes(Whole)
    binary = svc.publishes(Whole, content_mode="binary")
    async with bus.run(svc):
        with pytest.raises(ConfigurationError, match=r"never a tombstone.*'whole\.v1'.*content_mode=\"binary\""):
            await pub.tombstone(Whole, "a")
        await binary.tombstone(Whole, "a")
    (record,) = bus.records(WHOLE)
    assert (record.key, record.value) == (b"a", None)


async def test_schema_ids_are_refused_beside_them() -> None:
    svc = Service("shop", schemas=Schemas(SchemaRegistry("http://127.0.0.1:1")))
    svc.publishes(OrderPlaced)
    with pytest.raises(ConfigurationError, match="schema ids on events, which works in binary mode only"):
        svc.publishes(Whole)
    with pytest.raises(ConfigurationError, match=r"'orders\.v1' is to be written in structured mode"):
        svc.publishes(OrderPlaced, content_mode="structured")


def test_other_modes_are_refused() -> None:
    wrong: Any = "batched"  # Any: what a caller without a type checker may pass
    with pytest.raises(ConfigurationError, match="'batched' is not one of 'binary', 'structured' and 'plain'"):
        Topic("orders.v1", content_mode=wrong)
    with pytest.raises(ConfigurationError, match="'batched' is not one of"):
        Service("shop", content_mode=wrong)
    with pytest.raises(ConfigurationError, match="'batched' is not one of"):
        Service("shop").publishes(OrderPlaced, content_mode=wrong)


def test_an_extension_cannot_be_called_data() -> None:
    envelope = Envelope(id="1", source="/s", type="order.placed", version=2, time=NOON, extensions={"data": "x"})
    with pytest.raises(ConfigurationError, match="no CloudEvents attribute is called 'data'"):
        encode(OrderPlaced(order_id="a"), envelope, "structured")


def foreign(**document: object) -> SimpleNamespace:
    known = {"specversion": "1.0", "id": "1", "source": "/s", "type": "order.placed"}
    known["dataschema"] = event_info(OrderPlaced).dataschema
    return SimpleNamespace(
        topic="orders.v1", key=None, value=json.dumps(known | document).encode(), headers=[CONTENT_TYPE]
    )


def test_what_other_writers_put_into_them_is_read() -> None:
    event, envelope = decode(
        foreign(data={"order_id": "a"}, subject=None, sampled=True, attempt=3, time="2014-05-01T12:00:00Z"), CATALOGUE
    )
    assert event == OrderPlaced(order_id="a")
    assert (envelope.subject, envelope.extensions) == (None, {"sampled": "true", "attempt": "3"})
    encoded = base64.b64encode(b'{"order_id":"b"}').decode()
    assert decode(foreign(data_base64=encoded), CATALOGUE)[0] == OrderPlaced(order_id="b")
    for broken in ({"data_base64": "!"}, {"data_base64": 5}, {}, {"data": "text"}):
        with pytest.raises(InvalidPayloadError):
            decode(foreign(**broken), CATALOGUE)


def test_asyncapi_document_describes_them_and_gives_the_contract_back() -> None:
    svc = Service("shop")
    svc.publishes(OrderPlaced | Whole)
    document = asyncapi([svc], title="Shop", version="1")
    message = document["components"]["messages"]["whole-kept-v1"]
    assert message["contentType"] == "application/cloudevents+json; charset=UTF-8"
    assert message["payload"]["properties"]["type"] == {"const": "whole.kept"}
    assert message["payload"]["properties"]["data"] == {"$ref": "#/components/schemas/whole-kept-v1"}
    assert "data" in message["payload"]["required"]
    assert document["components"]["messages"]["order-placed-v2"]["contentType"] == "application/json"
    again = {contract.type: contract for contract in contracts_in(document)}
    assert again["whole.kept"].schema == contract_of(Whole).schema
    assert [topics_in(document)[name].content_mode for name in ("orders.v1", "whole.v1")] == [None, "structured"]
