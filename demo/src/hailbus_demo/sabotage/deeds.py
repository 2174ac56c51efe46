"""What the saboteur does to log files, databases, the cluster and the lake: one function per fault, no timing.

Each function returns what it did, or `None` where it found nothing that it could do the fault to.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hailbus.codec import encode
from hailbus.envelope import Envelope
from hailbus_broker.records import Record
from ride_events import LatLng, Money
from ride_events.rides import RideRequested

from hailbus_demo.errors import RunFailedError
from hailbus_demo.sabotage.segments import LogFiles, Placed

PAYMENTS = "payments.v1"
RIDES = "rides.v1"
LOST_RECORDS = 3
CLAIMED_EVENTS = 3
BUSY_S = 30.0
"""How long a write waits for the service that has the database."""
DELIVERED_WITHIN_S = 30.0
BRONZE = "bronze.events"
LAKE_CATALOG = "lake"
COMMIT_ATTEMPTS = 20
"""Spark may commit at any moment; the slower of two commits has to look at the table again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A fault that was done: a sentence, and the record that the ledger has to name, by its place or an id.

    `also` are ids of what the event concerns, where the ledger knows nothing closer.
    """

    fault: str
    sentence: str
    topic: str
    partition: int | None
    offset: int | None
    id: str
    """The id of the event, or of the ride where the fault concerns no single event."""
    also: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------------------- log files


def lose_tail(files: LogFiles, *, acknowledged: set[str], least: int = LOST_RECORDS) -> Deed | None:
    """Cut records off the end of a partition of payments.v1.

    Args:
        files: Of the stopped broker.
        acknowledged: Ids of events that booking knows to be published; the others it would publish again.
        least: How many acknowledged records have to go.
    """
    for partition in _fullest(files, PAYMENTS):
        records = files.records(PAYMENTS, partition)
        for candidate in reversed(records):
            gone = [placed for placed in records if placed.offset >= candidate.batch_base]
            lost = [placed for placed in gone if placed.header("ce_id") in acknowledged]
            if len(lost) >= least:
                files.truncate(PAYMENTS, partition, candidate.batch_base)
                return _deed(
                    "lost-tail",
                    lost[0],
                    f"{len(gone)} acknowledged records are gone from the end of {PAYMENTS}-{partition}, from offset "
                    f"{gone[0].offset} on; one is the {_name(lost[0])}",
                )
    return None


def lose_record(files: LogFiles) -> Deed | None:
    """Remove the first ride.started of the fullest partition of rides.v1."""
    for partition in _fullest(files, RIDES):
        for placed in files.records(RIDES, partition):
            if placed.header("ce_type") == "ride.started":
                files.remove(RIDES, partition, placed.offset)
                return _deed("lost-record", placed, f"the {_name(placed)} is gone from {_place(placed)}")
    return None


def reorder(files: LogFiles) -> Deed | None:
    """Exchange the second and the third record of a ride; each place keeps its offset and its timestamp."""
    for partition in _fullest(files, RIDES):
        trails: dict[bytes | None, list[Placed]] = {}
        for placed in files.records(RIDES, partition):
            trail = trails.setdefault(placed.record.key, [])
            trail.append(placed)
            if len(trail) == 4:
                _, first, second, _ = trail
                files.replace(
                    RIDES,
                    partition,
                    {
                        first.offset: _moved(second.record, to=first.record),
                        second.offset: _moved(first.record, to=second.record),
                    },
                )
                return Deed(
                    fault="reordered",
                    sentence=(
                        f"the {_name(second)} stands at {_place(first)} now, before the {_name(first)} at "
                        f"{_place(second)}"
                    ),
                    topic=RIDES,
                    partition=partition,
                    offset=second.offset,
                    id=first.header("ce_id"),
                )
    return None


def alter(files: LogFiles) -> Deed | None:
    """Add 100 to the amount of the first payment.captured of the fullest partition of payments.v1."""
    for partition in _fullest(files, PAYMENTS):
        for placed in files.records(PAYMENTS, partition):
            if placed.header("ce_type") != "payment.captured" or placed.record.value is None:
                continue
            payload = json.loads(placed.record.value)
            before = payload["amount"]["amount_minor"]
            payload["amount"]["amount_minor"] = before + 100
            value = json.dumps(payload, separators=(",", ":")).encode()
            files.replace(PAYMENTS, partition, {placed.offset: replace(placed.record, value=value)})
            return _deed(
                "altered",
                placed,
                f"the {_name(placed)} at {_place(placed)} says {before + 100} in place of {before} cents",
            )
    return None


def _fullest(files: LogFiles, topic: str) -> list[int]:
    """Return the partitions of a topic, the one with the most records first."""
    counts = {partition: len(files.records(topic, partition)) for partition in files.partitions(topic)}
    return sorted(counts, key=lambda partition: (-counts[partition], partition))


def _moved(record: Record, *, to: Record) -> Record:
    return replace(record, timestamp=to.timestamp)


def _place(placed: Placed) -> str:
    return f"{placed.topic}-{placed.partition} offset {placed.offset}"


def _name(placed: Placed) -> str:
    return f"{placed.header('ce_type')} {placed.header('ce_id')}"


def _deed(fault: str, placed: Placed, sentence: str) -> Deed:
    return Deed(
        fault=fault,
        sentence=sentence,
        topic=placed.topic,
        partition=placed.partition,
        offset=placed.offset,
        id=placed.header("ce_id"),
    )


# ---------------------------------------------------------------------------------------------------------- databases


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
    """Have booking publish a second payment of a ride: authorised and captured, under ids of their own."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RideEvent:
    """An event of a ride as the log has it, as far as a consumer's database can be matched with it."""

    topic: str
    partition: int
    offset: int
    source: str
    event_id: str
    type: str
    payload: Mapping[str, Any]

    @classmethod
    def of(
        cls, topic: str, partition: int, offset: int, headers: Sequence[tuple[str, bytes | None]], value: bytes | None
    ) -> RideEvent:
        """Return what a record says."""
        texts = {name: content.decode("utf-8", "replace") for name, content in headers if content is not None}
        return cls(
            topic=topic,
            partition=partition,
            offset=offset,
            source=texts.get("ce_source", ""),
            event_id=texts.get("ce_id", ""),
            type=texts.get("ce_type", ""),
            payload=json.loads(value or b"{}"),
        )

    def deed(self, fault: str, what: str) -> Deed:
        """Return what was done to this event's effect."""
        where = f"{self.topic}-{self.partition} offset {self.offset}"
        return Deed(
            fault=fault,
            sentence=f"the {self.type} {self.event_id} at {where} {what}",
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            id=self.event_id,
            also=tuple(self.payload[name] for name in ("ride_id", "rider_id") if name in self.payload),
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


# ------------------------------------------------------------------------------------------------- cluster and lake


def invent(bootstrap: str, *, event_time: datetime) -> Deed:
    """Publish a ride.requested of a ride that booking never heard of, by a client that is none of the system's.

    Raises:
        RunFailedError: The cluster does not take it.
    """
    import confluent_kafka

    ride_id, event_id, quote_id = (str(uuid.uuid4()) for _ in range(3))
    start, end = LatLng(lat=40.758, lng=-73.9855), LatLng(lat=40.6782, lng=-73.9442)
    event = RideRequested(
        ride_id=ride_id,
        seq=1,
        rider_id="rider-invented",
        quote_id=quote_id,
        pickup=start,
        dropoff=end,
        pickup_cell=start.cell(),
        dropoff_cell=end.cell(),
        fare=Money(amount_minor=1999),
        multiplier=1.0,
        surge_version=None,
        simulated=True,
    )
    envelope = Envelope(
        id=event_id, source="/booking", type="ride.requested", version=1, time=event_time, subject=ride_id
    )
    key, value, headers = encode(event, envelope)
    outcome: list[Any] = []  # Any: the client ships no types
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    producer.produce(
        RIDES, value, key, headers=dict(headers), on_delivery=lambda error, message: outcome.append(error or message)
    )
    producer.flush(DELIVERED_WITHIN_S)
    if not outcome or isinstance(outcome[0], confluent_kafka.KafkaError):
        raise RunFailedError(f"the saboteur cannot publish at {bootstrap}: {outcome[0] if outcome else 'no answer'}")
    partition, offset = outcome[0].partition(), outcome[0].offset()
    return Deed(
        fault="invented",
        sentence=f"the ride.requested {event_id} at {RIDES}-{partition} offset {offset} was never decided by booking",
        topic=RIDES,
        partition=partition,
        offset=offset,
        id=event_id,
    )


def delete_lake_row(lake_dir: Path) -> Deed | None:
    """Delete one row of bronze: the one in the middle of the partition of rides.v1 with the most rows."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
    from sqlalchemy.exc import SQLAlchemyError

    database = (lake_dir / "catalog.db").absolute()
    if not database.is_file():
        return None
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            catalog = SqlCatalog(
                LAKE_CATALOG,
                uri=f"sqlite:///{database}",
                warehouse=(lake_dir / "warehouse").absolute().as_uri(),
                init_catalog_tables="false",
            )
            table = catalog.load_table(BRONZE)
            rows = (
                table.scan(row_filter=_equal(topic=RIDES), selected_fields=("partition", "offset"))
                .to_arrow()
                .to_pydict()
            )
            places = sorted(zip(rows["partition"], rows["offset"], strict=True))
            if not places:
                return None
            partition, offset = places[len(places) // 2]
            table.delete(_equal(topic=RIDES, partition=partition, offset=offset))
        except (NoSuchTableError, SQLAlchemyError):
            return None
        except CommitFailedException:
            if attempt == COMMIT_ATTEMPTS - 1:
                raise
            continue
        return Deed(
            fault="lake-row-missing",
            sentence=f"the row of {RIDES}-{partition} offset {offset} is gone from the lake's table {BRONZE}",
            topic=RIDES,
            partition=partition,
            offset=offset,
            id="",
        )
    return None


def _equal(**values: str | int) -> Any:  # Any: pyiceberg's expression, whose types do not know its own constructor
    """Return the rows in which every named column has its value, as an Iceberg expression."""
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo

    equal: Any = EqualTo
    found: Any = AlwaysTrue()
    for column, value in values.items():
        found = And(found, equal(column, value))
    return found
