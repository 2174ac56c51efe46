"""Dead letters: edited, replayed once, dropped, each with an audit record; the page does the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from hailbus import AtLeastOnce, Backoff, ConfigurationError, Context, Event, Service, Topic
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import AUDIT, DeadLetterQueue, with_fields
from hailbus.errors import ProducerFencedError
from hailbus.fastapi import dead_letter_router
from hailbus.testing import MemoryBus

ORDERS = Topic("orders.v1", partitions=2)
QUEUE = dead_letter_topic(ORDERS, "shop")


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int


class Shop:
    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.seen: list[OrderPlaced] = []
        self.svc = Service("shop")

        @self.svc.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(attempts=1)))
        async def take(event: OrderPlaced, ctx: Context) -> None:
            if event.amount < 0:
                raise ValueError("<b>negative</b>")
            self.seen.append(event)


@asynccontextmanager
async def shop_with_a_letter() -> AsyncIterator[tuple[Shop, str]]:
    shop = Shop()
    async with shop.bus.run(shop.svc) as t:
        t.expect_dead_letters()
        await t.given(OrderPlaced(order_id="o1", amount=-5))
        await t.settle()
        (letter,) = await DeadLetterQueue(shop.bus, QUEUE).letters()
        yield shop, letter.place
        await t.settle()


async def test_a_dead_letter_replayed_twice_changes_nothing() -> None:
    async with shop_with_a_letter() as (shop, place):
        queue = DeadLetterQueue(shop.bus, QUEUE, by="ada")
        await queue.edit(place, b'{"order_id":"o1","amount":5}')
        assert [letter.place for letter in await queue.replay([place])] == [place]
        assert await queue.replay([place]) == []
        assert await queue.replay() == []
    assert shop.seen == [OrderPlaced(order_id="o1", amount=5)]
    ids = [dict(record.headers)["ce_id"] for record in shop.bus.records(ORDERS)]
    assert len(ids) == 2
    assert len(set(ids)) == 1  # the replay is the same event: consumers that dedupe apply it once


async def test_every_action_leaves_who_did_it() -> None:
    async with shop_with_a_letter() as (shop, place):
        await DeadLetterQueue(shop.bus, QUEUE, by="ada").edit(place, b'{"order_id":"o1","amount":5}')
        await DeadLetterQueue(shop.bus, QUEUE, by="bob").drop([place])
        (letter,) = await DeadLetterQueue(shop.bus, QUEUE).letters()
        assert letter.status == "dropped"
        assert [(entry["action"], entry["by"]) for entry in letter.history] == [("edited", "ada"), ("dropped", "bob")]
        with pytest.raises(ConfigurationError, match="was dropped; only letters that wait"):
            await DeadLetterQueue(shop.bus, QUEUE).edit(place, b"{}")
    assert shop.seen == []
    assert len(shop.bus.records(AUDIT)) == 2


async def test_a_replay_that_dies_before_its_commit_has_not_happened() -> None:
    async with shop_with_a_letter() as (shop, place):
        queue = DeadLetterQueue(shop.bus, QUEUE)
        async with queue._working() as producer:  # stands for a tool that hangs between send and commit
            letter = await queue.letter(place)
            await producer.begin()
            await producer.send(
                ORDERS.name, letter.origin_partition, [(b"o1", b'{"order_id":"o1","amount":7}', letter.record.headers)]
            )
            await queue.edit(place, b'{"order_id":"o1","amount":5}')
            await queue.replay([place])
            with pytest.raises(ProducerFencedError):
                await producer.commit()
            await producer.abort()
    assert shop.seen == [OrderPlaced(order_id="o1", amount=5)]


def test_fields_are_set_by_path() -> None:
    value = b'{"a":{"b":1},"c":2}'
    assert with_fields(value, {"a.b": 5, "d": "x"}) == b'{"a":{"b":5},"c":2,"d":"x"}'
    with pytest.raises(ConfigurationError, match=r"'c\.d' leads to no object"):
        with_fields(value, {"c.d": 1})
    with pytest.raises(ConfigurationError, match="is no JSON"):
        with_fields(b"broken", {"a": 1})


async def test_page_lists_shows_edits_and_replays() -> None:
    async with shop_with_a_letter() as (shop, place):
        app = FastAPI()
        app.include_router(dead_letter_router(shop.bus, who=lambda _: "ada"), prefix="/dlq")
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", follow_redirects=True) as http:
            assert f'<a href="/dlq/{QUEUE}">{QUEUE}</a></td><td>1</td><td>1</td>' in (await http.get("/dlq/")).text
            listed = (await http.get(f"/dlq/{QUEUE}")).text
            assert f'href="/dlq/{QUEUE}/{place}"' in listed
            assert "&lt;b&gt;negative&lt;/b&gt;" in listed  # nothing of a record is taken for markup
            letter = f"/dlq/{QUEUE}/{place}"
            assert "&quot;amount&quot;: -5" in (await http.get(letter)).text
            refused = await http.post(f"{letter}/edit", data={"value": "broken"})
            assert (refused.status_code, "This is no JSON" in refused.text) == (422, True)
            foreign = await http.post(f"{letter}/replay", headers={"sec-fetch-site": "cross-site"})
            assert foreign.status_code == 403
            value = json.dumps({"order_id": "o1", "amount": 5})
            assert "edited" in (await http.post(f"{letter}/edit", data={"value": value})).text
            replayed = await http.post(f"{letter}/replay")
            assert '<span class="status">replayed</span>' in replayed.text
            assert "<td>ada</td>" in replayed.text
            assert (await http.post(f"/dlq/{QUEUE}/replay")).status_code == 200
            assert (await http.get("/dlq/orders.v1")).status_code == 404
            assert (await http.get(f"/dlq/{QUEUE}/9@9")).status_code == 404
            assert (await http.post(f"{letter}/burn")).status_code == 404
    assert shop.seen == [OrderPlaced(order_id="o1", amount=5)]
