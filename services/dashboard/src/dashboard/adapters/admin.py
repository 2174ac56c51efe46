"""The client of a loop that asks the cluster for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog
from hailbus import Bus, ClusterAdmin

from dashboard.adapters.failures import is_of_the_bus

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard.admin")


class RenewedAdmin:
    """An admin client that is made when it is needed. After an error a new one asks, by another broker if there is one.

    Args:
        bus: The cluster.
        client_id: Its name in the broker's logs.
    """

    def __init__(self, bus: Bus, client_id: str) -> None:
        self._bus = bus
        self._client_id = client_id
        self._admin: ClusterAdmin | None = None

    @property
    def admin(self) -> ClusterAdmin:
        """The client."""
        if self._admin is None:
            self._admin = ClusterAdmin(self._bus, client_id=self._client_id)
        return self._admin

    async def close(self) -> None:
        """Close the client, so that the next question makes a new one; what fails meanwhile is only logged."""
        admin, self._admin = self._admin, None
        if admin is None:
            return
        try:
            async with asyncio.timeout(2):
                await admin.close()
        except Exception as error:
            if not is_of_the_bus(error):
                raise
            log.debug("admin_not_closed", detail=str(error))


@asynccontextmanager
async def renewed_admin(bus: Bus, client_id: str) -> AsyncIterator[RenewedAdmin]:
    """Give a client for a loop, and close it when the loop ends or is cancelled."""
    client = RenewedAdmin(bus, client_id)
    try:
        yield client
    finally:
        await client.close()


__all__ = ["RenewedAdmin", "renewed_admin"]
