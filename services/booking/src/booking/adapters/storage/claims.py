"""What the regions must agree on, in a schema that they share: one open ride per rider, one region per driver, debts.

Each region has its tables in a schema of its own in the same PostgreSQL database, so its transaction also covers the
rows here: a claim is committed with the ride or the driver that it is for, or not at all.

A row belongs to the region that holds it. A region locks only rows that it holds or that nobody holds, in the order of
their keys and before it decides; later it changes only rows that it has locked or holds. So two regions never wait for
each other in a circle.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hailbus.database import create_engine
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    bindparam,
    delete,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from booking.adapters.storage.database import ADVISORY_LOCK
from booking.app.ports import Needs
from booking.app.world import Changes, Elsewhere, World
from booking.domain.driver import DriverStatus
from booking.domain.region import Realm
from booking.domain.ride import TERMINAL

SHARED_SCHEMA: Final = "booking_regions"
RIDER: Final = "rider"
DRIVER: Final = "driver"
ONLINE: Final = "online"
ATTEMPTS: Final = 5
"""How often rows are looked at that change hands meanwhile."""

_metadata = MetaData(schema=SHARED_SCHEMA)
claims = Table(
    "claims",
    _metadata,
    Column("kind", String(6), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("region", String(20), nullable=False),
    # A rider's open ride, or `online`; null when nobody holds it.
    Column("held", String(64)),
    # Of a driver: the number of the last event when the row was written.
    Column("seq", Integer, nullable=False),
)
debts = Table(
    "debts",
    _metadata,
    Column("ride_id", String(64), primary_key=True),
    Column("rider_id", String(64), nullable=False, index=True),
    Column("region", String(20), nullable=False),
    Column("owed_minor", BigInteger, nullable=False),
)

_ADD = insert(claims).on_conflict_do_nothing()
_WRITE = insert(claims)
_WRITE = _WRITE.on_conflict_do_update(
    index_elements=[claims.c.kind, claims.c.key],
    set_={name: _WRITE.excluded[name] for name in ("region", "held", "seq")},
)
_OF_KIND = select(claims).where(claims.c.kind == bindparam("kind"), claims.c.key.in_(bindparam("keys", expanding=True)))
_LOCK = (
    _OF_KIND.where(or_(claims.c.held.is_(None), claims.c.region == bindparam("region")))
    .order_by(claims.c.key)
    .with_for_update()
)
_OTHERS = _OF_KIND.where(claims.c.held.is_not(None), claims.c.region != bindparam("region"))
_HELD = select(claims).where(claims.c.region == bindparam("region"), claims.c.held.is_not(None))
_OWE = insert(debts)
_OWE = _OWE.on_conflict_do_update(index_elements=[debts.c.ride_id], set_={"owed_minor": _OWE.excluded.owed_minor})
_OWED = (
    select(debts.c.rider_id, func.min(debts.c.ride_id), func.sum(debts.c.owed_minor))
    .where(debts.c.rider_id.in_(bindparam("keys", expanding=True)), debts.c.region != bindparam("region"))
    .group_by(debts.c.rider_id)
)
_PAID = delete(debts).where(debts.c.ride_id.in_(bindparam("keys", expanding=True)))
_HOLDER = select(claims.c.region).where(
    claims.c.kind == DRIVER, claims.c.key == bindparam("driver_id"), claims.c.held.is_not(None)
)


def schema_of(region: str) -> str:
    """Return the schema with a region's own tables."""
    return f"booking_{region}"


def url_of(url: str, region: str) -> str:
    """Return the URL by which a region's tables are found under their usual names."""
    parsed = make_url(url).update_query_dict({"search_path": schema_of(region)})
    return parsed.render_as_string(hide_password=False)


def url_of_whole_city(url: str) -> str:
    """Return the URL by which all regions' tables are read as one; see `show_whole_city`."""
    parsed = make_url(url).update_query_dict({"search_path": SHARED_SCHEMA})
    return parsed.render_as_string(hide_password=False)


