"""The one writer: it takes all requests that wait, decides them in memory, and commits once for all of them.

A commit on SQLite costs an fsync and a round through its thread; one for each request would bound the service at a few
hundred a second and leave the processor idle. While one commit runs, the next batch gathers: under load batches grow,
without load a request is alone in its own. Nobody gets an answer before its commit.

Positions that driver apps publish are many, and each replaces the one before. They are stored by the next commit of
something else, and at the latest after `POSITIONS_WAIT_S`. After a crash a driver is where the last commit has put it,
until the app reports again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog
from hailbus import Claim, ClockNotSetError, Delivery, Event, KeyReusedError, Outbox, OutboxEntry
from hailbus.clock import Clock, ServiceClock, utc_now
from hailbus.codec import envelope_for
from hailbus.idempotency import Answer, AnswerBook, StoredAnswer
from sqlalchemy import Table, bindparam, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NotSupportedError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from booking.adapters.storage import rows, tables
from booking.adapters.storage.claims import Claims
from booking.adapters.storage.database import DatabaseTakenError, Ownership
from booking.app.drivers import HearPosition
from booking.app.policy import Policy
from booking.app.ports import Command, Needs, Outgoing, Presenter
from booking.app.world import Changes, World
from booking.domain.driver import Driver, DriverStatus
from booking.domain.errors import Refusal
from booking.domain.region import Realm
from booking.domain.ride import TERMINAL

BATCH_LIMIT: Final = 256
QUEUE_LIMIT: Final = 4_096
"""Requests that may wait; more are told to come back."""
POSITIONS_WAIT_S: Final = 1.0
"""How long heard positions wait for a commit of something else."""
RELOAD_DELAY_S: Final = 0.5
RELOAD_DELAY_MAX_S: Final = 10.0
CANCEL_LIMIT_S: Final = 5.0
"""How long a cancelled statement may take to return."""

REFUSED_STATEMENT: Final = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
"""The database answered and refused what we sent: to send it again is of no use. Any other database error is a failure
of the database or of the connection to it."""

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking.writer")


class StuckError(Exception):
    """A statement neither returned nor could be cancelled; only a restart of the process helps."""


class UnavailableError(Exception):
    """The change was not stored, or nobody knows whether: the same request with the same key may be sent again."""


@dataclass(slots=True, kw_only=True)
class _Request:
    command: Command[Any]  # Any: each command has its own result
    at: datetime | None
    key: str
    fingerprint: str
    presenter: Presenter
    done: asyncio.Future[Answer]


Consumed = tuple[Delivery[Any], Command[object] | str, datetime | None]  # Any: whatever event
"""An event with its command, or why there is none, and its time, None for now."""


@dataclass(slots=True, kw_only=True)
class _Consumption:
    claim: Callable[[AsyncConnection], Awaitable[Claim]]
    events: Sequence[Consumed]
    done: asyncio.Future[None]


@dataclass(slots=True, kw_only=True)
class _Hearing:
    positions: Sequence[tuple[HearPosition, datetime]]
    done: asyncio.Future[None]


_Item = _Request | _Consumption | _Hearing


@dataclass(slots=True)
class _Figures:
    """Counted since the start, for the log line at the end."""

    batches: int = 0
    requests: int = 0
    replays: int = 0
    refusals: int = 0
    events: int = 0
    largest_batch: int = 0
    foreign: int = 0
    """Consumed events that are about another region's rides."""


