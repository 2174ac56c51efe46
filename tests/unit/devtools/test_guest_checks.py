"""The checks of services in campaigns, on planted histories: each finds its defect, and a sound history passes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hailbus_broker.testing.campaign.context import Found
from hailbus_broker.testing.campaign.recorder import Recorder
from hailbus_broker.testing.history import Sent
from hailbus_broker.testing.simulation import World
from hailbus_devtools.simulate.guests.books import Books, OrderOp
from hailbus_devtools.simulate.guests.checks import check_services

SOUND = [(1, "ada"), (2, "bob"), (3, "ada")]


class Planted:
    """A sound history of three orders in one partition; tests change it before they check it."""

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        world = World(0)
        self.books = Books(world, Recorder(world.note))
        self.books.has_shop = self.books.has_till = True
        self.stored = list(SOUND)
        self.effects = list(SOUND)
        self.topics: dict[str, list[tuple[int, str]]] = {
            "orders.v1": list(SOUND),
            "payments.v1": list(SOUND),
            "copies.v1": list(SOUND),
        }
        self.ticks = [1, 2]
        self.books.ticks.extend(
            Sent(process="shop", partition=0, value=value, outcome="ok", offset=value - 1) for value in (1, 2)
        )
        self.books.orders.extend(OrderOp(number=number, outcome="ok") for number in (1, 2, 3))
        self.books.handled["at least once"] += [(0, 0), (0, 1), (0, 2), (0, 1)]
        self.books.handled["at most once"] += [(0, 0), (0, 2)]

    async def contents(self, topic: str, partition_count: int) -> list[Found]:
        assert partition_count == 2
        if topic == "ticks.v1":
            return found({"value": value} for value in self.ticks)
        return found({"number": number, "customer": customer} for number, customer in self.topics.get(topic, []))

    async def check(self) -> set[str]:
        for number, customer in self.stored:
            self.books.shop.create(f"INSERT INTO orders VALUES ({number}, '{customer}')")
        for number, customer in self.effects:
            self.books.till.create(f"INSERT INTO effects (number, customer) VALUES ({number}, '{customer}')")
        return set(await check_services(self.books, self.contents, lambda name: self.notes.update([name])))


def found(values: Iterable[dict[str, object]]) -> list[Found]:
    return [Found(0, offset, None, json.dumps(value).encode()) for offset, value in enumerate(values)]


async def test_a_sound_history_passes() -> None:
    planted = Planted()
    assert await planted.check() == set()


async def test_an_order_may_be_published_twice() -> None:
    planted = Planted()
    planted.topics["orders.v1"] += [(2, "bob"), (3, "ada")]
    planted.topics["copies.v1"] += [(2, "bob"), (3, "ada")]
    planted.books.handled["at least once"] += [(0, 3), (0, 4)]
    assert await planted.check() == set()
    assert planted.notes == {"order published twice": 2}


async def test_an_order_that_was_never_published_is_found() -> None:
    planted = Planted()
    planted.topics["orders.v1"].pop()
    planted.topics["copies.v1"].pop()
    assert await planted.check() == {"unpublished"}


async def test_an_order_that_was_rolled_back_and_published_is_found() -> None:
    planted = Planted()
    planted.stored.pop()
    planted.books.orders[2].outcome = "fail"
    assert await planted.check() == {"published_in_vain", "not_applied_once"}


async def test_orders_of_one_key_in_another_order_are_found() -> None:
    planted = Planted()
    planted.topics["orders.v1"] = planted.topics["copies.v1"] = [(3, "ada"), (2, "bob"), (1, "ada")]
    assert await planted.check() == {"out_of_order"}


async def test_orders_of_different_keys_have_no_order() -> None:
    planted = Planted()
    planted.topics["orders.v1"] = planted.topics["copies.v1"] = [(2, "bob"), (1, "ada"), (3, "ada")]
    assert await planted.check() == set()


@pytest.mark.parametrize("effects", [SOUND[:2], [*SOUND, (2, "bob")]], ids=["lost", "twice"])
async def test_an_effect_that_is_not_applied_once_is_found(effects: list[tuple[int, str]]) -> None:
    planted = Planted()
    planted.effects = effects
    assert "not_applied_once" in await planted.check()


async def test_effects_of_one_key_in_another_order_are_found() -> None:
    planted = Planted()
    planted.effects = planted.topics["payments.v1"] = [(3, "ada"), (2, "bob"), (1, "ada")]
    assert await planted.check() == {"applied_out_of_order"}


async def test_a_payment_that_was_never_published_is_found() -> None:
    planted = Planted()
    planted.topics["payments.v1"].pop()
    assert await planted.check() == {"unpublished payments"}


@pytest.mark.parametrize(
    "copies",
    [SOUND[:2], [*SOUND, (3, "ada")], [(2, "bob"), (1, "ada"), (3, "ada")]],
    ids=["missing", "twice", "another order"],
)
async def test_copies_that_are_not_exact_are_found(copies: list[tuple[int, str]]) -> None:
    planted = Planted()
    planted.topics["copies.v1"] = copies
    assert await planted.check() == {"inexact_copies of a service"}


async def test_a_record_that_was_not_handled_at_least_once_is_found() -> None:
    planted = Planted()
    planted.books.handled["at least once"].remove((0, 2))
    assert await planted.check() == {"unhandled"}


async def test_a_record_that_was_handled_more_than_at_most_once_is_found() -> None:
    planted = Planted()
    planted.books.handled["at most once"].append((0, 2))
    assert await planted.check() == {"handled_twice"}


@pytest.mark.parametrize(("number", "outcome"), [(4, "ok"), (3, "fail")], ids=["lost", "kept"])
async def test_a_store_that_does_what_it_did_not_say_is_found(number: int, outcome: str) -> None:
    planted = Planted()
    planted.books.orders[2:] = [OrderOp(number=number, outcome="ok" if outcome == "ok" else "fail")]
    assert await planted.check() == {"contradicting_outcomes"}


async def test_a_dead_letter_is_found() -> None:
    planted = Planted()
    planted.topics["orders.v1.till-dlt"] = [(1, "ada")]
    assert await planted.check() == {"dead letters"}


async def test_a_tick_that_is_lost_is_found() -> None:
    planted = Planted()
    planted.ticks.pop()
    assert await planted.check() == {"ticks: unseen"}


async def test_all_is_handled_when_every_semantic_has_reached_the_last_record() -> None:
    planted = Planted()
    await planted.check()
    books = planted.books
    for store in (books.shop, books.till):
        store.create("CREATE TABLE hailbus_outbox (published_at, published_partition, published_offset)")
    books.shop.create("INSERT INTO hailbus_outbox VALUES (1, 0, 2)")
    assert not books.is_all_handled()
    books.is_shop_done = True
    assert not books.is_all_handled()
    books.handled["exactly once"].append((0, 2))
    assert books.is_all_handled()
    books.till.create("INSERT INTO hailbus_outbox VALUES (NULL, NULL, NULL)")
    assert not books.is_all_handled()


async def test_a_shop_without_a_till_need_not_be_paid() -> None:
    planted = Planted()
    planted.books.has_till = False
    planted.effects = []
    planted.topics["payments.v1"] = planted.topics["copies.v1"] = []
    assert await planted.check() == set()


def test_a_till_without_a_shop_has_nothing_to_handle() -> None:
    planted = Planted()
    planted.books.has_shop = False
    assert planted.books.is_all_handled()
