"""Reads what the ledger compares: the log, the services' databases, booking's HTTP view. Changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hailbus import Bus, ClusterAdmin, ConfigurationError, record_reader
from hailbus.codec import decode
from hailbus.database import READ_ONLY, create_engine
from ride_events import CATALOGUE
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.ledger.model import InboxContent, LogContent, OutboxContent, Partition, RideTrail
from hailbus_demo.replay.sure import SureClient
from hailbus_demo.supervise.processes import command

RIDES_TOPIC = "rides.v1"
ROWS_AT_A_TIME = 5_000
LATEST_US = 2**62


async def read_log(bus: Bus, topics: Sequence[str], *, counted_only: Collection[str]) -> LogContent:
    """Read every record of some topics up to the end of the moment.

    Memory: one event id per record, but for the topics of which only the number is wanted.

    Args:
        bus: Where from.
        topics: Topic names.
        counted_only: Topics whose event ids do not matter.
    """
    content = LogContent()
    async with ClusterAdmin(bus) as admin:
        for (topic, partition), offset in (await admin.start_offsets(topics)).items():
            content.starts[topic, partition] = offset
        for (topic, partition), offset in (await admin.end_offsets(topics)).items():
            content.ends[topic, partition] = offset
    counted = frozenset(counted_only)
    for topic in counted & set(topics):
        for place, end in content.ends.items():
            if place[0] == topic:
                content.records[place] = end - content.starts[place]
    read = [topic for topic in topics if topic not in counted]
    if read:
        await _read_ids(bus, read, content)
    return content


async def _read_ids(bus: Bus, topics: Sequence[str], content: LogContent) -> None:
    ids, sources = content.ids, content.sources
    async for record in record_reader(bus, topics, start="earliest", until_end=True, client_id="ledger"):
        place = (record.topic, record.partition)
        if record.offset >= content.ends.get(place, 0):
            continue
        content.records[place] += 1
        event_id = kind = source = None
        for name, value in record.headers:
            if name == "ce_id":
                event_id = value.decode("utf-8", "replace")
            elif name == "ce_type":
                kind = value.decode("utf-8", "replace")
            elif name == "ce_source":
                source = value.decode("utf-8", "replace")
        if event_id is None or kind is None or source is None:
            content.unreadable[record.topic] += 1
            continue
        known = ids.get((record.topic, kind))
        if known is None:
            known = ids[record.topic, kind] = set()
            sources[record.topic, kind] = Counter()
        if event_id in known:
            content.repeated[record.topic] += 1
            continue
        known.add(event_id)
        sources[record.topic, kind][source] += 1
        if record.topic == RIDES_TOPIC:
            event: Any = decode(record, CATALOGUE)[0]  # a RideEvent: all events of this topic are
            trail = content.rides.setdefault(event.ride_id, RideTrail())
            trail.seqs.append(event.seq)
            trail.types.append(kind)


async def read_outbox(url: str, *, now_ms: int | None, ends: Mapping[Partition, int]) -> OutboxContent:
    """Read an outbox.

    Args:
        url: SQLAlchemy URL of the service's database.
        now_ms: The service's clock: rows that wait for a later time are not owed yet; `None` for nothing waits.
        ends: Where the log was read to: what was published later is not judged.

    Raises:
        RunFailedError: The database cannot be read.
    """
    content = OutboxContent()
    now_us = None if now_ms is None else now_ms * 1000
    statement = (
        "SELECT id, aggregatetype, published_at, cancelled_at, failed_at, not_before, published_partition, "
        "published_offset FROM hailbus_outbox"
    )
    async for rows in _rows(url, statement, {}):
        for event_id, topic, published_at, cancelled_at, failed_at, not_before, partition, offset in rows:
            if published_at is not None:
                if partition is None or offset is None or offset < ends.get((topic, partition), 0):
                    content.published.setdefault(topic, set()).add(event_id)
            elif cancelled_at is not None:
                continue
            elif failed_at is not None:
                content.failed += 1
            elif not_before is not None and now_us is not None and not_before > now_us:
                content.waiting += 1
            else:
                content.owed += 1
    return content


async def count_owed(url: str, *, now_ms: int | None) -> int:
    """Return how many events an outbox has yet to publish; see `read_outbox`."""
    statement = (
        "SELECT count(*) FROM hailbus_outbox WHERE published_at IS NULL AND cancelled_at IS NULL AND failed_at IS NULL "
        "AND (not_before IS NULL OR not_before <= :now)"
    )
    owed = 0
    async for rows in _rows(url, statement, {"now": LATEST_US if now_ms is None else now_ms * 1000}):
        owed += sum(row[0] for row in rows)
    return owed


async def read_inbox(url: str, consumer: str, *, ends: Mapping[Partition, int]) -> InboxContent:
    """Read what a consumer applied, of the records before `ends`: what came later is not judged.

    Raises:
        RunFailedError: The database cannot be read.
    """
    content = InboxContent()
    statement = 'SELECT event_id, topic, "partition", offset_, seen_count FROM hailbus_inbox WHERE consumer = :consumer'
    async for rows in _rows(url, statement, {"consumer": consumer}):
        for event_id, topic, partition, offset, seen in rows:
            if offset >= ends.get((topic, partition), 0):
                continue
            content.applied.setdefault(topic, set()).add(event_id)
            content.seen[topic] += seen
            content.rows[topic] += 1
    return content


async def _rows(url: str, statement: str, values: Mapping[str, Any]) -> Any:
    try:
        engine = create_engine(url)
    except ConfigurationError as error:
        raise UsageError(f"--database: {error}") from error
    try:
        async with engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            result = await connection.stream(text(statement), dict(values))
            async for rows in result.partitions(ROWS_AT_A_TIME):
                yield rows
    except (SQLAlchemyError, OSError) as error:
        shown = engine.url.render_as_string(hide_password=True)
        raise RunFailedError(f"{shown} cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        await engine.dispose()


async def booking_rides(booking: SureClient) -> dict[str, str]:
    """Return ride id → state of every ride, by booking's public API."""
    states: dict[str, str] = {}
    after = None
    while True:
        page = await booking.get("/rides?limit=500" + (f"&after={after}" if after else ""))
        for ride in page["rides"]:
            states[ride["ride_id"]] = ride["state"]
        after = page["next"]
        if after is None:
            return states


async def lake_report(lake_dir: Path, bootstrap: str) -> tuple[list[str], int]:
    """Have the lake compared with the log by its own witness, `lake verify`, which runs without Spark.

    Returns:
        What disagrees, and the rows compared.
    """
    process = await asyncio.create_subprocess_exec(
        *(command("lake"), "verify", "--bootstrap", bootstrap, "--dir", str(lake_dir), "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    try:
        return read_lake_report(output.decode())
    except (ValueError, KeyError):
        words = errors.decode("utf-8", "replace").strip().splitlines()
        return [words[-1] if words else f"`lake verify` exited with {process.returncode}"], 0


def read_lake_report(text: str) -> tuple[list[str], int]:
    """Return what disagrees and the rows compared of a report of `lake verify --json`.

    Raises:
        ValueError, KeyError: It is no such report.
    """
    report = json.loads(text)
    problems = [str(problem) for problem in report["problems"]]
    if not report["ok"] and not problems:
        problems = ["`lake verify` says so without a reason"]
    return problems, int(report["rows"])
