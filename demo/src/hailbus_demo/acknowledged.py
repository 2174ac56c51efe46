"""Whether the log holds what booking knows to be acknowledged, byte for byte: the first question after a restart.

To read a log anew and understand every event takes a minute in a run of millions. This comparison reads only ids and
bytes, and only the topics that booking publishes to. What it finds is certain at first sight: the outbox is read before
the ends of the log, so whatever it calls published must be there.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Final

from hailbus_demo.errors import RunFailedError
from hailbus_demo.ledger.accounts import Accounts, BookingAccount
from hailbus_demo.ledger.databases import read_booking
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.ledger.kafka import KafkaLog
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.log import COMPACTED, LogAccount, LogReader, LogRecord, pack_id
from hailbus_demo.ledger.model import Line, Partition

LINE: Final = "outbox-log"


class _Bytes(LogReader):
    """Keeps ids, places and hashes of events, and not what they say."""

    def _feed_event(self, place: Partition, record: LogRecord) -> None:
        said = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
        if record.key is not None and place[0] in COMPACTED:
            self._latest_of_key.setdefault(place, {})[record.key] = record.offset
        event_id = said.get("ce_id", "")
        row = self._append(place, record, event_id, said.get("ce_source", ""), said.get("ce_type", ""))
        self.rows.setdefault(pack_id(event_id), row)


async def compare(sources: Sources) -> Line | None:
    """Return the line of booking's outbox as far as it is certain, `None` where an account cannot be read."""
    url = sources.databases.get("booking")
    if url is None:
        return None
    try:
        booking = await read_booking(url)
        log = await asyncio.to_thread(_read, sources.bootstrap, booking)
    except RunFailedError:
        return None  # the whole ledger says so
    published = [row for row in booking.outbox if row.state == "published"]
    known = {row.packed_id for row in published}
    log.reader.rows = {packed: row for packed, row in log.reader.rows.items() if packed in known}
    accounts = Accounts(
        log=log,
        booking=replace(booking, outbox=published),
        read_at_ms=time.time_ns() // 1_000_000,
        so_far=True,
    )
    return next(spec for spec in LINES if spec.id == LINE).draw(accounts)


def _read(bootstrap: str, booking: BookingAccount) -> LogAccount:
    log, reader = KafkaLog(bootstrap), _Bytes()
    try:
        starts, ends = log.bounds({row.topic for row in booking.outbox})
        reader.begin(starts)
        log.read(reader, ends)
    finally:
        log.close()
    return LogAccount(starts=starts, ends=ends, reader=reader)


__all__ = ["LINE", "compare"]
