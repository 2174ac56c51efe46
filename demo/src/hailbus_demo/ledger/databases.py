"""Reads the services' databases by plain SQL, without their code, and the event logger's file. Changes nothing."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hailbus import ConfigurationError
from hailbus.database import READ_ONLY, create_engine
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.ledger.accounts import (
    Answer,
    BookingAccount,
    BookingDriver,
    BookingMultiplier,
    BookingQuote,
    BookingRide,
    InboxAccount,
    JournalAccount,
    Journey,
    Movement,
    OutboxRow,
    OutboxState,
    ParkedAccount,
    ParkedEvent,
    Payment,
    PaymentAccount,
    ProviderAccount,
    RecommenderAccount,
    Sums,
    SurgeAccount,
)
from hailbus_demo.ledger.log import COMPACTED, content_hash, pack_id, value_hash

ROWS_AT_A_TIME = 5_000
_DATA = b',"data":'
_OPTION_ID, _RANK = 0, 2
"""Positions of the fields of an option in `recommender_answer.options`."""


async def read_booking(url: str) -> BookingAccount:
    """Read rides, quotes, drivers, multipliers and the outbox of booking's database.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    try:
        event_us = await _event_clock_us(reader)
        now_us = _wall_us() if event_us is None else event_us
        return BookingAccount(
            rides={
                row[0]: BookingRide(*row[1:])
                async for row in reader.rows(
                    "SELECT ride_id, state, reason, seq, timer_seq, quote_id, rider_id, driver_id, fare_minor, "
                    "seeks_partner, payment, payment_seq, paid_minor, owed_minor FROM booking_rides"
                )
            },
            quotes={
                row[0]: BookingQuote(*row[1:])
                async for row in reader.rows(
                    "SELECT quote_id, state, seq, rider_id, ride_id, fare_minor, multiplier FROM booking_quotes"
                )
            },
            drivers={
                row[0]: BookingDriver(*row[1:])
                async for row in reader.rows("SELECT driver_id, status, seq, ride_id FROM booking_drivers")
            },
            multipliers={
                row[0]: BookingMultiplier(row[1], row[2], _ms(row[3]))
                async for row in reader.rows("SELECT cell, multiplier, version, valid_until FROM booking_multipliers")
            },
            outbox=[_outbox_row(row, now_us, is_dated=event_us is None) async for row in reader.rows(_OUTBOX)],
        )
    finally:
        await reader.close()


_OUTBOX_COLUMNS = (
    "SELECT id, aggregatetype, type, aggregateid, payload, headers, published_at, cancelled_at, failed_at, not_before, "
    "published_partition, published_offset FROM hailbus_outbox "
)
_OUTBOX = _OUTBOX_COLUMNS + "ORDER BY position"
_PAID = _OUTBOX_COLUMNS + "WHERE aggregatetype = 'payments.v1' ORDER BY position"
_SAGA = "SELECT instance, state, data FROM hailbus_state WHERE machine = 'saga'"


async def read_payment(url: str) -> PaymentAccount:
    """Read the payments and the outbox of payment's database. Its requests to the provider are its own affair.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    try:
        payments = {row[0]: _payment(row[1], json.loads(row[2])["payment"]) async for row in reader.rows(_SAGA)}
        now_us = _wall_us()
        outbox = [_outbox_row(row, now_us, is_dated=True) async for row in reader.rows(_PAID)]
    finally:
        await reader.close()
    return PaymentAccount(payments=payments, outbox=outbox)


def _payment(state: str, data: Mapping[str, Any]) -> Payment:
    ending, step = data["ending"], data["step"]
    return Payment(
        state=state,
        payment_id=data["payment_id"],
        rider_id=data["rider_id"],
        seq=data["seq"],
        sums=Sums(*(data[f"{name}_minor"] for name in Sums._fields)),
        owed=0 if ending is None or data["refused"] is None else max(ending["due_minor"] - data["captured_minor"], 0),
        step=None if step is None else step["kind"],
    )


async def read_provider(url: str) -> ProviderAccount:
    """Read the payment provider's books.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    try:
        movements = [
            Movement(*row)
            async for row in reader.rows(
                "SELECT transaction_id, authorisation_id, reference, kind, amount_minor, currency, key "
                "FROM provider_transactions ORDER BY transaction_id"
            )
        ]
        authorisations = {
            row[0]: (row[1], Sums(*row[2:]))
            async for row in reader.rows(
                "SELECT authorisation_id, reference, authorised_minor, captured_minor, released_minor, refunded_minor "
                "FROM provider_authorisations"
            )
        }
    finally:
        await reader.close()
    return ProviderAccount(movements=movements, authorisations=authorisations)


