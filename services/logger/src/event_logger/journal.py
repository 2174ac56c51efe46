"""The journal: file and inbox as one. Each event is in both once, whenever the process is killed.

The database remembers how long the file was at each commit. A batch is: claim the events in the inbox, append the lines
of the fresh ones, sync the file, note its length, commit. Killed before the commit, the file is longer than noted: it
is cut back, and the broker sends the events again. Killed after it, both have them.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog
from hailbus import ConfigurationError, Context, Inbox
from hailbus.inbox import inbox_table
from sqlalchemy import BigInteger, Column, MetaData, String, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from event_logger.lines import line_of, read_line
from event_logger.log_file import LogFile

ADOPT_BATCH: Final = 1_000
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("event_logger.journal")
metadata = MetaData()
files = Table(
    "event_logger_files",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("length_bytes", BigInteger, nullable=False),
)
NAME: Final = "events"


class Journal:
    """Writes events to a file and an inbox together."""

    def __init__(self, engine: AsyncEngine, inbox: Inbox, file: LogFile) -> None:
        self._engine = engine
        self._inbox = inbox
        self._file = file
        self.written_count = 0
        self.repeated_count = 0

    async def open(self) -> None:
        """Create tables, and make file and inbox agree.

        Raises:
            ConfigurationError: The file lacks lines that the inbox knows, so it is not this database's file.
        """
        await self._inbox.create_tables()
        async with self._engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            length_bytes = await self._length(connection)
            if length_bytes is None:
                await self._adopt(connection)
                return
        size_bytes = self._file.size_bytes
        if size_bytes < length_bytes:
            raise ConfigurationError(
                f"{self._file.path} has {size_bytes} bytes and the database knows of {length_bytes}: lines were taken "
                "away; put the file back, or start with a new file, a new database and a new consumer group"
            )
        cut_bytes = self._file.cut(length_bytes)
        if cut_bytes:
            log.info("file_repaired", file=str(self._file.path), cut_bytes=cut_bytes)

    async def write(self, contexts: Sequence[Context]) -> int:
        """Write the events that were not written before; return how many those were."""
        async with self._engine.begin() as connection:
            length_bytes = await self._length(connection)
            assert length_bytes is not None, "open() notes the length"
            # After a failed batch the file may be ahead of what was committed.
            self._file.cut(length_bytes)
            fresh = await self._inbox.claim(connection, contexts)
            lines: list[bytes] = []
            if fresh:
                left = set(fresh)
                for ctx in contexts:
                    if ctx.envelope.id in left:
                        left.discard(ctx.envelope.id)
                        lines.append(line_of(ctx))
                # In the event loop: nothing else happens here, and a batch is not read further before it is written.
                size_bytes = self._file.append(lines)
                await connection.execute(update(files).where(files.c.name == NAME).values(length_bytes=size_bytes))
        self.written_count += len(lines)
        self.repeated_count += len(contexts) - len(lines)
        return len(lines)

    async def _length(self, connection: AsyncConnection) -> int | None:
        found = await connection.scalar(select(files.c.length_bytes).where(files.c.name == NAME))
        return None if found is None else int(found)

    async def _adopt(self, connection: AsyncConnection) -> None:
        """Take over the lines of a file that this database does not know: they were written, so they are applied."""
        cut_bytes = self._file.cut(self._file.end_of_last_line())
        if cut_bytes:
            log.info("file_repaired", file=str(self._file.path), cut_bytes=cut_bytes)
        rows: dict[tuple[str, str], dict[str, Any]] = {}  # Any: columns of several types
        adopted = 0
        for number, line in enumerate(self._file.lines(), start=1):
            try:
                logged = read_line(line)
            except ValueError as error:
                raise ConfigurationError(
                    f"{self._file.path} line {number} is no line of the event log; give LOGGER_FILE another name"
                ) from error
            rows[logged.source, logged.id] = {
                "consumer": self._inbox.consumer,
                "source": logged.source,
                "event_id": logged.id,
                "topic": logged.topic,
                "partition": logged.partition,
                "offset_": logged.offset,
                "seen_count": 1,
                "applied_at": 0,
            }
        values = list(rows.values())
        for start in range(0, len(values), ADOPT_BATCH):
            batch = values[start : start + ADOPT_BATCH]
            known = set(
                (
                    await connection.execute(
                        select(inbox_table.c.event_id).where(
                            inbox_table.c.consumer == self._inbox.consumer,
                            inbox_table.c.event_id.in_([row["event_id"] for row in batch]),
                        )
                    )
                ).scalars()
            )
            new = [row for row in batch if row["event_id"] not in known]
            if new:
                await connection.execute(insert(inbox_table), new)
            adopted += len(new)
        await connection.execute(insert(files).values(name=NAME, length_bytes=self._file.size_bytes))
        if adopted:
            log.info("file_adopted", file=str(self._file.path), events=adopted)
