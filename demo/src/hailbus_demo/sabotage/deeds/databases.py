"""Faults in the services' databases: effects that are doubled, lost or only claimed, and a second payment."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from hailbus_demo.sabotage.deeds.deed import PAYMENTS, Deed, RideEvent

CLAIMED_EVENTS = 3
BUSY_S = 30.0
"""How long a write waits for the service that has the database."""


def published_ids(database: Path, topic: str) -> set[str]:
    """Return the ids of a topic's events that an outbox knows to be published."""
    with _open(database) as connection:
        rows = connection.execute(
            "SELECT id FROM hailbus_outbox WHERE aggregatetype = ? AND published_at IS NOT NULL", (topic,)
        )
        return {event_id for (event_id,) in rows}


def published_count(database: Path, kind: str) -> int:
    """Return how many events of a type an outbox knows to be published."""
    with _open(database) as connection:
        found = connection.execute(
            "SELECT count(*) FROM hailbus_outbox WHERE type = ? AND published_at IS NOT NULL", (kind,)
        ).fetchone()
    return int(found[0])


def apply_twice(database: Path, events: Sequence[RideEvent]) -> Deed | None:
    """Store a journey of the recommender a second time, as a handler without an inbox would after a redelivery.

    Args:
        database: The recommender's.
        events: Of rides.
    """
    with _open(database) as connection:
        for event in events:
            found = _journeys_of(connection, event)
            if len(found) == 1:
                connection.execute(
                    "INSERT INTO recommender_journey (rider_id, pickup_cell, dropoff_cell, started_s) "
                    "SELECT rider_id, pickup_cell, dropoff_cell, started_s FROM recommender_journey WHERE id = ?",
                    found[0],
                )
                return event.deed("double-apply", "is applied twice in the recommender's database")
    return None


def lose_effect(database: Path, events: Sequence[RideEvent]) -> Deed | None:
    """Delete a journey of the recommender whose event its inbox says was applied; see `apply_twice`."""
    with _open(database) as connection:
        for event in events:
            found = _journeys_of(connection, event)
            if len(found) == 1:
                connection.execute("DELETE FROM recommender_journey WHERE id = ?", found[0])
                return event.deed("lost-effect", "has no effect in the recommender's database any more")
    return None


def claim_unapplied(
    database: Path, consumer: str, events: Sequence[RideEvent], *, least: int = CLAIMED_EVENTS
) -> Deed | None:
    """Claim events in the inbox of a stopped consumer that it has not seen yet.

    Args:
        database: The consumer's.
        consumer: Its name.
        events: Of rides.
        least: How many events to claim.
    """
    with _open(database) as connection:
        known = {
            event_id
            for (event_id,) in connection.execute("SELECT event_id FROM hailbus_inbox WHERE consumer = ?", (consumer,))
        }
        unseen = [event for event in events if event.event_id not in known][:least]
        if len(unseen) < least:
            return None
        now_us = time.time_ns() // 1_000
        connection.executemany(
            'INSERT INTO hailbus_inbox (consumer, source, event_id, topic, "partition", offset_, seen_count, '
            "applied_at) VALUES (?, ?, ?, ?, ?, ?, 1, ?)",
            [(consumer, e.source, e.event_id, e.topic, e.partition, e.offset, now_us) for e in unseen],
        )
    return unseen[0].deed("idle-consumer", f"and {least - 1} more are claimed in {consumer}'s inbox and not applied")


def pay_twice(database: Path) -> Deed | None:
    """Have payment publish a second payment of a ride: authorised and captured, under ids of their own."""
    with _open(database) as connection:
        found = connection.execute(
            "SELECT aggregateid FROM hailbus_outbox WHERE type = 'payment.captured' AND published_at IS NOT NULL "
            "ORDER BY position LIMIT 1"
        ).fetchone()
        if found is None:
            return None
        ride_id = found[0]
        rows = connection.execute(
            "SELECT aggregatetype, aggregateid, type, payload, headers, created_at FROM hailbus_outbox "
            "WHERE aggregateid = ? AND type IN ('payment.authorised', 'payment.captured') ORDER BY position",
            (ride_id,),
        ).fetchall()
        payment_id, event_id, amount = str(uuid.uuid4()), "", 0
        for topic, key, kind, payload, headers, created_at in rows:
            event_id = str(uuid.uuid4())
            changed = {**json.loads(payload), "payment_id": payment_id}
            amount = changed["amount"]["amount_minor"]
            connection.execute(
                "INSERT INTO hailbus_outbox (id, aggregatetype, aggregateid, type, payload, headers, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    event_id,
                    topic,
                    key,
                    kind,
                    json.dumps(changed, separators=(",", ":")),
                    json.dumps([[n, event_id if n == "ce_id" else value] for n, value in json.loads(headers)]),
                    created_at,
                ),
            )
    return Deed(
        fault="double-payment",
        sentence=f"{amount} cents are captured again for ride {ride_id}, as payment {payment_id}, event {event_id}",
        topic=PAYMENTS,
        partition=None,
        offset=None,
        id=ride_id,
    )


def _journeys_of(connection: sqlite3.Connection, event: RideEvent) -> list[tuple[int]]:
    """Return the keys of the recommender's journeys that came of an event; only ride.completed makes any."""
    if event.type != "ride.completed":
        return []
    started_s = datetime.fromisoformat(event.payload["started_at"]).timestamp()
    rows: list[tuple[int]] = connection.execute(
        "SELECT id FROM recommender_journey WHERE rider_id = ? AND abs(started_s - ?) < 0.001",
        (event.payload["rider_id"], started_s),
    ).fetchall()
    return rows


@contextlib.contextmanager
def _open(database: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection whose changes are committed at the end. It waits for the service that writes."""
    with (
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=BUSY_S)) as connection,
        connection,
    ):
        yield connection