async def count_under_way(url: str) -> int:
    """Return how many payments wait for the provider, and how many events payment has yet to publish.

    A declined card that is charged again soon is one of them: it would be while the accounts are read.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    try:
        count = sum([int(row[0]) async for row in reader.rows(_UNDER_WAY)])
        return count + sum([int(row[0]) async for row in reader.rows(_DUE, {"now": _wall_us() + SOON_US})])
    finally:
        await reader.close()


SOON_US = 30_000_000
"""As long as a run's payment waits at most before it charges a declined card again."""
_UNDER_WAY = (
    "SELECT count(*) FROM hailbus_state WHERE machine = 'saga' "
    "AND state IN ('Authorising', 'Capturing', 'Releasing', 'Refunding')"
)
_DUE = (
    "SELECT count(*) FROM hailbus_outbox WHERE published_at IS NULL AND cancelled_at IS NULL "
    "AND failed_at IS NULL AND (not_before IS NULL OR not_before <= :now)"
)


def _outbox_row(row: Sequence[Any], now_us: int, *, is_dated: bool) -> OutboxRow:
    event_id, topic, kind, key, payload, headers, published, cancelled, failed, not_before, partition, offset = row
    state: OutboxState
    if published is not None:
        state = "published"
    elif cancelled is not None:
        state = "cancelled"
    elif failed is not None:
        state = "failed"
    elif not_before is not None and not_before > now_us:
        state = "waiting"
    else:
        state = "due"
    content = content_hash(
        None if key is None else key.encode(),
        None if payload is None else payload.encode(),
        [
            (name, value.encode() if isinstance(value, str) else base64.b64decode(value["base64"]))
            for name, value in json.loads(headers)
        ],
    )
    published_ms = published // 1000 if published is not None and is_dated else None
    return OutboxRow(pack_id(event_id), topic, kind, key, state, partition, offset, published_ms, content)


async def count_due(url: str) -> int:
    """Return how many events booking's outbox has yet to publish.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    try:
        event_us = await _event_clock_us(reader)
        now_us = _wall_us() if event_us is None else event_us
        return sum([int(row[0]) async for row in reader.rows(_DUE, {"now": now_us})])
    finally:
        await reader.close()


async def _event_clock_us(reader: _Database) -> int | None:
    """Return the time of booking's event clock in microseconds, `None` where booking follows the time of day."""
    latest = [row[0] async for row in reader.rows("SELECT now FROM booking_clock WHERE name = 'event'")]
    return _ms(latest[0]) * 1000 if latest else None


def _wall_us() -> int:
    return time.time_ns() // 1_000


async def read_inbox(url: str, consumer: str) -> InboxAccount:
    """Read what one consumer claimed.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    account = InboxAccount(consumer=consumer)
    statement = (
        'SELECT event_id, topic, "partition", offset_, seen_count, applied_at FROM hailbus_inbox '
        "WHERE consumer = :consumer"
    )
    try:
        async for event_id, topic, partition, offset, seen, at in reader.rows(statement, {"consumer": consumer}):
            account.add(event_id, topic, partition, offset, seen, at // 1000)
    finally:
        await reader.close()
    return account


async def read_parked(urls: Sequence[str]) -> ParkedAccount:
    """Read which events wait in the parking lots of some databases.

    Raises:
        RunFailedError: A database cannot be read.
    """
    events: list[ParkedEvent] = []
    for url in urls:
        reader = _Database(url)
        try:
            async for group, topic, partition, offset, key, reason in reader.rows(_PARKED):
                shown = bytes(key).decode("utf-8", "backslashreplace")
                events.append(ParkedEvent(group, topic, partition, offset, shown, reason))
        finally:
            await reader.close()
    return ParkedAccount(events=events)


_PARKED = 'SELECT consumer, topic, "partition", offset_, key, reason FROM hailbus_parked ORDER BY position'


async def read_recommender(url: str) -> RecommenderAccount:
    """Read what the recommender answered and learned.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    answers: dict[str, Answer] = {}
    pruned = False
    try:
        async for number, recommendation_id, rider_id, options, chosen in reader.rows(
            "SELECT number, recommendation_id, rider_id, options, chosen_option_id FROM recommender_answer "
            "ORDER BY number"
        ):
            pruned = pruned or (not answers and number > 1)
            pairs = tuple((str(option[_OPTION_ID]), int(option[_RANK])) for option in json.loads(options))
            answers[recommendation_id] = Answer(rider_id, pairs, chosen)
        journeys = Counter(
            [
                Journey(*row)
                async for row in reader.rows(
                    "SELECT rider_id, pickup_cell, dropoff_cell, started_s FROM recommender_journey"
                )
            ]
        )
        open_rides = frozenset([row[0] async for row in reader.rows("SELECT ride_id FROM recommender_open_ride")])
    finally:
        await reader.close()
    return RecommenderAccount(answers=answers, journeys=journeys, open_rides=open_rides, pruned=pruned)