async def set_up(url: str, region: str) -> None:
    """Create the region's schema and the shared one with its tables, where they are missing."""
    engine = create_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            for schema in (SHARED_SCHEMA, schema_of(region)):
                await connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
            await connection.run_sync(_metadata.create_all)
    finally:
        await engine.dispose()


_UNION: Final = (
    "booking_rides",
    "booking_quotes",
    "booking_multipliers",
    "hailbus_outbox",
    "hailbus_inbox",
    "hailbus_parked",
)
_HAVE_TABLES = text("SELECT table_schema FROM information_schema.tables WHERE table_name = 'booking_rides' ORDER BY 1")


async def show_whole_city(url: str, realm: Realm) -> None:
    """Make views in the shared schema that show all regions' tables as one, for who reads the whole city.

    They cover the regions that have their tables by now; the last region to start covers all.
    """
    engine = create_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            known = {schema_of(region.name) for region in realm.regions.all}
            schemas = [name for name in await connection.scalars(_HAVE_TABLES) if name in known]
            for name in (*_UNION, "booking_drivers", "booking_clock"):
                # S608: the schemas are those of the realm's regions, whose names were checked.
                rows = " UNION ALL ".join(f'SELECT * FROM "{schema}".{name}' for schema in schemas)  # noqa: S608
                if name == "booking_drivers":  # a driver who changed regions has a row in both: the last one counts
                    rows = f"SELECT DISTINCT ON (driver_id) * FROM ({rows}) AS d ORDER BY driver_id, seq DESC"  # noqa: S608
                elif name == "booking_clock":
                    rows = f"SELECT name, max(now) AS now FROM ({rows}) AS c GROUP BY name"  # noqa: S608
                await connection.execute(text(f"DROP VIEW IF EXISTS {SHARED_SCHEMA}.{name}"))
                await connection.execute(text(f"CREATE VIEW {SHARED_SCHEMA}.{name} AS {rows}"))
    finally:
        await engine.dispose()


async def region_of_driver(connection: AsyncConnection, driver_id: str) -> str | None:
    """Return the region in which a driver is online."""
    found: str | None = await connection.scalar(_HOLDER, {"driver_id": driver_id})
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    region: str
    held: str | None
    seq: int


