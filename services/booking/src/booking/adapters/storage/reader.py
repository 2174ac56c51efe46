"""Reading what is stored, beside the writer: only committed things are seen."""

from collections.abc import Sequence
from typing import Any

from hailbus.database import READ_ONLY
from sqlalchemy import Select, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from booking.adapters.storage import rows, tables
from booking.adapters.storage.claims import region_of_driver
from booking.domain.driver import Driver
from booking.domain.errors import NotFound
from booking.domain.quote import Quote
from booking.domain.ride import Ride


class Reader:
    """Queries for GET requests.

    Args:
        engine: What this process owns.
        whole_city: What all regions own, read as one; None where one process serves everywhere.
    """

    def __init__(self, engine: AsyncEngine, whole_city: AsyncEngine | None = None) -> None:
        self._engine = engine
        self._whole_city = whole_city or engine

    async def quote(self, quote_id: str) -> Quote:
        """Return a quote, or raise `NotFound`."""
        found = await self._rows(select(tables.quotes).where(tables.quotes.c.quote_id == quote_id), self._engine)
        if not found:
            raise NotFound("quote", quote_id)
        return rows.quote_of(found[0])

    async def ride(self, ride_id: str) -> Ride:
        """Return a ride, or raise `NotFound`."""
        return await self._ride(self._engine, ride_id)

    async def driver(self, driver_id: str) -> Driver:
        """Return a driver of the whole city, or raise `NotFound`."""
        query = select(tables.drivers).where(tables.drivers.c.driver_id == driver_id)
        found = await self._rows(query, self._whole_city)
        if not found:
            raise NotFound("driver", driver_id)
        return rows.driver_of(found[0])

    async def region_of_driver(self, driver_id: str) -> str | None:
        """Return the region in which a driver is online; only where there are regions."""
        async with self._engine.connect() as connection:
            return await region_of_driver(connection, driver_id)

    async def rides(
        self, *, states: Sequence[str], ride_ids: Sequence[str], limit: int, after: str | None
    ) -> list[Ride]:
        """Return rides of the whole city, the newest request first, from behind the ride `after`.

        Raises:
            NotFound: There is no ride `after`.
        """
        table = tables.rides
        query = select(table).order_by(table.c.requested_at.desc(), table.c.ride_id.desc()).limit(limit)
        if states:
            query = query.where(table.c.state.in_(states))
        if ride_ids:
            query = query.where(table.c.ride_id.in_(ride_ids))
        if after is not None:
            last = await self._ride(self._whole_city, after)
            query = query.where(
                or_(
                    table.c.requested_at < last.requested_at,
                    and_(table.c.requested_at == last.requested_at, table.c.ride_id < last.ride_id),
                )
            )
        return [rows.ride_of(row) for row in await self._rows(query, self._whole_city)]

    async def drivers(self, *, statuses: Sequence[str], limit: int, after: str | None) -> list[Driver]:
        """Return drivers of the whole city by id, from behind the id `after`."""
        table = tables.drivers
        query = select(table).order_by(table.c.driver_id).limit(limit)
        if statuses:
            query = query.where(table.c.status.in_(statuses))
        if after is not None:
            query = query.where(table.c.driver_id > after)
        return [rows.driver_of(row) for row in await self._rows(query, self._whole_city)]

    async def _ride(self, engine: AsyncEngine, ride_id: str) -> Ride:
        found = await self._rows(select(tables.rides).where(tables.rides.c.ride_id == ride_id), engine)
        if not found:
            raise NotFound("ride", ride_id)
        return rows.ride_of(found[0])

    async def _rows(self, query: Select[Any], engine: AsyncEngine) -> Sequence[rows.Row]:
        # Any: whatever columns the query names
        async with engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            return list((await connection.execute(query)).mappings())
