"""Whether the log holds, byte for byte, what the outboxes know to be acknowledged: the first question after a restart.

To read a log anew and understand every event takes a minute in a run of millions. This comparison reads only ids and
bytes, and only the topics that the two publish to. What it finds is certain at first sight: the outboxes are read
before the ends of the log, so whatever they call published must be there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from hailbus_demo.errors import RunFailedError
from hailbus_demo.ledger.accounts import Accounts, OutboxRow
from hailbus_demo.ledger.databases import read_booking, read_payment
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.ledger.kafka import KafkaLog
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.log import COMPACTED, LogAccount, LogReader, LogRecord, pack_id
from hailbus_demo.ledger.model import Line, Partition

COMPARED: Final = frozenset({"outbox-log", "outbox-payment-log"})
T = TypeVar("T")


class _Bytes(LogReader):
    """Keeps ids, places and hashes of events, and not what they say."""

    def _feed_event(self, place: Partition, record: LogRecord) -> None:
        said = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
        if record.key is not None and place[0] in COMPACTED:
            self._latest_of_key.setdefault(place, {})[record.key] = record.offset
        event_id = said.get("ce_id", "")
        row = self._append(place, record, event_id, said.get("ce_source", ""), said.get("ce_type", ""))
        self.rows.setdefault(pack_id(event_id), row)


async def compare(sources: Sources) -> tuple[Line, ...]:
    """Return the lines of the outboxes as far as they are certain; none of an account that cannot be read."""
    try:
        booking = await _read_or_none(sources, "booking", read_booking)
        payment = await _read_or_none(sources, "payment", read_payment)
        outboxes = [account.outbox for account in (booking, payment) if account is not None]
        if not outboxes:
            return ()
        log = await asyncio.to_thread(_read, sources.bootstrap, {row.topic for outbox in outboxes for row in outbox})
    except RunFailedError:
        return ()  # the whole ledger says so
    known = {row.packed_id for outbox in outboxes for row in outbox if row.state == "published"}
    log.reader.rows = {packed: row for packed, row in log.reader.rows.items() if packed in known}
    accounts = Accounts(
        log=log,
        booking=None if booking is None else replace(booking, outbox=_published(booking.outbox)),
        payment=None if payment is None else replace(payment, outbox=_published(payment.outbox)),
        read_at_ms=time.time_ns() // 1_000_000,
        so_far=True,
    )
    drawn = [spec.draw(accounts) for spec in LINES if spec.id in COMPARED]
    return tuple(line for line in drawn if line is not None)


async def _read_or_none(sources: Sources, name: str, read: Callable[[str], Awaitable[T]]) -> T | None:
    url = sources.databases.get(name)
    return None if url is None else await read(url)


def _published(outbox: Sequence[OutboxRow]) -> list[OutboxRow]:
    return [row for row in outbox if row.state == "published"]


def _read(bootstrap: str, topics: set[str]) -> LogAccount:
    log, reader = KafkaLog(bootstrap), _Bytes()
    try:
        starts, ends = log.bounds(topics)
        reader.begin(starts)
        log.read(reader, ends)
    finally:
        log.close()
    return LogAccount(starts=starts, ends=ends, reader=reader)


__all__ = ["COMPARED", "compare"]