class Writer:
    """Owns the database's only writing connection and the world in memory.

    A batch that takes longer than `commit_timeout_s` is cancelled; whether it was stored is then unknown. `fail` is
    called with the reason if the writer ends by itself.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        policy: Policy,
        clock: ServiceClock,
        outbox: Outbox,
        source: str,
        answers: AnswerBook,
        report: Callable[[Event, datetime], None],
        fail: Callable[[str], None],
        commit_timeout_s: float,
        realm: Realm | None = None,
        wall: Clock = utc_now,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._outbox = outbox
        self._source = source
        self._answers = answers
        self._report = report
        self._fail_service = fail
        self._commit_timeout_s = commit_timeout_s
        self._wall = wall
        self._realm = realm
        self._world = World(policy, realm)
        self._claims = None if realm is None else Claims(realm)
        self._ownership = Ownership(engine, None if realm is None else realm.own.name)
        self._connection: AsyncConnection | None = None
        self._queue: deque[_Item] = deque()
        self._waiting = asyncio.Event()
        self._closing = False
        self._moved: dict[str, Driver] = {}
        """Drivers whose positions are not stored yet."""
        self._store_at_s = 0.0
        """When these are stored at the latest, by the event loop's clock."""
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = None
        self._upserts = _upserts(engine.dialect.name)
        self.figures = _Figures()

    # ---------------------------------------------------------------- what callers do

    async def start(self) -> None:
        """Create what is missing in the database, load what is open, and serve.

        Raises:
            DatabaseTakenError: Another process writes this database.
        """
        await self._answers.create_tables()
        await self._connect()
        self._task = asyncio.create_task(self._serve(), name="booking-writer")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Finish what waits, refuse what comes, and let the database go."""
        self._closing = True
        self._waiting.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            if not self._task.cancelled() and isinstance(self._task.exception(), StuckError):
                return  # to close the connection would wait for the statement
        await self._disconnect()
        self._ownership.release()
        figures = self.figures
        log.info(
            "writer_stopped",
            batches=figures.batches,
            requests=figures.requests,
            replays=figures.replays,
            refusals=figures.refusals,
            events=figures.events,
            largest_batch=figures.largest_batch,
            foreign=figures.foreign,
        )

    @property
    def ready(self) -> bool:
        """Whether the world is loaded and requests are served."""
        return self._connection is not None and not self._closing

    @property
    def trouble(self) -> str | None:
        """Why requests are not served now, `None` when they are."""
        return None if self.ready else self._trouble or "the database is not open"

    @property
    def _has_ended(self) -> bool:
        """Whether the task has ended though nobody stopped it."""
        return not self._closing and self._task is not None and self._task.done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail the requests that still wait when the task has ended, and the service unless it is stopping."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("writer_ended", exc_info=error)
        stale, self._queue = list(self._queue), deque()
        _fail(stale, UnavailableError("booking is stopping"))
        if self._has_ended:
            self._fail_service(f"the writer has ended: {error or 'it was cancelled'}")

    async def post(
        self,
        command: Command[Any],
        *,
        at: datetime | None,
        key: str,
        fingerprint: str,
        presenter: Presenter,
    ) -> Answer:
        """Do a command once per key, and return its answer when it is stored.

        Raises:
            KeyReusedError: The key was used for another request.
            ClockNotSetError: `at` is None and the event clock has seen nothing.
            UnavailableError: Too many wait, or the database failed.
        """
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._enqueue(
            _Request(command=command, at=at, key=key, fingerprint=fingerprint, presenter=presenter, done=done)
        )
        return await done

    async def consume(self, claim: Callable[[AsyncConnection], Awaitable[Claim]], events: Sequence[Consumed]) -> None:
        """Apply consumed events once. What cannot be applied is refused and leaves no trace; the others are applied.

        Args:
            claim: Claims them in the transaction that it is given.
            events: In the order in which they were read.

        Raises:
            UnavailableError: As `post`.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Consumption(claim=claim, events=events, done=done))
        await done

    async def hear(self, positions: Sequence[tuple[HearPosition, datetime]]) -> None:
        """Take in positions that driver apps have published, each with its time.

        Raises:
            UnavailableError: As `post`.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Hearing(positions=positions, done=done))
        await done

    def _enqueue(self, item: _Item) -> None:
        if self._closing or self._has_ended:
            raise UnavailableError("booking is stopping")
        if len(self._queue) >= QUEUE_LIMIT:
            raise UnavailableError(f"{QUEUE_LIMIT} requests wait already")
        self._queue.append(item)
        self._waiting.set()

    # ---------------------------------------------------------------- serving

    async def _serve(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._store_at_s if self._moved else None):
                    await self._waiting.wait()
            self._waiting.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_LIMIT))]
                await self._settle(batch)
            if self._moved and (self._closing or self._positions_are_due()):
                await self._settle([])  # the positions alone
            if self._closing:
                return

    def _positions_are_due(self) -> bool:
        return bool(self._moved) and asyncio.get_running_loop().time() >= self._store_at_s

    def _keep(self, moved: dict[str, Driver]) -> None:
        if moved and not self._moved:
            self._store_at_s = asyncio.get_running_loop().time() + POSITIONS_WAIT_S
        self._moved = moved

    async def _settle(self, batch: Sequence[_Item]) -> None:
        """Do a batch in one commit. If it fails by a fault of ours, do each part alone: only the culprit fails."""
        error = await self._attempt(batch)
        if error is None:
            return
        if len(batch) == 1 or isinstance(error, UnavailableError):
            _fail(batch, error)
            await self._recover()
            return
        await self._recover(batch)
        for item in batch:
            if not item.done.done():
                await self._settle([item])

    async def _attempt(self, batch: Sequence[_Item]) -> Exception | None:
        """Do a batch; return why it failed: `UnavailableError` for the database, anything else is a fault of ours."""
        try:
            await self._do_in_time(batch)
        except StuckError:
            _fail(batch, UnavailableError("booking is stopping; send the same request again"))
            raise
        except REFUSED_STATEMENT as error:
            log.error("statement_refused", requests=len(batch), error=_first_line(error))
            return error
        except (DBAPIError, OSError) as error:
            log.warning("batch_failed", requests=len(batch), error=_first_line(error))
            return UnavailableError("the database failed; send the same request again")
        except Exception as error:
            log.exception("batch_broke", requests=len(batch))
            return error
        return None

    async def _do_in_time(self, batch: Sequence[_Item]) -> None:
        """Do a batch, and cancel it after `commit_timeout_s`.

        Raises:
            TimeoutError: It was cancelled; whether it was stored is unknown.
            StuckError: It could not be cancelled, as when a disk does not answer.
        """
        limit_s = self._commit_timeout_s
        work = asyncio.get_running_loop().create_task(self._do(batch), name="booking-batch")
        done, _ = await asyncio.wait({work}, timeout=limit_s)
        if not done:
            work.cancel()
            done, _ = await asyncio.wait({work}, timeout=CANCEL_LIMIT_S)
            if not done:
                message = f"a commit has not returned within {limit_s:g} s and cannot be cancelled"
                raise StuckError(message)
            if work.cancelled():
                message = f"no commit within {limit_s:g} s"
                raise TimeoutError(message)
        work.result()

    async def _do(self, batch: Sequence[_Item]) -> None:
        connection, world = self._connection, self._world
        if connection is None:
            raise OSError("no connection to the database")
        requests = [item for item in batch if isinstance(item, _Request)]
        resolved: list[tuple[asyncio.Future[Any], Any]] = []  # Any: answers and counts
        failed: list[tuple[asyncio.Future[Any], Exception]] = []
        new_answers: list[StoredAnswer] = []
        wall = self._wall()
        async with self._outbox.turn, _transaction(connection):
            known = dict(await self._answers.find(connection, [item.key for item in requests]))
            claims: dict[int, Claim] = {}
            wanted: list[Needs] = []
            for item in batch:
                if isinstance(item, _Consumption):
                    claim = claims[id(item)] = await item.claim(connection)
                    wanted.extend(
                        command.needs()
                        for delivery, command, _ in item.events
                        if not isinstance(command, str) and delivery in claim
                    )
                elif isinstance(item, _Request) and item.key not in known:
                    wanted.append(item.command.needs())
            needs = _union(wanted)
            await self._load(connection, world.missing(needs))
            if self._claims is not None:
                await self._claims.learn(connection, world, needs)
            latest: datetime | None = None
            for item in batch:
                if isinstance(item, _Consumption):
                    claim = claims[id(item)]
                    self._apply(item, claim, wall)
                    await claim.store()
                    resolved.append((item.done, None))
                    continue
                if isinstance(item, _Hearing):
                    self._hear(item)
                    resolved.append((item.done, None))
                    continue
                before = known.get(item.key)
                if before is not None:
                    try:
                        resolved.append((item.done, before.replay(item.fingerprint)))
                        self.figures.replays += 1
                    except KeyReusedError as error:
                        failed.append((item.done, error))
                    continue
                at = item.at or latest or (self._clock.now() if self._clock.is_set else None)
                if at is None:
                    failed.append((item.done, ClockNotSetError()))
                    continue
                world.begin(at)
                try:
                    status, body = item.presenter.result(item.command.decide(world))
                except Refusal as refusal:
                    world.undo()
                    self.figures.refusals += 1
                    status, body = item.presenter.refusal(refusal)
                except Exception as error:
                    world.undo()
                    log.exception("command_broke", command=type(item.command).__name__)
                    failed.append((item.done, error))
                    continue
                latest = at if latest is None else max(latest, at)
                stored = StoredAnswer(key=item.key, fingerprint=item.fingerprint, status=status, body=body)
                known[item.key] = stored
                new_answers.append(stored)
                resolved.append((item.done, stored.answer()))
            changes = world.take_changes()
            moved = self._moved | changes.drivers
            is_heard_only = bool(batch) and all(isinstance(item, _Hearing) for item in batch)
            if not is_heard_only or not changes.are_of_drivers_only or self._positions_are_due():
                await self._flush(connection, replace(changes, drivers=moved), new_answers, latest)
                moved = {}
        self._keep(moved)
        world.forget_unchanged(needs)
        world.forget_settled(changes)
        time_went_on = latest is not None and self._clock.observe(latest)
        self._account(batch, changes)
        for future, value in resolved:
            if not future.done():
                future.set_result(value)
        for future, failure in failed:
            if not future.done():
                future.set_exception(failure)
        if changes.outgoing or changes.timers or time_went_on:
            self._outbox.wake_soon()
        for event, at in changes.reports:
            self._report(event, at)

    def _apply(self, item: _Consumption, claim: Claim, wall: datetime) -> None:
        for delivery, command, at in item.events:
            if delivery not in claim:
                continue
            if isinstance(command, str):
                claim.refuse(delivery, command)
                continue
            self._world.begin(at or (self._clock.now() if self._clock.is_set else wall))
            try:
                command.decide(self._world)
            except Refusal as refusal:
                self._world.undo()
                event_id = delivery.ctx.envelope.id
                log.warning("event_refused", event_id=event_id, command=type(command).__name__, reason=str(refusal))
                claim.refuse(delivery, str(refusal))
            except Exception as error:
                self._world.undo()
                log.exception("event_broke", event_id=delivery.ctx.envelope.id, command=type(command).__name__)
                claim.refuse(delivery, repr(error))

    def _hear(self, item: _Hearing) -> None:
        for command, at in item.positions:
            self._world.begin(at)
            try:
                command.decide(self._world)
            except Exception:
                self._world.undo()
                log.exception("position_broke", driver_id=command.driver_id)

    async def _load(self, connection: AsyncConnection, missing: Needs) -> None:
        if missing.quotes:
            for row in (await connection.execute(_SELECT_QUOTES, {"keys": list(missing.quotes)})).mappings():
                self._world.learn(rows.quote_of(row))
        more_drivers: list[str] = []
        if missing.rides:
            for row in (await connection.execute(_SELECT_RIDES, {"keys": list(missing.rides)})).mappings():
                self._world.learn(rows.ride_of(row))
                if row["driver_id"] is not None:
                    more_drivers.append(row["driver_id"])
        drivers = self._world.missing(Needs(drivers=(*missing.drivers, *more_drivers))).drivers
        if drivers:
            for row in (await connection.execute(_SELECT_DRIVERS, {"keys": list(dict.fromkeys(drivers))})).mappings():
                self._world.learn(rows.driver_of(row))

    async def _flush(
        self,
        connection: AsyncConnection,
        changes: Changes,
        new_answers: Sequence[StoredAnswer],
        latest: datetime | None,
    ) -> None:
        upserts = self._upserts
        if changes.quotes:
            await connection.execute(upserts["booking_quotes"], [rows.quote_row(q) for q in changes.quotes.values()])
        if changes.rides:
            await connection.execute(upserts["booking_rides"], [rows.ride_row(r) for r in changes.rides.values()])
        if changes.drivers:
            await connection.execute(upserts["booking_drivers"], [rows.driver_row(d) for d in changes.drivers.values()])
        if self._claims is not None:
            await self._claims.flush(connection, changes)
        if changes.multipliers:
            await connection.execute(
                upserts["booking_multipliers"], [rows.multiplier_row(m) for m in changes.multipliers.values()]
            )
        if changes.roads:
            await connection.execute(
                upserts["booking_roads"], [rows.roads_row(name, roads) for name, roads in changes.roads.items()]
            )
        await self._outbox.cancel_many(connection, list(changes.cancelled))
        entries = [self._entry(outgoing) for outgoing in (*changes.outgoing, *changes.timers.values())]
        await self._outbox.add_many(connection, entries, wakes=False)
        await self._answers.add(connection, new_answers)
        if latest is not None and self._clock.name == "event" and latest > self._clock.now():
            await connection.execute(upserts["booking_clock"], [{"name": "event", "now": latest}])

    def _entry(self, outgoing: Outgoing) -> OutboxEntry:
        made = envelope_for(outgoing.event, source=self._source, id=outgoing.id, time=outgoing.time)
        return OutboxEntry(
            event=outgoing.event,
            envelope=replace(made, correlation_id=outgoing.correlation_id),
            not_before=outgoing.not_before,
            schedule_id=outgoing.schedule_id,
        )

    def _account(self, batch: Sequence[_Item], changes: Changes) -> None:
        figures = self.figures
        figures.batches += 1
        figures.requests += len(batch)
        figures.events += len(changes.outgoing) + len(changes.timers)
        figures.largest_batch = max(figures.largest_batch, len(batch))

    # ---------------------------------------------------------------- the connection

    async def _connect(self) -> None:
        world = World(self._policy, self._realm)
        connection = await self._engine.connect()
        try:
            await self._ownership.claim(connection)
            async with connection.begin():
                await connection.run_sync(tables.metadata.create_all)
            async with connection.begin():
                if self._claims is not None:
                    await self._claims.load(connection)
                for row in (await connection.execute(select(tables.multipliers))).mappings():
                    world.learn(rows.multiplier_of(row))
                for row in (await connection.execute(select(tables.roads))).mappings():
                    world.learn(rows.roads_of(row))
                online = select(tables.drivers).where(tables.drivers.c.status != DriverStatus.OFFLINE.value)
                for row in (await connection.execute(online)).mappings():
                    world.learn(rows.driver_of(row))
                ended = sorted(state.value for state in TERMINAL)
                wanted = or_(tables.rides.c.state.not_in(ended), tables.rides.c.owed_minor > 0)
                for row in (await connection.execute(select(tables.rides).where(wanted))).mappings():
                    world.learn(rows.ride_of(row))
                if self._clock.name == "event":
                    now = await connection.scalar(select(tables.clock.c.now).where(tables.clock.c.name == "event"))
                    if now is not None:
                        self._clock.observe(now)
        except BaseException:
            await self._leave(connection)
            raise
        self._world, self._connection, self._trouble = world, connection, None
        self._moved = {}
        log.info("world_loaded", **world.counts())

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._leave(connection)

    async def _leave(self, connection: AsyncConnection) -> None:
        try:
            async with asyncio.timeout(CANCEL_LIMIT_S):
                await self._ownership.leave(connection)
        except (SQLAlchemyError, OSError) as error:
            log.debug("close_failed", error=str(error))

    async def _recover(self, undecided: Sequence[_Item] = ()) -> None:
        """Load the world again from what is stored, and retry until that succeeds or the writer stops.

        Memory is not trusted after a failure. Whatever the reason for which the world cannot be loaded (the database is
        away, its lock is still held by the session that died, a stored row makes no sense), the writer keeps trying.

        Args:
            undecided: Requests to be done after the recovery; like those in the queue, they fail if it takes longer
                than one attempt.
        """
        await self._disconnect()
        delay_s = RELOAD_DELAY_S
        while not self._closing:
            try:
                await self._connect()
            except Exception as error:
                self._trouble = f"the stored state cannot be loaded: {error}"
                if isinstance(error, (DBAPIError, OSError, DatabaseTakenError)):
                    log.warning("reload_failed", error=str(error), retry_in_s=delay_s)
                else:
                    log.exception("reload_failed", retry_in_s=delay_s)
                stale, self._queue = [*undecided, *self._queue], deque()
                _fail(stale, UnavailableError("the database is away; send the same request again"))
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RELOAD_DELAY_MAX_S)
            else:
                return


@asynccontextmanager
async def _transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Commit, or roll back and raise what went wrong.

    With `connection.begin()` a rollback that fails replaces the error that says what went wrong: SQLAlchemy runs both
    in greenlets, which do not chain exceptions. Callers disconnect after any error, which rolls back for certain.
    """
    transaction = await connection.begin()
    try:
        yield
    except BaseException:
        try:
            await transaction.rollback()
        except (SQLAlchemyError, OSError) as error:
            log.warning("rollback_failed", error=_first_line(error))
        raise
    await transaction.commit()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _fail(batch: Sequence[_Item], error: Exception) -> None:
    for item in batch:
        if not item.done.done():
            item.done.set_exception(error)


