"""What a publisher promises: each event is decided once, no caller waits for ever, and no bad event gets out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hailbus import (
    ConfigurationError,
    DeliveryError,
    Event,
    InvalidPayloadError,
    Outbox,
    PublisherSettings,
    RecordTooLargeError,
    Service,
    Topic,
)
from hailbus._transport import Outgoing, Producer, record_bytes
from hailbus.codec import decode_value, encode, envelope_for, may_hold_numbers_beyond_json, plain_floats
from hailbus.database import create_engine
from hailbus.outbox import outbox_table
from hailbus.publish_buffer import PublishBuffer, PublishStats
from hailbus.testing import MemoryBus
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer
from sqlalchemy import func, select

ORDERS = Topic("orders.v1", partitions=1)
SMALL = Topic("small.v1", partitions=1, config={"max.message.bytes": "2000"})
NAN = float("nan")


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    note: str | None = None


class Noted(Event, topic=SMALL, key="order_id", type="order.noted"):
    order_id: str
    note: str = ""


async def test_a_record_that_is_too_large_does_not_repeat_its_neighbours() -> None:
    bus = MemoryBus()
    svc = Service("till")
    pub = svc.publishes(Noted)
    async with svc.running(bus):
        futures = [
            await pub.enqueue(Noted(order_id="a", note="x" * (5_000 if number == 4 else 1)), id=str(number))
            for number in range(9)
        ]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    written = [dict(record.headers)["ce_id"].decode() for record in bus.records(SMALL)]
    assert written == ["0", "1", "2", "3", "5", "6", "7", "8"]
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "RecordTooLargeError" if number == 4 else "Receipt" for number in range(9)
    ]


class Hanging:
    """A producer that never answers, and says when it was asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.unreachable_since_s: float | None = None
        self.retried_count = 0

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


class HangingBus(MemoryBus):
    def __init__(self, producer: Hanging) -> None:
        super().__init__()
        self._made = producer

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> Producer:  # type: ignore[override]  # MemoryBus promises its own kind
        made: Any = self._made  # as much of a producer as the buffer uses
        return made  # type: ignore[no-any-return]  # see above


class Prompt(Hanging):
    """A producer that writes at once."""

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        return range(len(records))


async def test_a_record_that_comes_while_the_service_stops_is_decided() -> None:
    buffer = PublishBuffer(HangingBus(Prompt()), PublisherSettings(), client_id="x")
    await buffer.start()
    decided: dict[object, object] = {}

    def settled(token: object, outcome: object) -> None:
        decided[token] = outcome
        if token == "first":  # the last before the stop; the pump of the next is cancelled before its first step
            buffer.loop.call_soon(buffer.add, "t", 0, (None, b"", []), "2", settled, "second")

    buffer.add("t", 0, (None, b"", []), "1", settled, "first")
    assert await buffer.stop(flush_timeout_s=10.0)
    assert set(decided) == {"first", "second"}
    assert isinstance(decided["second"], DeliveryError)
    assert buffer.buffered_count == 0


async def test_stopping_decides_every_record_that_was_accepted() -> None:
    producer = Hanging()
    buffer = PublishBuffer(HangingBus(producer), PublisherSettings(max_batch_records=2), client_id="x")
    await buffer.start()
    decided: dict[object, object] = {}
    for number in range(5):
        buffer.add("t", 0, (None, b"", []), str(number), decided.__setitem__, number)
    await producer.asked.wait()
    flushing = asyncio.get_running_loop().create_task(buffer.flush())
    assert not await buffer.stop(flush_timeout_s=0.0)
    await flushing
    assert sorted(decided, key=str) == list(range(5))
    assert all(isinstance(outcome, DeliveryError) and outcome.retriable for outcome in decided.values())
    assert (buffer.buffered_count, buffer.stats.failed) == (0, 5)
    with pytest.raises(ConfigurationError, match="before the service runs"):
        buffer.add("t", 0, (None, b"", []), "late", decided.__setitem__, "late")


async def test_publishers_that_wait_for_room_end_when_the_service_stops() -> None:
    producer = Hanging()
    buffer = PublishBuffer(HangingBus(producer), PublisherSettings(max_buffered_records=1), client_id="x")
    await buffer.start()
    buffer.add("t", 0, (None, b"", []), "1", lambda *_: None, None)
    waiting = [asyncio.get_running_loop().create_task(buffer.until_room()) for _ in range(3)]
    await producer.asked.wait()
    await buffer.stop(flush_timeout_s=0.0)
    await asyncio.gather(*waiting)


class Money(BaseModel):
    amount: float


@dataclass
class Place:
    lat: float


