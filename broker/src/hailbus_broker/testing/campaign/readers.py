"""Clients that read: with assigned partitions, as lists, keys of a compacted topic, offsets by time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hailbus_broker.client import RefusedError, UnreachableError
from hailbus_broker.testing.campaign.context import EARLIEST, LATEST, TopicReader, failed, list_offsets
from hailbus_broker.testing.campaign.recorder import MAIN, TABLE
from hailbus_broker.testing.history import KeyRead, Listed, Polled, TimeLookup

if TYPE_CHECKING:
    from hailbus_broker.testing.campaign.context import Context, Found


class AssignedReader:
    """Reads all partitions of the main topic from their start, without a gap."""

    def __init__(self, context: Context, *, is_committed: bool) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._is_committed: Final = is_committed

    async def run(self) -> None:
        """Read until the campaign stops."""
        context, recorder = self._context, self._context.recorder
        reader = TopicReader(context, self._client, MAIN, is_committed=self._is_committed)
        reader.positions.update(dict.fromkeys(range(context.partition_count), 0))
        into = recorder.polled if self._is_committed else recorder.uncommitted
        while not context.stop.is_set:
            try:
                found = await reader.poll(max_bytes=context.rng.choice((1, 2_000, 64 * 1024)))
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                await context.back_off()
                continue
            number = next(recorder.ops)
            into.extend(
                Polled(
                    process=context.name,
                    life=context.life,
                    partition=record.partition,
                    offset=record.offset,
                    value=int(record.value or b"-1"),
                    op=number,
                )
                for record in found
            )
            if found:
                context.succeeded()
            if context.rng.random() < 0.5:
                await asyncio.sleep(context.rng.uniform(0.0, 0.6))


class ListReader:
    """Reads one partition as a whole, again and again: a list that only grows."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()

    async def run(self) -> None:
        """Read until the campaign stops."""
        context = self._context
        partition = context.partition_count - 1
        while not context.stop.is_set:
            try:
                ends = await list_offsets(self._client, MAIN, [partition], [LATEST], is_committed=True)
                reader = TopicReader(context, self._client, MAIN, is_committed=True)
                reader.positions[partition] = 0
                values: list[int] = []
                end = ends[partition, LATEST]
                while reader.positions[partition] < end and not context.stop.is_set:
                    values += [int(found.value or b"-1") for found in await reader.poll() if found.offset < end]
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                await context.back_off()
                continue
            if reader.positions[partition] >= end:
                listed = Listed(process=f"{context.name}.{context.life}", partition=partition, values=tuple(values))
                context.recorder.lists.append(listed)
                context.succeeded()
            await asyncio.sleep(context.rng.uniform(2, 6) / context.rate)


class TableReader:
    """Reads the compacted topic as it grows, with pauses. What it has read when it ends is read on by the campaign."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()

    async def run(self) -> None:
        """Read until the campaign stops."""
        context = self._context
        reader = TopicReader(context, self._client, TABLE, is_committed=True)
        life = f"{context.name}.{context.life}"
        reads = context.recorder.key_reads[life]
        context.recorder.key_positions[life] = reader.positions
        reader.positions.update(dict.fromkeys(range(context.partition_count), 0))
        while not context.stop.is_set:
            try:
                found = await reader.poll(max_bytes=2_000)
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                await context.back_off()
                continue
            reads.extend(map(key_read, found))
            context.succeeded()
            await asyncio.sleep(context.rng.uniform(0.1, 3))


def key_read(found: Found) -> KeyRead:
    """Make a part of the history of a record of the compacted topic."""
    return KeyRead(
        partition=found.partition,
        key=(found.key or b"").decode(),
        value=None if found.value is None else int(found.value),
        offset=found.offset,
    )


class TimeLister:
    """Looks offsets up by time: later times are at later offsets."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()

    async def run(self) -> None:
        """Look up until the campaign stops."""
        context = self._context
        began_ms = context.now_ms()
        while not context.stop.is_set:
            now_ms = context.now_ms()
            times = {context.rng.randint(began_ms - 1_000, max(now_ms, began_ms) + 1_000) for _ in range(4)}
            try:
                found = await list_offsets(
                    self._client,
                    MAIN,
                    range(context.partition_count),
                    # The latest first: what is appended meanwhile can only make the others' answers earlier.
                    [*sorted(times, reverse=True), EARLIEST, LATEST],
                )
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                await context.back_off()
                continue
            number = next(context.recorder.ops)
            for (partition, timestamp), offset in found.items():
                if timestamp >= 0:
                    context.recorder.lookups.append(
                        TimeLookup(op=number, partition=partition, timestamp=timestamp, offset=offset)
                    )
                elif timestamp == EARLIEST and offset != 0:
                    context.recorder.fail(f"{MAIN}-{partition} begins at {offset}")
            context.succeeded()
            await context.pause()