class Claims:
    """What this region holds, as of the last commit, and how it comes to hold more."""

    def __init__(self, realm: Realm) -> None:
        self._region = realm.own.name
        self._held: dict[tuple[str, str], str] = {}
        self._owed: dict[str, int] = {}

    async def load(self, connection: AsyncConnection) -> None:
        """Read what this region holds."""
        mine = {"region": self._region}
        rows = (await connection.execute(_HELD, mine)).all()
        self._held = {(row.kind, row.key): row.held for row in rows}
        owed = select(debts.c.ride_id, debts.c.owed_minor).where(debts.c.region == self._region)
        self._owed = dict((await connection.execute(owed)).tuples().all())

    async def learn(self, connection: AsyncConnection, world: World, needs: Needs) -> None:
        """Claim what the commands may take, and tell the world what other regions hold.

        Raises:
            OSError: Rows change hands faster than they can be claimed.
        """
        away = [key for key in needs.drivers if not world.is_online(key)]
        wanted = set(needs.online)
        riders = {rider for key in needs.riders_of if (rider := world.rider_of(key)) is not None}
        drivers = await self._rows(connection, _OTHERS, DRIVER, [key for key in away if key not in wanted])
        mine, others = await self._claim(connection, DRIVER, [key for key in away if key in wanted])
        _, busy = await self._claim(connection, RIDER, riders)
        owed: Mapping[str, tuple[str, int]] = {}
        if riders:
            found = await connection.execute(_OWED, {"keys": sorted(riders), "region": self._region})
            owed = {rider: (ride, int(minor)) for rider, ride, minor in found.tuples()}
        world.learn_elsewhere(
            Elsewhere(
                drivers={key: row.region for key, row in {**drivers, **others}.items()},
                rides={key: row.held for key, row in busy.items() if row.held is not None},
                debts=owed,
                seqs={key: row.seq for key, row in mine.items()},
            )
        )

    async def flush(self, connection: AsyncConnection, changes: Changes) -> None:
        """Write down what this region took and gave back. If that fails, load again."""
        rows: dict[tuple[str, str], dict[str, str | int | None]] = {}
        for ride in changes.rides.values():
            if ride.state in TERMINAL and self._held.get((RIDER, ride.rider_id)) == ride.ride_id:
                rows[RIDER, ride.rider_id] = self._row(RIDER, ride.rider_id, None)
        for ride in changes.rides.values():
            if ride.state not in TERMINAL and self._held.get((RIDER, ride.rider_id)) != ride.ride_id:
                rows[RIDER, ride.rider_id] = self._row(RIDER, ride.rider_id, ride.ride_id)
        for driver in changes.drivers.values():
            is_online = driver.status is not DriverStatus.OFFLINE
            if is_online != ((DRIVER, driver.driver_id) in self._held):
                held = ONLINE if is_online else None
                rows[DRIVER, driver.driver_id] = self._row(DRIVER, driver.driver_id, held, driver.seq)
        if rows:
            await connection.execute(_WRITE, [rows[key] for key in sorted(rows)])
        for place, row in rows.items():
            if row["held"] is None:
                self._held.pop(place, None)
            else:
                self._held[place] = str(row["held"])
        await self._flush_debts(connection, changes)

    async def _flush_debts(self, connection: AsyncConnection, changes: Changes) -> None:
        owed = {ride.ride_id: ride for ride in changes.rides.values() if ride.payment.owed_minor}
        more = [ride for key, ride in owed.items() if self._owed.get(key) != ride.payment.owed_minor]
        paid = [key for key in changes.rides if key in self._owed and key not in owed]
        if more:
            await connection.execute(
                _OWE,
                [
                    {
                        "ride_id": ride.ride_id,
                        "rider_id": ride.rider_id,
                        "region": self._region,
                        "owed_minor": ride.payment.owed_minor,
                    }
                    for ride in more
                ],
            )
        if paid:
            await connection.execute(_PAID, {"keys": paid})
        self._owed |= {ride.ride_id: ride.payment.owed_minor for ride in more}
        for key in paid:
            del self._owed[key]

    def _row(self, kind: str, key: str, held: str | None, seq: int = 0) -> dict[str, str | int | None]:
        return {"kind": kind, "key": key, "region": self._region, "held": held, "seq": seq}

    async def _claim(
        self, connection: AsyncConnection, kind: str, keys: Iterable[str]
    ) -> tuple[Mapping[str, _Row], Mapping[str, _Row]]:
        """Lock rows until the end of the transaction; return those that are this region's, and those of others."""
        wanted = sorted(set(keys))
        if not wanted:
            return {}, {}
        await connection.execute(_ADD, [self._row(kind, key, None) for key in wanted])
        for attempt in range(ATTEMPTS):
            mine = await self._rows(connection, _LOCK, kind, wanted)
            others = await self._rows(connection, _OTHERS, kind, [key for key in wanted if key not in mine])
            if len(mine) + len(others) == len(wanted):
                return mine, others
            await asyncio.sleep(0.01 * attempt)  # another region let a row go between the two statements
        message = f"{kind} rows change hands faster than they can be claimed"
        raise OSError(message)

    async def _rows(
        self, connection: AsyncConnection, statement: Select[Any], kind: str, keys: Sequence[str]
    ) -> Mapping[str, _Row]:  # Any: the columns of the claims
        if not keys:
            return {}
        found = await connection.execute(statement, {"kind": kind, "keys": sorted(set(keys)), "region": self._region})
        return {row.key: _Row(row.region, row.held, row.seq) for row in found}
