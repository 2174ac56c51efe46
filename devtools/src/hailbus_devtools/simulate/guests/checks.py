"""What the services of a campaign must have kept: each committed event is published, and its effect applied once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.testing.history import History, Polled, violations

from hailbus_devtools.simulate.guests.services import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hailbus_broker.testing.campaign.context import Found
    from hailbus_broker.testing.campaign.guests import TopicContents

    from hailbus_devtools.simulate.guests.books import Books

MOST: Final = 5
LETTERS: Final = ("orders.v1.till-dlt", "orders.v1.till-ledger-dlt", "orders.v1.till-copies-dlt")

Numbered = tuple[int, str]
"""An order's number and customer."""


def first_of_each(orders: Iterable[Numbered]) -> Iterator[Numbered]:
    """Leave out what came before."""
    seen = set()
    for order in orders:
        if order not in seen:
            seen.add(order)
            yield order


def unpublished(stored: Sequence[Numbered], published: Sequence[Numbered]) -> Iterator[str]:
    """An order that was committed with its event in the outbox, and whose event was never published."""
    for number, customer in sorted(set(stored) - set(published)):
        yield f"order {number} of {customer}"


def published_in_vain(stored: Sequence[Numbered], published: Sequence[Numbered]) -> Iterator[str]:
    """An event of a transaction that was rolled back."""
    for number, customer in sorted(set(published) - set(stored)):
        yield f"order {number} of {customer}"


def out_of_order(stored: Sequence[Numbered], published: Sequence[Numbered]) -> Iterator[str]:
    """A key whose events came, when each came first, in another order than they were stored."""
    places = {order: place for place, order in enumerate(stored)}
    found: dict[str, list[Numbered]] = defaultdict(list)
    for order in first_of_each(published):
        if order in places:
            found[order[1]].append(order)
    for customer, orders in sorted(found.items()):
        if orders != sorted(orders, key=places.__getitem__):
            yield f"{customer}: {[number for number, _ in orders]}"


def not_applied_once(stored: Sequence[Numbered], effects: Sequence[Numbered]) -> Iterator[str]:
    """An order whose effect is missing, or there twice."""
    counts = Counter(effects)
    for order in sorted(set(stored) | set(effects)):
        wanted = int(order in stored)
        if counts[order] != wanted:
            yield f"order {order[0]} of {order[1]} was applied {counts[order]} times, expected {wanted}"


def inexact_copies(source: Sequence[Found], copies: Sequence[Found]) -> Iterator[str]:
    """A partition whose records were not copied once each, in their order."""
    for partition in range(PARTITIONS):
        wanted = [order_of(found) for found in source if found.partition == partition]
        got = [order_of(found) for found in copies if found.partition == partition]
        if got != wanted:
            wrong = next(
                (i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted))
            )
            yield f"partition {partition}: {len(got)} copies of {len(wanted)} records differ from number {wrong} on"


def unhandled(source: Sequence[Found], handled: Sequence[tuple[int, int]]) -> Iterator[str]:
    """A record that a handler which is called at least once never handled."""
    for found in source:
        if (found.partition, found.offset) not in handled:
            yield f"{found.partition}/{found.offset}"


def handled_twice(handled: Sequence[tuple[int, int]]) -> Iterator[str]:
    """A record with which a handler was called twice that is called at most once."""
    for place, count in sorted(Counter(handled).items()):
        if count > 1:
            yield f"{place[0]}/{place[1]}: {count} times"


def contradicting_outcomes(books: Books, stored: Sequence[Numbered]) -> Iterator[str]:
    """A transaction that the store kept although it was rolled back, or lost although it was committed."""
    numbers = {number for number, _ in stored}
    for order in books.orders:
        if order.outcome != "unknown" and (order.outcome == "ok") != (order.number in numbers):
            yield f"order {order.number}: {order.outcome}, {'there' if order.number in numbers else 'gone'}"


def order_of(found: Found) -> Numbered:
    """Return the order that a record is about."""
    event: dict[str, Any] = json.loads(found.value or b"{}")
    return event["number"], event["customer"]


def tick_history(books: Books, found: Sequence[Found]) -> History:
    """Make a history of what was published without an outbox."""
    final = [
        Polled(
            process="final",
            life=0,
            partition=record.partition,
            offset=record.offset,
            value=json.loads(record.value or b"{}")["value"],
        )
        for record in found
    ]
    return History(sent=books.ticks, polled=(), final=final)


async def check_services(books: Books, contents: TopicContents, note: Callable[[str], None]) -> Mapping[str, list[str]]:
    """Return what each check found; nothing if the services kept all their promises."""
    placed = await contents("orders.v1", PARTITIONS)
    paid = [order_of(found) for found in await contents("payments.v1", PARTITIONS)]
    copies = await contents("copies.v1", PARTITIONS)
    ticks = tick_history(books, await contents("ticks.v1", PARTITIONS))
    letters = [len(await contents(topic, PARTITIONS)) for topic in LETTERS]
    published = [order_of(found) for found in placed]
    stored = books.shop.rows("SELECT number, customer FROM orders ORDER BY number") or []
    effects = books.till.rows("SELECT number, customer FROM effects ORDER BY id") or []
    for _ in range(len(published) - len(set(published))):
        note("order published twice")
    found: dict[str, Iterable[str]] = {
        "contradicting_outcomes": contradicting_outcomes(books, stored),
        "unpublished": unpublished(stored, published),
        "published_in_vain": published_in_vain(stored, published),
        "out_of_order": out_of_order(stored, published),
    }
    if books.has_till:
        found |= {
            "not_applied_once": not_applied_once(stored, effects),
            "applied_out_of_order": out_of_order(stored, effects),
            "unpublished payments": unpublished(effects, paid),
            "payments published_in_vain": published_in_vain(effects, paid),
            "payments out_of_order": out_of_order(effects, paid),
            "inexact_copies of a service": inexact_copies(placed, copies),
            "unhandled": unhandled(placed, books.handled["at least once"]),
            "handled_twice": handled_twice(books.handled["at most once"]),
            "dead letters": [f"{topic}: {count}" for topic, count in zip(LETTERS, letters, strict=True) if count],
        }
    problems = {name: list(lines)[:MOST] for name, lines in found.items()}
    problems |= {f"ticks: {name}": lines for name, lines in violations(ticks).items()}
    return {name: lines for name, lines in problems.items() if lines}
