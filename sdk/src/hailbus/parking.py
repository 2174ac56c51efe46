"""Parked keys: after an event that cannot be handled, later events of its key wait in order; other keys continue."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Index,
        Integer,
        LargeBinary,
        String,
        Table,
        Text,
        delete,
        func,
        insert,
        select,
        update,
    )
    from sqlalchemy.ext.asyncio import AsyncEngine

from hailbus._transport import Received, TopicPartition
from hailbus.clock import EPOCH, Clock, micros, utc_now
from hailbus.database import READ_ONLY, ensure_tables, metadata

__all__ = ["ParkedKey", "ParkedRecord", "ParkingLot", "parked_table"]

parked_table = Table(
    "hailbus_parked",
    metadata,
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("consumer", String(249), nullable=False),
    Column("topic", String(249), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset_", BigInteger, nullable=False),
    Column("record_timestamp", BigInteger, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("value", LargeBinary),
    Column("headers", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("parked_at", BigInteger, nullable=False),  # microseconds since the epoch
    Column("released_at", BigInteger),
    sqlite_autoincrement=True,
)
Index(
    "hailbus_parked_key",
    parked_table.c.consumer,
    parked_table.c.topic,
    parked_table.c.partition,
    parked_table.c.key,
    parked_table.c.position,
)
Index(
    "hailbus_parked_once",
    parked_table.c.consumer,
    parked_table.c.topic,
    parked_table.c.partition,
    parked_table.c.offset_,
    unique=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """A record as it was read, kept in the database; fits wherever a record is read."""

    position: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int = 0
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    reason: str
    attempts: int
    parked_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedKey:
    """A key whose events wait."""

    consumer: str
    topic: str
    partition: int
    key: bytes
    waiting_count: int
    reason: str
    parked_at: datetime
    is_released: bool


class ParkingLot:
    """The table of parked records of one database.

    Args:
        engine: Made by `hailbus.database.create_engine`.
    """

    def __init__(self, engine: AsyncEngine, *, clock: Clock = utc_now) -> None:
        self.engine = engine
        self._clock = clock

    async def create_tables(self) -> None:
        """Create table and indexes where they are missing; see `hailbus.database.ensure_tables`."""
        await ensure_tables(self.engine, parked_table)

    async def add(self, consumer: str, record: Received, *, reason: str, attempts: int) -> None:
        """Keep a record behind those of the same key; a record that is there already stays as it is."""
        assert record.key is not None
        c = parked_table.c
        async with self.engine.begin() as connection:
            known = await connection.scalar(
                select(c.position).where(
                    c.consumer == consumer,
                    c.topic == record.topic,
                    c.partition == record.partition,
                    c.offset_ == record.offset,
                )
            )
            if known is not None:
                return
            await connection.execute(
                insert(parked_table).values(
                    consumer=consumer,
                    topic=record.topic,
                    partition=record.partition,
                    offset_=record.offset,
                    record_timestamp=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=json.dumps([[n, base64.b64encode(v or b"").decode()] for n, v in record.headers]),
                    reason=reason,
                    attempts=attempts,
                    parked_at=micros(self._clock()),
                )
            )

    async def keys(self, consumer: str, partitions: Iterable[TopicPartition] | None = None) -> list[ParkedKey]:
        """Parked keys, oldest first; of some partitions only when they are given."""
        c = parked_table.c
        grouped = (
            select(
                func.min(c.position).label("first"),
                func.count().label("waiting_count"),
                func.min(c.parked_at).label("parked_at"),
                func.max(c.released_at).label("released_at"),
            )
            .where(c.consumer == consumer)
            .group_by(c.topic, c.partition, c.key)
            .subquery()
        )
        g = grouped.c
        # One statement sees one moment: a key may be released at any time.
        query = (
            select(c.topic, c.partition, c.key, g.waiting_count, c.reason, g.parked_at, g.released_at)
            .join(grouped, c.position == g.first)
            .order_by(c.position)
        )
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            rows = (await connection.execute(query)).all()
        wanted = None if partitions is None else set(partitions)
        return [
            ParkedKey(
                consumer=consumer,
                topic=topic,
                partition=partition,
                key=key,
                waiting_count=count,
                reason=reason,
                parked_at=_moment(parked_at),
                is_released=released_at is not None,
            )
            for topic, partition, key, count, reason, parked_at, released_at in rows
            if wanted is None or TopicPartition(topic, partition) in wanted
        ]

    async def records(
        self, consumer: str, topic: str, key: bytes, *, limit: int = 1_000, after: int = 0
    ) -> list[ParkedRecord]:
        """The waiting records of a key behind a position, oldest first."""
        c = parked_table.c
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            rows = (
                await connection.execute(
                    select(parked_table)
                    .where(c.consumer == consumer, c.topic == topic, c.key == key, c.position > after)
                    .order_by(c.position)
                    .limit(limit)
                )
            ).all()
        return [
            ParkedRecord(
                position=row.position,
                topic=row.topic,
                partition=row.partition,
                offset=row.offset_,
                timestamp=row.record_timestamp,
                key=row.key,
                value=row.value,
                headers=tuple((name, base64.b64decode(value)) for name, value in json.loads(row.headers)),
                reason=row.reason,
                attempts=row.attempts,
                parked_at=_moment(row.parked_at),
            )
            for row in rows
        ]

    async def release(self, consumer: str, topic: str, key: bytes) -> int:
        """Ask the owner of the partition to handle the waiting records of a key, in order; how many wait."""
        return await self._set_released(consumer, topic, key, micros(self._clock()))

    async def hold(
        self, consumer: str, topic: str, key: bytes, *, reason: str | None = None, attempts: int = 1
    ) -> None:
        """Undo `release`; `reason` replaces that of the oldest record, and `attempts` is added to its attempts."""
        await self._set_released(consumer, topic, key, None)
        if reason is not None:
            await self.explain(consumer, topic, key, reason=reason, attempts=attempts)

    async def explain(self, consumer: str, topic: str, key: bytes, *, reason: str, attempts: int = 0) -> None:
        """Replace the reason of the oldest record, and add to its attempts."""
        c = parked_table.c
        async with self.engine.begin() as connection:
            oldest = await connection.scalar(
                select(func.min(c.position)).where(c.consumer == consumer, c.topic == topic, c.key == key)
            )
            await connection.execute(
                update(parked_table).where(c.position == oldest).values(reason=reason, attempts=c.attempts + attempts)
            )

    async def _set_released(self, consumer: str, topic: str, key: bytes, released_at: int | None) -> int:
        c = parked_table.c
        async with self.engine.begin() as connection:
            result = await connection.execute(
                update(parked_table)
                .where(c.consumer == consumer, c.topic == topic, c.key == key)
                .values(released_at=released_at)
            )
        return int(result.rowcount)

    async def edit(self, position: int, value: bytes) -> bool:
        """Replace the value of one waiting record; False when it no longer waits."""
        async with self.engine.begin() as connection:
            result = await connection.execute(
                update(parked_table).where(parked_table.c.position == position).values(value=value)
            )
        return bool(result.rowcount)

    async def remove(self, positions: Sequence[int]) -> int:
        """Drop waiting records; how many there were."""
        async with self.engine.begin() as connection:
            result = await connection.execute(delete(parked_table).where(parked_table.c.position.in_(positions)))
        return int(result.rowcount)


def _moment(value: Any) -> datetime:  # Any: what the driver gives for a BIGINT
    return EPOCH + timedelta(microseconds=int(value))