def _union(needs: Sequence[Needs]) -> Needs:
    return Needs(
        quotes=tuple(dict.fromkeys(key for need in needs for key in need.quotes)),
        rides=tuple(dict.fromkeys(key for need in needs for key in need.rides)),
        drivers=tuple(dict.fromkeys(key for need in needs for key in need.drivers)),
        online=tuple(dict.fromkeys(key for need in needs for key in need.online)),
        riders_of=tuple(dict.fromkeys(key for need in needs for key in need.riders_of)),
    )


_SELECT_QUOTES: Final = select(tables.quotes).where(tables.quotes.c.quote_id.in_(bindparam("keys", expanding=True)))
_SELECT_RIDES: Final = select(tables.rides).where(tables.rides.c.ride_id.in_(bindparam("keys", expanding=True)))
_SELECT_DRIVERS: Final = select(tables.drivers).where(tables.drivers.c.driver_id.in_(bindparam("keys", expanding=True)))


def _upserts(dialect: str) -> Mapping[str, Any]:  # Any: the two dialects' inserts share no public class
    return {
        table.name: _upsert(dialect, table)
        for table in (tables.quotes, tables.rides, tables.drivers, tables.multipliers, tables.roads, tables.clock)
    }


def _upsert(dialect: str, table: Table) -> Any:  # Any: as above
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key},
    )
