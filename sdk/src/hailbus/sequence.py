"""The number of the last event that a consumer has applied, per topic and key: repetitions and gaps show by it.

The rows are written in the transaction of the events' effects. `EffectivelyOnce(sequence=...)` does that; see there for
what follows a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import (
        BigInteger,
        Boolean,
        Column,
        Index,
        LargeBinary,
        String,
        Table,
        delete,
        false,
        insert,
        or_,
        select,
        true,
        update,
    )
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from hailbus.clock import Clock, micros, utc_now
from hailbus.database import ensure_tables, metadata

__all__ = ["Position", "Sequences", "Turn", "sequence_table"]

sequence_table = Table(
    "hailbus_sequences",
    metadata,
    Column("consumer", String(249), primary_key=True),
    Column("topic", String(249), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("last_number", BigInteger),  # null: a gap was accepted before any event was applied
    Column("accepts_gap", Boolean, nullable=False),
    Column("changed_at", BigInteger, nullable=False),  # microseconds since the epoch
    sqlite_with_rowid=False,
)
Index("hailbus_sequences_changed", sequence_table.c.consumer, sequence_table.c.changed_at)

KEYS_AT_ONCE = 1_000
"""Keys in one statement: a database bounds its parameters."""
Name = tuple[str, bytes]
"""Topic and key."""


class Turn(Enum):
    """What an event's number says."""

    DUE = auto()
    STALE = auto()
    EARLY = auto()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer is in the events of one key.

    Attributes:
        last: The number of the last event that was applied; None before the first.
        accepts_gap: Whether somebody has decided that the events before the next parked one will not come.
    """

    last: int | None = None
    accepts_gap: bool = False

    def due(self, first: int | None) -> int | None:
        """The number that is applied next; None when any will do."""
        return first if self.last is None else self.last + 1

    def turn_of(self, number: int, *, first: int | None, may_skip: bool = False) -> Turn:
        """Say whether an event is applied now.

        Args:
            number: Of the event.
            first: The number with which each key begins; None when the first event that comes is the beginning.
            may_skip: Whether the event is the next of those that wait, so that an accepted gap is passed over.
        """
        if self.last is not None and number <= self.last:
            return Turn.STALE
        due = self.due(first)
        if due is None or number <= due or (may_skip and self.accepts_gap):
            return Turn.DUE
        return Turn.EARLY


class Sequences:
    """The positions of one consumer.

    Args:
        engine: Made by `hailbus.database.create_engine`.
        consumer: Name of the consumer, by convention its group.
    """

    def __init__(self, engine: AsyncEngine, consumer: str, *, clock: Clock = utc_now) -> None:
        self.engine = engine
        self.consumer = consumer
        self._clock = clock
        dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
        adding = dialect.insert(sequence_table)
        self._begin = adding.on_conflict_do_nothing(index_elements=list(sequence_table.primary_key.columns))
        c, new = sequence_table.c, adding.excluded
        self._advance = adding.on_conflict_do_update(
            index_elements=list(sequence_table.primary_key.columns),
            set_={"last_number": new.last_number, "accepts_gap": new.accepts_gap, "changed_at": new.changed_at},
            where=or_(c.last_number.is_(None), c.last_number < new.last_number),
        )

    async def create_tables(self) -> None:
        """Create table and index where they are missing; see `hailbus.database.ensure_tables`."""
        await ensure_tables(self.engine, sequence_table)

    async def positions(self, tx: AsyncConnection | AsyncSession, names: Iterable[Name]) -> dict[Name, Position]:
        """Read where the consumer is in the events of these topics and keys; keys without any are left out.

        The rows stay locked until the transaction ends.
        """
        by_topic: dict[str, list[bytes]] = {}
        for topic, key in dict.fromkeys(names):
            by_topic.setdefault(topic, []).append(key)
        c = sequence_table.c
        found: dict[Name, Position] = {}
        for topic, keys in by_topic.items():
            for start in range(0, len(keys), KEYS_AT_ONCE):
                query = (
                    select(c.key, c.last_number, c.accepts_gap)
                    .where(c.consumer == self.consumer, c.topic == topic, c.key.in_(keys[start : start + KEYS_AT_ONCE]))
                    .order_by(c.key)
                    .with_for_update()
                )
                for key, last, accepts_gap in (await tx.execute(query)).all():
                    found[topic, bytes(key)] = Position(last, bool(accepts_gap))
        return found

    async def advance(self, tx: AsyncConnection | AsyncSession, numbers: Mapping[Name, int]) -> None:
        """Note the numbers of the last events that were applied, in the caller's transaction; none goes back."""
        if numbers:
            rows = [self._row(topic, key, last=number) for (topic, key), number in sorted(numbers.items())]
            await tx.execute(self._advance, rows)

    async def begin(self, topic: str, key: bytes, number: int) -> None:
        """Note that a key begins with a number, unless the consumer is in its events already."""
        async with self.engine.begin() as connection:
            await connection.execute(self._begin, self._row(topic, key, last=number - 1))

    async def accept_gap(self, topic: str, key: bytes) -> None:
        """Decide that the events before the next parked one of a key will not come: its release passes over them."""
        c = sequence_table.c
        changed = (
            update(sequence_table)
            .where(c.consumer == self.consumer, c.topic == topic, c.key == key)
            .values(accepts_gap=true(), changed_at=micros(self._clock()))
        )
        async with self.engine.begin() as connection:
            if (await connection.execute(changed)).rowcount:
                return
        try:
            async with self.engine.begin() as connection:
                row = self._row(topic, key, last=None, accepts_gap=True)
                await connection.execute(insert(sequence_table), row)
        except IntegrityError:  # the consumer has just applied the first event of the key
            async with self.engine.begin() as connection:
                await connection.execute(changed)

    def _row(self, topic: str, key: bytes, *, last: int | None, accepts_gap: bool = False) -> dict[str, object]:
        return {
            "consumer": self.consumer,
            "topic": topic,
            "key": key,
            "last_number": last,
            "accepts_gap": accepts_gap,
            "changed_at": micros(self._clock()),
        }

    async def last(self, topic: str, key: bytes) -> int | None:
        """The number of the last event of a key that was applied; None when there is none."""
        async with self.engine.begin() as connection:
            position = (await self.positions(connection, [(topic, key)])).get((topic, key))
        return position.last if position is not None else None

    async def prune(self, keep: timedelta) -> int:
        """Forget keys of which nothing was applied for longer than this; how many."""
        c = sequence_table.c
        old = micros(self._clock() - keep)
        async with self.engine.begin() as connection:
            result = await connection.execute(
                delete(sequence_table).where(c.consumer == self.consumer, c.changed_at < old, c.accepts_gap == false())
            )
        return int(result.rowcount)
