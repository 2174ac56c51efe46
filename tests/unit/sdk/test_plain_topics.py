"""Topics of plain JSON, without CloudEvents: every way to read them, what is written back, what stays as it was."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    Catalogue,
    ConfigurationError,
    Context,
    Done,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    FromField,
    FromHeader,
    Inbox,
    ParkingLot,
    ParkKey,
    Reject,
    RetryTopics,
    Service,
    SubscriberSettings,
    Topic,
    Verdict,
    bus_reader,
    upcast,
)
from hailbus.asyncapi import asyncapi
from hailbus.codec import decode, encode, envelope_for
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.delivery import Promise
from hailbus.errors import InvalidPayloadError, MissingHeaderError
from hailbus.faust import TypedTopic
from hailbus.testing import MemoryBus

ONCE = Backoff(attempts=1)
ONE_EVENT = Topic("clicks", partitions=2, default_event="click.made")
BY_HEADER = Topic(
    "orders",
    partitions=2,
    discriminator=FromHeader("event-type", {"OrderCreated": "order.placed", "OrderCreated.v2": "order.placed/v2"}),
    attributes={"id": FromHeader("message-id"), "source": "/legacy-shop"},
)
BY_FIELD = Topic(
    "payments",
    partitions=2,
    discriminator=FromField("meta.type", {"PAID": "payment.made", "REFUND": "payment.returned"}),
    default_event="payment.made",
    attributes={
        "version": FromField("meta.schema"),
        "id": FromField("uuid"),
        "time": FromField("at"),
        "correlationid": FromHeader("x-correlation"),
    },
)


class ClickMade(Event, topic=ONE_EVENT, key="user", type="click.made"):
    user: str
    page: str = "/"


class OrderPlacedV1(Event, topic=BY_HEADER, key="id", type="order.placed", version=1):
    id: str
    amount: int


class OrderPlaced(Event, topic=BY_HEADER, key="id", type="order.placed", version=2):
    id: str
    cents: int


class OrderLost(Event, topic=BY_HEADER, key="id", type="order.lost"):
    id: str


@upcast(OrderPlacedV1, OrderPlaced)
def _to_v2(old: OrderPlacedV1) -> OrderPlaced:
    return OrderPlaced(id=old.id, cents=old.amount * 100)


class PaymentMade(Event, topic=BY_FIELD, key="order", type="payment.made"):
    order: str


class PaymentReturned(Event, topic=BY_FIELD, key="order", type="payment.returned", version=3):
    order: str


CATALOGUE = Catalogue.of(ClickMade, OrderPlaced, OrderLost, PaymentMade, PaymentReturned)


# ------------------------------------------------------------------------------------------------ reading


async def read(bus: MemoryBus, *events: Any) -> list[Any]:
    return [delivery async for delivery in bus_reader(bus, *events, start="earliest", until_end=True, on_error="raise")]


async def test_a_topic_of_one_event(bus: MemoryBus) -> None:
    bus.clock = lambda: datetime(2024, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    async with bus.run(Service("x")) as t:
        record = await t.given_record(
            ONE_EVENT, b'{"user": "ada", "page": "/a"}', key=b"ada", headers=[("trace", b"1")]
        )
    (found,) = await read(bus, ClickMade)
    envelope = found.ctx.envelope
    assert found.event == ClickMade(user="ada", page="/a")
    assert envelope.id == f"clicks-{record.partition}-0"
    assert (envelope.source, envelope.type, envelope.version) == ("/kafka/clicks", "click.made", 1)
    assert envelope.time == datetime(2024, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    assert envelope.subject == "ada"
    assert found.ctx.headers == [("trace", b"1")], "the record's own headers, and no others"


async def test_a_header_names_the_event_and_its_version(bus: MemoryBus) -> None:
    async with bus.run(Service("x")) as t:
        for name, value in (
            ("OrderCreated", {"id": "a", "amount": 3}),
            ("OrderCreated.v2", {"id": "b", "cents": 4}),
            ("order.lost", {"id": "c"}),
        ):
            headers = [("event-type", name.encode()), ("message-id", f"m-{value['id']}".encode())]
            await t.given_record(BY_HEADER, json.dumps(value).encode(), headers=headers, partition=0)
    found = await read(bus, OrderPlaced, OrderLost)
    assert [d.event for d in found] == [OrderPlaced(id="a", cents=300), OrderPlaced(id="b", cents=4), OrderLost(id="c")]
    assert [d.ctx.envelope.version for d in found] == [1, 2, 1]
    assert [d.ctx.envelope.id for d in found] == ["m-a", "m-b", "m-c"]
    assert {d.ctx.envelope.source for d in found} == {"/legacy-shop"}


async def test_a_field_names_the_event_and_its_attributes(bus: MemoryBus) -> None:
    values: list[dict[str, Any]] = [
        {"order": "a", "uuid": "u1", "at": "2024-01-02T03:04:05Z", "meta": {"type": "PAID"}},
        {"order": "b", "uuid": 7, "meta": {"type": "REFUND", "schema": "v3.1"}},
        {"order": "c"},
    ]
    async with bus.run(Service("x")) as t:
        for value in values:
            await t.given_record(
                BY_FIELD, json.dumps(value).encode(), headers=[("x-correlation", b"corr")], partition=1
            )
    paid, returned, without = await read(bus, PaymentMade, PaymentReturned)
    assert (paid.event, paid.ctx.envelope.id) == (PaymentMade(order="a"), "u1")
    assert paid.ctx.envelope.time == datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (returned.event, returned.ctx.envelope.version) == (PaymentReturned(order="b"), 3)
    assert returned.ctx.envelope.id == "7"
    assert (without.event, without.ctx.envelope.id) == (PaymentMade(order="c"), "payments-1-2")
    assert without.ctx.envelope.correlation_id == "corr"


async def test_cloudevents_on_the_same_topic_are_read_as_ever(bus: MemoryBus) -> None:
    async with bus.run(Service("x")) as t:
        await t.given(ClickMade(user="a"), id="my-id", source="/web")
        structured = encode(
            ClickMade(user="b"), envelope_for(ClickMade(user="b"), source="/app", id="other"), "structured"
        )
        await t.given_record(ONE_EVENT, structured.value, key=b"b", headers=structured.headers)
    found = await read(bus, ClickMade)
    assert {(d.event.user, d.ctx.envelope.id, d.ctx.envelope.source) for d in found} == {
        ("a", "my-id", "/web"),
        ("b", "other", "/app"),
    }


async def test_a_broken_cloudevent_is_not_taken_for_a_plain_record(bus: MemoryBus) -> None:
    async with bus.run(Service("x")) as t:
        await t.given_record(ONE_EVENT, b'{"user": "ada"}', headers=[("ce_id", b"1"), ("ce_specversion", b"1.0")])
    with pytest.raises(MissingHeaderError, match="ce_source"):
        await read(bus, ClickMade)


@pytest.mark.parametrize(
    ("topic", "value", "headers", "error", "text"),
    [
        (BY_HEADER, b"{}", [], MissingHeaderError, "event-type"),
        (BY_HEADER, b"{}", [("event-type", b"")], MissingHeaderError, "event-type"),
        (BY_FIELD, b'{"meta": {"schema": "next"}}', [], InvalidPayloadError, "'next' is not like 2"),
        (ONE_EVENT, b"[", [], InvalidPayloadError, "JSON"),
        (ONE_EVENT, b"{}", [], InvalidPayloadError, "user"),
    ],
)
async def test_what_names_no_event_becomes_a_dead_letter_that_says_so(
    bus: MemoryBus, topic: Topic, value: bytes, headers: list[tuple[str, bytes]], error: type[Exception], text: str
) -> None:
    svc = Service("shop", catalogue=CATALOGUE)

    @svc.on(ClickMade | OrderPlaced | PaymentMade)
    async def take(event: ClickMade | OrderPlaced | PaymentMade, ctx: Context) -> None: ...

    async with bus.run(svc) as t:
        await t.given_record(topic, value, key=b"k", headers=headers)
        await t.settle()
        letter = t.dead_letters(topic).one()
    assert letter.error == f"hailbus.errors.{error.__name__}"
    assert text in letter.reason
    assert (letter.value, letter.headers[: len(headers)]) == (value, headers)
    assert not [name for name, _ in letter.headers if name.startswith("ce_")]


# ------------------------------------------------------------------------------------------------ handling


def promises(inbox: Inbox) -> dict[str, Promise]:
    return {
        "at least once": AtLeastOnce(retry=ONCE),
        "at most once": AtMostOnce(),
        "effectively once": EffectivelyOnce(inbox=inbox, retry=ONCE),
        "exactly once": ExactlyOnce(retry=ONCE),
    }


@pytest.mark.parametrize("promise", ["at least once", "at most once", "effectively once", "exactly once"])
async def test_handlers_under_every_promise(bus: MemoryBus, promise: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    svc = Service("shop", catalogue=CATALOGUE)
    seen: list[tuple[Event, str]] = []

    @svc.on(OrderPlaced | PaymentMade, delivery=promises(Inbox(engine, consumer="shop"))[promise])
    async def take(event: OrderPlaced | PaymentMade, ctx: Context) -> None:
        seen.append((event, ctx.envelope.id))

    async with bus.run(svc) as t:
        for number in range(30):
            body = json.dumps({"id": str(number), "amount": number}).encode()
            await t.given_record(BY_HEADER, body, key=b"k", headers=[("event-type", b"OrderCreated")])
            await t.given_record(BY_FIELD, json.dumps({"order": str(number)}).encode(), key=b"k")
            await t.given_record(BY_FIELD, b'{"order": "r", "meta": {"type": "REFUND", "schema": 3}}', key=b"k")
        await t.settle()
        assert bus.lag("shop") == 0
    assert [e for e, _ in seen if isinstance(e, OrderPlaced)] == [
        OrderPlaced(id=str(n), cents=100 * n) for n in range(30)
    ]
    assert [e for e, _ in seen if isinstance(e, PaymentMade)] == [PaymentMade(order=str(n)) for n in range(30)]
    ids = [event_id for _, event_id in seen]
    assert len(set(ids)) == 60
    await engine.dispose()


async def test_batches_with_verdicts_and_an_inbox(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    svc = Service("shop")
    seen: list[str] = []
    judged: list[str] = []

    @svc.on_batch(ClickMade, group="once", delivery=EffectivelyOnce(inbox=Inbox(engine, consumer="once")))
    async def take(batch: Batch[ClickMade]) -> None:
        seen.extend(event.user for event in batch.events)

    @svc.on_batch(ClickMade, group="verdicts", max_items=7)
    async def judge(batch: Batch[ClickMade]) -> Sequence[Verdict]:
        judged.extend(item.ctx.envelope.id for item in batch)
        return [Reject("three") if event.user == "3" else Done() for event in batch.events]

    async with bus.run(svc) as t:
        for number in range(20):
            await t.given_record(ONE_EVENT, json.dumps({"user": str(number)}).encode(), key=str(number).encode())
        await t.settle()
        assert t.dead_letters(ClickMade).one().event.user == "3"
        bus.rewind("once", dict.fromkeys(bus.end(ONE_EVENT), 0))
        await t.settle()
    assert sorted(seen, key=int) == [str(n) for n in range(20)], "a redelivery has the same ids"
    assert len(set(judged)) == 20
    await engine.dispose()


async def test_retry_topics_keep_record_and_id_and_end_as_they_began(bus: MemoryBus) -> None:
    svc = Service("shop", catalogue=CATALOGUE)
    ids: list[str] = []

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=ONCE, then=RetryTopics(timedelta(seconds=5), timedelta(minutes=1))))
    async def take(event: OrderPlaced, ctx: Context) -> None:
        ids.append(ctx.envelope.id)
        raise ValueError("no")

    headers = [("event-type", b"OrderCreated"), ("x", b"\xff\x00")]
    async with bus.run(svc) as t:
        record = await t.given_record(BY_HEADER, b' {"id": "a",  "amount": 1}', key=b"k", headers=headers)
        await t.settle()
        letter = t.dead_letters(OrderPlaced).one()
    assert ids == [f"orders-{record.partition}-{record.offset}"] * 3
    assert letter.event == OrderPlaced(id="a", cents=100)
    assert (letter.key, letter.value) == (b"k", b' {"id": "a",  "amount": 1}')
    assert [h for h in letter.headers if not h[0].startswith(("kafka_dlt-", "sdk-", "hailbus-"))] == headers


async def test_replays_have_the_bytes_and_headers_of_the_record(bus: MemoryBus) -> None:
    svc = Service("shop", catalogue=CATALOGUE)
    ids: list[str] = []
    works = False

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=ONCE))
    async def take(event: OrderPlaced, ctx: Context) -> None:
        ids.append(ctx.envelope.id)
        if not works:
            raise ValueError("no")

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        record = await t.given_record(
            BY_HEADER, b'{"id": "a", "amount": 1}', key=b"k", headers=[("event-type", b"OrderCreated")]
        )
        await t.settle()
        works = True
        queue = DeadLetterQueue(bus, dead_letter_topic(BY_HEADER, "shop"))
        (letter,) = await queue.letters()
        assert letter.facts["ce_type"] == "order.placed", "what `hailbus dlq list` shows"
        assert letter.facts["ce_id"] == f"orders-{record.partition}-0"
        await queue.replay()
        await queue.replay(force=True)
        await t.settle()
    first, again, forced = bus.records(BY_HEADER)
    assert (again.key, again.value, again.headers[:-1]) == (first.key, first.value, first.headers)
    assert again.headers[-1][0].endswith("replayed-from")
    assert ids[0] == f"orders-{record.partition}-0"
    assert ids[1] == ids[2] == f"orders.shop-dlt-{letter.record.partition}-0", "two replays are one event"
    assert again.headers == forced.headers


async def test_parked_keys_are_handled_after_their_release(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    lot = ParkingLot(engine)
    svc = Service("shop", catalogue=CATALOGUE)
    seen: list[tuple[str, str]] = []
    works = False

    @svc.on(PaymentMade, delivery=AtLeastOnce(retry=ONCE, then=ParkKey(lot=lot)))
    async def take(event: PaymentMade, ctx: Context) -> None:
        if not works:
            raise ValueError("no")
        seen.append((event.order, ctx.envelope.id))

    async with bus.run(svc) as t:
        for number in range(3):
            await t.given_record(BY_FIELD, json.dumps({"order": str(number)}).encode(), key=b"k", partition=0)
        await t.settle()
        works = True
        assert await lot.release("shop", "payments", b"k") == 3
        for _ in range(1000):
            if len(seen) == 3:
                break
            await t.settle()
            await asyncio.sleep(1)
    assert seen == [(str(n), f"payments-0-{n}") for n in range(3)]
    await engine.dispose()


async def test_tombstones_are_skipped(bus: MemoryBus) -> None:
    svc = Service("shop", catalogue=CATALOGUE, subscribing=SubscriberSettings(unknown_event="dead-letter"))

    @svc.on(ClickMade | OrderPlaced | PaymentMade | PaymentReturned)
    async def take(event: Event, ctx: Context) -> None:
        raise AssertionError("a tombstone is no event")

    async with bus.run(svc) as t:
        await t.given_record(ONE_EVENT, None, key=b"k")
        await t.given_record(BY_FIELD, None, key=b"k")
        await t.given_record(BY_HEADER, None, key=b"k", headers=[("event-type", b"OrderCreated")])
        await t.settle()
        assert bus.lag("shop") == 0
        t.dead_letters().none()


def test_bridge_to_faust_reads_plain_records() -> None:
    class App:
        def topic(self, *names: str, **options: Any) -> str:
            return names[0]

    class Message:
        topic, partition, offset, timestamp, timestamp_type = "payments", 1, 5, 12.5, 0
        key, value, headers = b"k", b'{"order": "a", "meta": {"type": "PAID"}}', ()

    class FaustEvent:
        message = Message()

    delivery = TypedTopic(App(), CATALOGUE, PaymentMade).decode(FaustEvent())
    assert delivery is not None
    assert (delivery.event, delivery.ctx.envelope.id) == (PaymentMade(order="a"), "payments-1-5")
    assert delivery.ctx.envelope.time == datetime(1970, 1, 1, 0, 0, 12, 500_000, tzinfo=UTC)


# ------------------------------------------------------------------------------------------------ writing


PLAIN_CLICKS = Topic("clicks.out", partitions=1, default_event="clicked.page", content_mode="plain")
PLAIN_HEADER = Topic(
    "orders.out",
    partitions=1,
    content_mode="plain",
    discriminator=FromHeader("event-type", {"OrderCreated": "order.made/v2"}),
    attributes={"id": FromHeader("message-id"), "time": FromField("occurredAt"), "version": FromField("v")},
)
PLAIN_FIELD = Topic(
    "payments.out", partitions=1, content_mode="plain", discriminator=FromField("kind", {"PAID": "paid.out"})
)


class Clicked(Event, topic=PLAIN_CLICKS, type="clicked.page"):
    page: str


class ClickedTwice(Event, topic=PLAIN_CLICKS, type="clicked.twice"):
    page: str


class OrderMade(Event, topic=PLAIN_HEADER, type="order.made", version=2):
    id: str


class OrderGone(Event, topic=PLAIN_HEADER, type="order.gone"):
    pass


class PaidOut(Event, topic=PLAIN_FIELD, type="paid.out"):
    cents: int


class RefundOut(Event, topic=PLAIN_FIELD, type="refund.out"):
    kind: Literal["refund.out"] = "refund.out"


async def test_plain_topics_are_written_without_cloudevents_and_read_back(bus: MemoryBus) -> None:
    svc = Service("shop")
    out = svc.publishes(Clicked | OrderMade | OrderGone | PaidOut | RefundOut)
    moment = datetime(2024, 5, 1, tzinfo=UTC)
    async with bus.run(svc) as t:
        await out.publish(Clicked(page="/a"))
        await out.publish(OrderMade(id="a"), id="m1", time=moment)
        await out.publish_many([OrderGone(), PaidOut(cents=3), RefundOut()])
        await t.settle()
    (clicked,), (made, gone), (paid, refund) = (bus.records(x) for x in (PLAIN_CLICKS, PLAIN_HEADER, PLAIN_FIELD))
    assert (clicked.value, clicked.headers) == (b'{"page":"/a"}', ())
    assert dict(made.headers) == {"event-type": b"OrderCreated", "message-id": b"m1"}
    assert json.loads(made.value or b"") == {"occurredAt": "2024-05-01T00:00:00Z", "v": 2, "id": "a"}
    assert dict(gone.headers)["event-type"] == b"order.gone"
    assert (paid.value, paid.headers) == (b'{"kind":"PAID","cents":3}', ())
    assert refund.value == b'{"kind":"refund.out"}', "the event has the field itself"
    events = [d.event for d in await read(bus, Clicked, OrderMade, OrderGone, PaidOut, RefundOut)]
    assert len(events) == 5
    (again,) = await read(bus, OrderMade)
    assert (again.ctx.envelope.id, again.ctx.envelope.time, again.ctx.envelope.version) == ("m1", moment, 2)


async def test_a_plain_tombstone_has_no_cloudevents_headers(bus: MemoryBus) -> None:
    kept = Topic("kept", partitions=1, cleanup_policy="compact", content_mode="plain", discriminator=FromHeader("type"))

    class Kept(Event, topic=kept, key="id", type="row.kept"):
        id: str

    svc = Service("shop")
    rows = svc.publishes(Kept)
    seen: list[str] = []

    @svc.on(Kept)
    async def keep(event: Kept, ctx: Context) -> None:
        seen.append(event.id)

    async with bus.run(svc) as t:
        await rows.publish(Kept(id="a"))
        await rows.tombstone(Kept, "a")
        await t.settle()
    _, tombstone = bus.records(kept)
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"a", None, ())
    assert seen == ["a"]


def test_plain_mode_refuses_what_nobody_could_read_back() -> None:
    with pytest.raises(ConfigurationError, match=r"clicked\.twice v1 would be read as that"):
        encode(ClickedTwice(page="/"), envelope_for(ClickedTwice(page="/"), source="/x"))
    with pytest.raises(ConfigurationError, match="nothing in a record names its event"):
        Topic("x", content_mode="plain")

    class Other(Event, topic=Topic("x"), type="other.event"):
        pass

    svc = Service("x")
    with pytest.raises(ConfigurationError, match="nothing in a record names its event"):
        svc.publishes(Other, content_mode="plain")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"default_event": "OrderCreated"}, "no event type like"),
        ({"default_event": "order.placed/v0"}, "no event type like"),
        ({"attributes": {"id": FromField("x")}}, "needs default_event= or discriminator="),
        ({"default_event": "order.placed", "attributes": {"type": FromField("x")}}, "not 'type'"),
        ({"default_event": "order.placed", "attributes": {"Message-Id": FromField("x")}}, "not 'Message-Id'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Topic("x", **options)


def test_names_must_be_event_types() -> None:
    with pytest.raises(ConfigurationError, match="'Order' is no event type"):
        FromHeader("x", {"a": "Order"})


def test_topics_with_a_mapping_are_copied_and_compared() -> None:
    assert pickle.loads(pickle.dumps(BY_FIELD)) == BY_FIELD  # noqa: S301 our own bytes
    assert hash(BY_FIELD) == hash(pickle.loads(pickle.dumps(BY_FIELD)))  # noqa: S301 as above

    class Another(Event, topic=Topic("clicks", partitions=2), type="click.another"):
        pass

    with pytest.raises(ConfigurationError, match="declared twice"):
        Catalogue.of(ClickMade, Another)


def test_records_without_a_place_are_decoded_by_their_headers_only() -> None:
    from types import SimpleNamespace

    event = ClickMade(user="a")
    key, value, headers = encode(event, envelope_for(event, source="/x"))
    assert decode(SimpleNamespace(topic="clicks", key=key, value=value, headers=headers), CATALOGUE)[0] == event


# ------------------------------------------------------------------------------------------------ documents


def test_asyncapi_shows_how_plain_records_name_their_event() -> None:
    svc = Service("shop")
    svc.publishes(OrderMade | PaidOut | Clicked)

    @svc.on(OrderPlaced | ClickMade)
    async def take(event: OrderPlaced | ClickMade, ctx: Context) -> None: ...

    messages = asyncapi([svc], title="x", version="1")["components"]["messages"]
    made = messages["order-made-v2"]
    assert made["headers"]["required"] == ["event-type"]
    assert made["headers"]["properties"]["event-type"] == {"enum": ["OrderCreated"]}
    assert "message-id" in made["headers"]["properties"]
    assert messages["paid-out-v1"]["payload"]["allOf"][1]["properties"]["kind"] == {"enum": ["PAID"]}
    assert "ce_type" not in json.dumps(messages["clicked-page-v1"])
    both = messages["order-placed-v2"]["headers"]["anyOf"]
    assert "ce_type" in json.dumps(both[0])
    assert both[1]["properties"]["event-type"] == {"enum": ["OrderCreated.v2"]}


@pytest.mark.parametrize("odd", ["deep value", "forged timestamp"])
async def test_a_record_that_breaks_the_reading_of_its_attributes_is_a_dead_letter(bus: MemoryBus, odd: str) -> None:
    svc = Service("till", subscribing=SubscriberSettings())
    seen: list[str] = []

    @svc.on(PaymentMade)
    async def take(event: PaymentMade, ctx: Context) -> None:
        seen.append(ctx.envelope.type)

    forged = {"topic": b"payments", "partition": b"0", "offset": b"0", "timestamp": b"9" * 30}
    headers = [(f"kafka_dlt-original-{name}", value) for name, value in forged.items()]
    async with bus.run(svc) as t:
        t.expect_dead_letters()
        if odd == "deep value":
            await t.given_record(BY_FIELD, b"[" * 100_000, partition=0)
        else:
            await t.given_record(BY_FIELD, b'{"meta": {"type": "PAID"}}', headers=headers, partition=0)
        await t.settle()
        assert len(bus.records(dead_letter_topic(BY_FIELD, "till"))) == 1
    assert seen == []