class Measured(Event, topic=ORDERS, key="order_id", type="order.measured"):
    order_id: str
    fare: float = 0.0
    tip: float | None = None
    parts: list[Money] = Field(default_factory=list)
    places: dict[str, Place] = Field(default_factory=dict)
    extra: Any = None

    @computed_field
    def double(self) -> float:
        return self.fare * 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"fare": NAN}, "fare is nan"),
        ({"tip": float("inf")}, "tip is inf"),
        ({"parts": [Money(amount=1.0), Money(amount=float("-inf"))]}, r"parts\.1\.amount is -inf"),
        ({"places": {"home": Place(lat=NAN)}}, r"places\.home\.lat is nan"),
        ({"extra": {"a": [1, NAN]}}, r"extra\.a\.1 is nan"),
        ({"fare": 1e308}, "double is inf"),
        ({"extra": b"\xff\xfe"}, r"extra is b'\\xff\\xfe', which is not UTF-8 text.*ser_json_bytes"),
        ({"order_id": "a\ud800"}, r"order_id is 'a\\ud800', which is not UTF-8 text"),
    ],
)
async def test_what_json_cannot_hold_is_refused_before_it_is_published(fields: dict[str, Any], says: str) -> None:
    bus = MemoryBus()
    svc = Service("till")
    binary, structured = svc.publishes(Measured), svc.publishes(Measured, content_mode="structured")
    event = Measured(**({"order_id": "a"} | fields))
    async with svc.running(bus):
        for pub in (binary, structured):
            with pytest.raises(
                InvalidPayloadError, match=f"the value of 'order.measured' version 1.*orders.v1.*{says}"
            ):
                await pub.publish(event)
    with pytest.raises(InvalidPayloadError, match=says):
        encode(event, envelope_for(Measured(order_id="a"), source="/x"))
    assert bus.records(ORDERS) == []


class Toured(Event, topic=ORDERS, key="order_id", type="order.toured"):
    order_id: str
    paid: list[Money | tuple[float, str]] = Field(default_factory=list)
    tip: Money | None = None
    home: Place | None = None
    note: str | None = None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"paid": [Money(amount=1.0), Money(amount=NAN)]}, r"paid\.1\.amount is nan"),
        ({"paid": [(math.inf, "a")]}, r"paid\.0\.0 is inf"),
        ({"tip": Money(amount=NAN)}, r"tip\.amount is nan"),
        ({"home": Place(lat=-math.inf)}, r"home\.lat is -inf"),
        ({"note": "null and NaN"}, None),
        ({"paid": [Money(amount=1.0), (2.0, "a")], "tip": Money(amount=3.0)}, None),
    ],
)
def test_a_number_within_parts_is_found(fields: dict[str, Any], says: str | None) -> None:
    event = Toured(**({"order_id": "a"} | fields))
    envelope = envelope_for(event, source="/x")
    if says is None:
        assert decode_value(Toured, encode(event, envelope).value) == event
        return
    with pytest.raises(InvalidPayloadError, match=says):
        encode(event, envelope)


class AsText(Event, topic=ORDERS, key="order_id", type="order.as_text"):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    order_id: str
    fare: float


class Rounded(Event, topic=ORDERS, key="order_id", type="order.rounded"):
    order_id: str
    fare: float
    tip: float | None = None

    @field_serializer("fare")
    def _fare(self, fare: float) -> str:
        return str(fare)


class Weighed(Event, topic=ORDERS, key="order_id", type="order.weighed"):
    order_id: str
    kilos: float
    tare: float | None = 0.5


@pytest.mark.parametrize(("fields", "says"), [({"kilos": NAN}, "kilos is nan"), ({"tare": -math.inf}, "tare is -inf")])
async def test_the_fields_of_a_flat_event_are_looked_at_one_by_one(fields: dict[str, Any], says: str) -> None:
    bus = MemoryBus()
    svc = Service("till")
    pub = svc.publishes(Weighed)
    assert plain_floats(Weighed) == ("kilos", "tare")
    assert plain_floats(Measured) is None
    async with svc.running(bus):
        await pub.publish_many([Weighed(order_id="a", kilos=1.5, tare=None)])
        for publish in (pub.publish, lambda event: pub.publish_many([event])):
            with pytest.raises(InvalidPayloadError, match=says):
                await publish(Weighed(**({"order_id": "a", "kilos": 1.0} | fields)))
    assert len(bus.records(ORDERS)) == 1


async def test_numbers_that_the_class_writes_in_a_form_of_its_own_pass() -> None:
    bus = MemoryBus()
    svc = Service("till")
    pub = svc.publishes(AsText | Rounded | Measured)
    async with svc.running(bus):
        await pub.publish(AsText(order_id="a", fare=NAN))
        await pub.publish(Rounded(order_id="a", fare=NAN))
        await pub.publish(Measured(order_id="NaN", tip=None))
    assert [record.value for record in bus.records(ORDERS)][:2] == [
        b'{"order_id":"a","fare":"NaN"}',
        b'{"order_id":"a","fare":"nan","tip":null}',
    ]