async def read_surge(url: str, worker: str) -> SurgeAccount:
    """Read what surge has counted and which prices it holds.

    Raises:
        RunFailedError: The database cannot be read.
    """
    reader = _Database(url)
    statement = "SELECT kind, name, content FROM surge_row WHERE worker = :worker AND kind IN ('city', 'slots')"
    try:
        rows = [tuple(row) async for row in reader.rows(statement, {"worker": worker})]
    finally:
        await reader.close()
    state: dict[str, Any] = {}
    pickups: dict[int, dict[str, int]] = {}
    drivers: dict[int, dict[str, int]] = {}
    for kind, name, content in rows:
        try:
            row = json.loads(content)
            if kind == "slots":
                number, _, of = name.partition("/")
                counts = {str(cell): int(count) for cell, count in row.items()}
                (drivers if of == "drivers" else pickups)[int(number)] = counts
            elif name == "state":
                state = dict(row)
        except (ValueError, TypeError, AttributeError) as error:
            raise RunFailedError(f"surge's row {kind} {name} cannot be read: {error}") from error
    return SurgeAccount(state=state, pickups=pickups, drivers=drivers)


def read_journal(path: Path) -> JournalAccount:
    """Read the event logger's file.

    Raises:
        RunFailedError: The file cannot be read.
    """
    account = JournalAccount()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                cut = line.find(_DATA)
                try:
                    head = json.loads(line[:cut] + b"}") if cut > 0 and line.endswith(b"}\n") else None
                    if head is None:
                        account.broken.append((number, "the line is torn"))
                        continue
                    topic, partition, offset = str(head["topic"]), int(head["partition"]), int(head["offset"])
                    account.add(str(head["id"]), topic, partition, offset, value_hash(line[cut + len(_DATA) : -2]))
                    if topic in COMPACTED and head["subject"] is not None:
                        account.keys[topic, partition, offset] = str(head["subject"])
                except (ValueError, KeyError, TypeError) as error:
                    account.broken.append((number, f"the line cannot be read: {error}"))
    except OSError as error:
        raise RunFailedError(f"{path} cannot be read: {error.strerror}") from error
    return account


class _Database:
    """One database, read only."""

    def __init__(self, url: str) -> None:
        try:
            self.engine = create_engine(url)
        except ConfigurationError as error:
            raise UsageError(f"--database: {error}") from error
        path = self.engine.url.database
        if self.engine.dialect.name == "sqlite" and path and not Path(path).is_file():
            raise RunFailedError(f"{path} does not exist")  # to open it would make an empty one

    async def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> AsyncIterator[Sequence[Any]]:
        """Yield the rows of a statement.

        Raises:
            RunFailedError: The database cannot be read.
        """
        try:
            async with self.engine.connect() as connection:
                await connection.execution_options(**READ_ONLY)
                result = await connection.stream(text(statement), dict(values or {}))
                async for rows in result.partitions(ROWS_AT_A_TIME):
                    for row in rows:
                        yield row
        except (SQLAlchemyError, OSError) as error:
            shown = self.engine.url.render_as_string(hide_password=True)
            raise RunFailedError(f"{shown} cannot be read: {str(error).splitlines()[0]}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self.engine.dispose()


def _ms(value: Any) -> int:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
