"""The relay marks a row as published when the broker has acknowledged it, and never otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hailbus import DeliveryError, Event, Outbox, OutboxEntry, Topic
from hailbus._transport import Outgoing
from hailbus.codec import envelope_for
from hailbus.database import create_engine
from hailbus.outbox import OutboxRow, outbox_table, store
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncEngine

ORDERS = Topic("orders.v1", partitions=2)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    number: int = 0


class Broker:
    """A producer whose broker acknowledges, is away, or refuses certain records for good."""

    def __init__(self) -> None:
        self.log: dict[int, list[bytes]] = {0: [], 1: []}
        self.headers: list[Sequence[tuple[str, bytes]]] = []
        self.requests: list[int] = []
        self.is_away: set[int] = set()
        self.refuses: set[bytes] = set()

    def known_partition_count(self, topic: str) -> int | None:
        return None

    async def partition_count(self, topic: str) -> int:
        return 2

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        self.requests.append(len(records))
        if partition in self.is_away:
            away = DeliveryError("the broker is away", topic=topic, partition=partition, retriable=True)
            return [away] * len(records)
        outcomes: list[int | DeliveryError] = []
        for _, value, headers in records:
            self.headers.append(headers)
            if value in self.refuses:
                outcomes.append(DeliveryError("the record is too large", topic=topic, partition=partition))
            else:
                outcomes.append(len(self.log[partition]))
                self.log[partition].append(value or b"")
        return outcomes


def by_order(topic: str, key: bytes | None, count: int) -> int:
    assert key is not None
    return int(key) % count


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    found = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    yield found
    await found.dispose()


async def with_orders(engine: AsyncEngine, *orders: str, batch_records: int = 1_000) -> Outbox:
    outbox = Outbox(engine, lambda: NOON, batch_records=batch_records)
    await outbox.create_tables()
    async with engine.begin() as tx:
        entries = [
            OutboxEntry(event=event, envelope=envelope_for(event, source="/till", id=f"e{number}", time=NOON))
            for number, event in enumerate(OrderPlaced(order_id=order, number=i) for i, order in enumerate(orders))
        ]
        await outbox.add_many(tx, entries, wakes=False)
    return outbox


async def rows(engine: AsyncEngine) -> Sequence[Row[Any]]:  # Any: a row's types
    async with engine.connect() as connection:
        return (await connection.execute(select(outbox_table).order_by(outbox_table.c.position))).all()


def value(order: str, number: int) -> bytes:
    return f'{{"order_id":"{order}","number":{number}}}'.encode()


async def test_rows_that_could_not_be_sent_stay_and_are_sent_when_the_broker_is_back(engine: AsyncEngine) -> None:
    outbox, broker = await with_orders(engine, "0", "1", "1", "0"), Broker()
    broker.is_away = {1}
    with pytest.raises(DeliveryError, match="is away"):
        await outbox.relay_once(broker, by_order)  # type: ignore[arg-type]  # the part of a producer that it uses
    marked = [(row.id, row.published_at, row.failed_at, row.error) for row in await rows(engine)]
    noon = int(NOON.timestamp() * 1_000_000)
    assert marked == [
        ("e0", noon, None, None),
        ("e1", None, None, None),
        ("e2", None, None, None),
        ("e3", noon, None, None),
    ]
    assert (await outbox.due_count(), outbox.published_count) == (2, 2)

    broker.is_away = set()
    assert await outbox.relay_once(broker, by_order) == 2  # type: ignore[arg-type]  # as above
    assert broker.log == {0: [value("0", 0), value("0", 3)], 1: [value("1", 1), value("1", 2)]}
    assert [(row.published_partition, row.published_offset) for row in await rows(engine)] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (0, 1),
    ]
    assert (await outbox.due_count(), outbox.published_count) == (0, 4)
    assert await outbox.relay_once(broker, by_order) == 0  # type: ignore[arg-type]  # as above


async def test_a_row_that_is_refused_for_good_is_set_aside_and_the_others_are_published(engine: AsyncEngine) -> None:
    outbox, broker = await with_orders(engine, "0", "0", "0", "0"), Broker()
    broker.refuses = {value("0", 1)}
    assert await outbox.relay_once(broker, by_order) == 4  # type: ignore[arg-type]  # as above
    assert broker.log[0] == [value("0", 0), value("0", 2), value("0", 3)]
    assert broker.requests == [4]  # its neighbours are not sent again
    found = await rows(engine)
    assert [row.published_at is not None for row in found] == [True, False, True, True]
    assert [row.published_offset for row in found] == [0, None, 1, 2]
    assert [(row.failed_at is not None, row.error) for row in found] == [
        (False, None),
        (True, "the record is too large"),
        (False, None),
        (False, None),
    ]
    assert (await outbox.due_count(), await outbox.waiting_count(), outbox.published_count) == (0, 0, 3)


async def test_a_broker_that_goes_away_in_between_leaves_the_rest_in_order(engine: AsyncEngine) -> None:
    outbox, broker = await with_orders(engine, "0", "0", "0", batch_records=2), Broker()
    assert await outbox.relay_once(broker, by_order) == 2  # type: ignore[arg-type]  # as above
    broker.is_away = {0}
    with pytest.raises(DeliveryError, match="is away"):
        await outbox.relay_once(broker, by_order)  # type: ignore[arg-type]  # as above
    assert [row.published_at is not None for row in await rows(engine)] == [True, True, False]
    assert (await outbox.prune(timedelta(0)), len(await rows(engine))) == (0, 3)


async def test_headers_come_out_as_they_went_in_whatever_their_bytes(engine: AsyncEngine) -> None:
    outbox, broker = Outbox(engine, lambda: NOON), Broker()
    await outbox.create_tables()
    given = [
        [("ce_id", b"1"), ("empty", b""), ("ce_id", b"twice"), ("quoted", b'"\\\x00\n')],
        [("\u00e9", "\u00e9\U0001f600".encode())],
        [("binary", b"\xff\x00"), ("text", b"beside it"), ("cut", "\u00e9".encode()[:1])],
        [],
    ]
    facts = {"topic": ORDERS.name, "key": b"0", "type": "order.placed", "value": b"{}", "partition": None}
    async with engine.begin() as tx:
        made = [
            OutboxRow(headers=headers, id=f"e{i}", not_before=None, schedule_id=None, created_at=NOON, **facts)  # type: ignore[arg-type]  # facts of several types
            for i, headers in enumerate(given)
        ]
        await store(tx, made, outbox=None)
    await outbox.relay_once(broker, by_order)  # type: ignore[arg-type]  # the part of a producer that it uses
    assert [list(headers) for headers in broker.headers] == given