def test_only_classes_that_may_hold_a_float_are_looked_at() -> None:
    assert not may_hold_numbers_beyond_json(OrderPlaced)
    assert not may_hold_numbers_beyond_json(AsText)
    assert may_hold_numbers_beyond_json(Measured)
    assert may_hold_numbers_beyond_json(Rounded)


async def test_a_time_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/out.db")
    outbox = Outbox(engine)
    svc = Service("till")
    pub = svc.publishes(OrderPlaced)
    svc.relays(outbox)
    naive = datetime(2026, 5, 1, 12)  # noqa: DTZ001 the point of the test
    event = OrderPlaced(order_id="a")
    async with svc.running(bus := MemoryBus()):
        with pytest.raises(ConfigurationError, match="2026-05-01T12:00:00 has no time zone"):
            await pub.publish(event, time=naive)
        with pytest.raises(ConfigurationError, match="has no time zone"):
            await pub.publish_many([event], time=naive)
        async with engine.begin() as tx:
            with pytest.raises(ConfigurationError, match="has no time zone"):
                await pub.publish(event, time=naive, tx=tx)
            with pytest.raises(ConfigurationError, match="not_before=2026-05-01T12:00:00 has no time zone"):
                await pub.publish(event, not_before=naive, tx=tx)
        assert await outbox.waiting_count() == 0
        await pub.publish(event, time=naive.replace(tzinfo=UTC))
    assert len(bus.records(ORDERS)) == 1
    await engine.dispose()


async def test_an_outbox_that_nobody_relays_is_refused_before_a_row_is_written(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/out.db")
    outbox = Outbox(engine)
    await outbox.create_tables()
    svc = Service("till")
    pub = svc.publishes(OrderPlaced)
    async with svc.running(bus := MemoryBus()):
        async with engine.begin() as tx:
            with pytest.raises(ConfigurationError, match=r"no relay would publish them.*svc\.relays"):
                await pub.publish(OrderPlaced(order_id="a"), tx=tx)
        assert await outbox.waiting_count() == 0
    svc.relays(outbox, elsewhere=True)
    async with svc.running(bus):
        async with engine.begin() as tx:
            await pub.publish(OrderPlaced(order_id="a"), tx=tx)
        await outbox.relay_once(bus.producer(client_id="relay"), bus.partitioner)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(outbox_table)) == 1
    assert len(bus.records(ORDERS)) == 1
    await engine.dispose()


async def test_the_memory_bus_refuses_what_a_broker_refuses() -> None:
    bus = MemoryBus()
    svc = Service("till")
    pub = svc.publishes(OrderPlaced | Noted)
    async with svc.running(bus):
        with pytest.raises(RecordTooLargeError, match="the limit is 1048588"):
            await pub.publish(OrderPlaced(order_id="a", note="x" * 2_000_000))
        with pytest.raises(RecordTooLargeError, match="the limit is 2000"):
            await pub.publish(Noted(order_id="a", note="x" * 2_000))
        await pub.publish(Noted(order_id="a", note="x" * 1_500))
        record = bus.records(SMALL)[0]
        most = 2_000 - record_bytes((record.key, record.value, record.headers))
        await pub.publish(Noted(order_id="a", note="x" * (1_500 + most)))
        with pytest.raises(RecordTooLargeError, match="of 2001 bytes"):
            await pub.publish(Noted(order_id="a", note="x" * (1_501 + most)))


@pytest.mark.parametrize(
    "settings",
    [
        {"delivery_timeout": timedelta(0)},
        {"max_buffered_records": 0},
        {"max_buffered_bytes": -1},
        {"max_batch_records": 0},
    ],
)
def test_bounds_that_would_let_nothing_through_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        PublisherSettings(**settings)


async def test_durations_of_publishing_are_counted() -> None:
    bus = MemoryBus()
    buffer = PublishBuffer(bus, PublisherSettings(), client_id="x")
    bus.create(ORDERS)
    await buffer.start()
    for number in range(7):
        buffer.add("orders.v1", 0, (None, b"", []), str(number), lambda *_: None, None)
    await buffer.flush()
    await buffer.stop(flush_timeout_s=1.0)
    assert (buffer.stats.published, buffer.stats.failed, sum(buffer.stats.duration_counts)) == (7, 0, 7)
    stats = PublishStats()
    stats.took(0.02, 0.004, 3)  # 20, 12 and 4 ms
    stats.took(0.02, 0.011, 5)
    assert stats.duration_counts[:4] == [1, 0, 7, 0]


async def test_an_unreachable_memory_bus_says_since_when() -> None:
    bus = MemoryBus()
    producer = bus.producer(client_id="x")
    consumer = bus.consumer(client_id="x", group=None, topics=[], start="earliest")

    def since() -> list[float | None]:
        return [producer.unreachable_since_s, consumer.unreachable_since_s]

    assert since() == [None, None]
    before = asyncio.get_running_loop().time()
    bus.go_down()
    assert all(moment is not None and before <= moment <= asyncio.get_running_loop().time() for moment in since())
    bus.come_up()
    assert since() == [None, None]
