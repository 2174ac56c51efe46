"""Numbered events come in any order, late, often and between events of other types: each is applied once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

from hailbus import (
    Backoff,
    Batch,
    Catalogue,
    Context,
    EffectivelyOnce,
    Event,
    Inbox,
    ParkingLot,
    ParkKey,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus.database import create_engine
from hailbus.testing import MemoryBus, VirtualLoop
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

TRIPS = Topic("trips.v1", partitions=1)


class TripEvent(Event, topic=TRIPS, key="trip_id"):
    trip_id: str
    seq: int


class Moved(TripEvent, type="trip.moved"):
    pass


class Noted(TripEvent, type="trip.noted"):
    """Nobody handles it."""


Arrival = tuple[str, int]
Taking = Literal["single", "batch", "own"]


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[dict[str, list[bool]], list[list[Arrival]]]:
    """For each key which of its events are handled; and the order in which all come, in one part per process."""
    handled = {key: draw(st.lists(st.booleans(), min_size=1, max_size=6)) for key in "ab"}
    once = [(key, number) for key, kinds in handled.items() for number in range(1, len(kinds) + 1)]
    again = draw(st.lists(st.sampled_from(once), max_size=6))
    order: list[Arrival] = draw(st.permutations(once + again))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=2)))
    edges = [0, *cuts, len(order)]
    return handled, [order[start:end] for start, end in pairwise(edges)]


@settings(max_examples=60)
@given(arrivals(), st.sampled_from(["single", "batch", "own"]), st.sets(st.integers(0, 12), max_size=3))
def test_any_arrival_ends_in_the_effects_of_the_order(
    plan: tuple[dict[str, list[bool]], list[list[Arrival]]], taking: Taking, failing: set[int]
) -> None:
    handled, parts = plan
    with contextlib.closing(VirtualLoop()) as loop, tempfile.TemporaryDirectory() as folder:
        effects, waiting = loop.run_until_complete(run(folder, handled, parts, taking=taking, failing=failing))
    assert waiting == 0
    for key, kinds in handled.items():
        assert effects[key] == [number for number, is_handled in enumerate(kinds, 1) if is_handled]


async def run(
    folder: str, handled: dict[str, list[bool]], parts: Sequence[list[Arrival]], *, taking: Taking, failing: set[int]
) -> tuple[dict[str, list[int]], int]:
    """Handle each part by a process of its own; the calls that are numbered in `failing` raise and are repeated."""
    engine = create_engine(f"sqlite:///{folder}/trips.db")
    lot, inbox, bus, calls = ParkingLot(engine), Inbox(engine, "trips"), MemoryBus(), 0
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE effects (trip TEXT, seq INTEGER)"))

    async def apply(event: Moved, tx: Any) -> None:
        nonlocal calls
        calls += 1
        await tx.execute(text("INSERT INTO effects VALUES (:k, :n)"), {"k": event.trip_id, "n": event.seq})
        if calls in failing:
            raise ConnectionError("after the effect, before the commit")

    def service() -> Service:
        svc = Service("trips", catalogue=Catalogue.of(Moved, Noted), subscribing=SubscriberSettings(poll_records=3))
        delivery = EffectivelyOnce(
            inbox=inbox,
            retry=Backoff(first=timedelta(milliseconds=1), attempts=10),
            then=ParkKey(lot=lot, look_every=timedelta(milliseconds=5)),
            sequence="seq",
            own_transaction=taking == "own",
        )
        if taking == "own":

            @svc.on_batch(Moved, delivery=delivery, max_items=3, max_wait=timedelta(milliseconds=1))
            async def move_and_commit(items: Batch[Moved]) -> None:
                async with engine.begin() as tx:
                    claim = await items.claim(tx)
                    for item in items:
                        if item in claim:
                            await apply(item.event, tx)
                    await claim.store()

        elif taking == "batch":

            @svc.on_batch(Moved, delivery=delivery, max_items=3, max_wait=timedelta(milliseconds=1))
            async def move_all(items: Batch[Moved]) -> None:
                for item in items:
                    await apply(item.event, items.tx)

        else:

            @svc.on(Moved, delivery=delivery)
            async def move(event: Moved, ctx: Context) -> None:
                await apply(event, ctx.tx)

        return svc

    async def release_all() -> None:
        while found := await lot.keys("trips"):
            for key in found:
                await lot.release("trips", key.topic, key.key)
            await asyncio.sleep(0.1)

    for part in parts:
        async with bus.run(service()) as t:
            for key, number in part:
                cls = Moved if handled[key][number - 1] else Noted
                await t.given(cls(trip_id=key, seq=number), id=f"{key}-{number}")
            await t.settle()
            if part is parts[-1] and failing:
                async with asyncio.timeout(60):
                    await release_all()  # what failed while it followed is parked for a person
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT trip, seq FROM effects ORDER BY rowid"))).all()
    waiting = len(await lot.keys("trips"))
    await engine.dispose()
    return {key: [seq for trip, seq in rows if trip == key] for key in handled}, waiting
