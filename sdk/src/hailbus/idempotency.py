"""Idempotency keys: the answer of each request, stored in the database transaction of its effects.

A client that lost an answer sends the same request with the same key and gets the same answer; nothing happens twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Index,
        LargeBinary,
        SmallInteger,
        String,
        Table,
        bindparam,
        delete,
        insert,
        select,
    )
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from hailbus.clock import Clock, micros, utc_now
from hailbus.database import ensure_tables, metadata
from hailbus.errors import KeyReusedError

__all__ = ["Answer", "AnswerBook", "StoredAnswer", "answers_table", "fingerprint"]

PRUNE_EVERY = timedelta(seconds=10)

answers_table = Table(
    "hailbus_answers",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # By the wall: how long a client may come back does not depend on a replay's speed.
    Column("recorded_at", BigInteger, nullable=False),
)
Index("hailbus_answers_age", answers_table.c.recorded_at)
_c = answers_table.c
_FIND = select(_c.key, _c.fingerprint, _c.status, _c.body).where(_c.key.in_(bindparam("keys", expanding=True)))
_ADD = insert(answers_table)
_PRUNE = delete(answers_table).where(_c.recorded_at < bindparam("before"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request gets. `replayed` when it was answered before."""

    status: int
    body: bytes
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """An answer under its key, and what it answered."""

    key: str
    fingerprint: str
    status: int
    body: bytes

    def answer(self, *, replayed: bool = False) -> Answer:
        """As a response needs it."""
        return Answer(status=self.status, body=self.body, replayed=replayed)

    def replay(self, fingerprint: str) -> Answer:
        """The answer again, for the same request.

        Raises:
            KeyReusedError: It belongs to another request.
        """
        if self.fingerprint != fingerprint:
            raise KeyReusedError(key=self.key)
        return self.answer(replayed=True)


def fingerprint(path: str, body: bytes = b"") -> str:
    """What makes two requests the same: path and validated body, in which a default that is spelt out does not show."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass") + b"\n" + body).hexdigest()


class AnswerBook:
    """The answers of one service, in the table `hailbus_answers` of its database.

    Args:
        engine: Made by `hailbus.database.create_engine`.
        keep: How long a client may come back with its key.
        clock: The wall clock.
    """

    def __init__(self, engine: AsyncEngine, *, keep: timedelta = timedelta(hours=24), clock: Clock = utc_now) -> None:
        self._engine = engine
        self._keep = keep
        self._clock = clock
        self._prune_at: datetime | None = None

    async def create_tables(self) -> None:
        """Create table and index where they are missing; see `hailbus.database.ensure_tables`."""
        await ensure_tables(self._engine, answers_table)

    async def find(self, tx: AsyncSession | AsyncConnection, keys: Iterable[str]) -> Mapping[str, StoredAnswer]:
        """The answers that are stored under these keys."""
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        rows = (await tx.execute(_FIND, {"keys": wanted})).all()
        return {
            row.key: StoredAnswer(key=row.key, fingerprint=row.fingerprint, status=row.status, body=row.body)
            for row in rows
        }

    async def add(self, tx: AsyncSession | AsyncConnection, answers: Sequence[StoredAnswer]) -> None:
        """Store answers in the caller's transaction; now and then, forget old ones."""
        now = self._clock()
        if answers:
            recorded_at = micros(now)
            connection = await tx.connection() if isinstance(tx, AsyncSession) else tx
            await connection.execute(
                _ADD,
                [
                    {
                        "key": stored.key,
                        "fingerprint": stored.fingerprint,
                        "status": stored.status,
                        "body": stored.body,
                        "recorded_at": recorded_at,
                    }
                    for stored in answers
                ],
            )
        if self._prune_at is None or now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY
            await tx.execute(_PRUNE, {"before": micros(now - self._keep)})
