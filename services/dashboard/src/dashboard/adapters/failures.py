"""Errors of a cluster that is away, told from mistakes of ours."""

import asyncio
from typing import Final

import structlog
from hailbus import ClusterAdmin, HailbusError

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard.watch")


def is_of_the_bus(error: Exception) -> bool:
    """Return whether an error means that a broker is away, and is no mistake of ours.

    Some errors of the Kafka client pass the SDK's admin unchanged, for example that of a node that is not ready.
    """
    return isinstance(error, (HailbusError, OSError, TimeoutError)) or type(error).__module__.startswith("aiokafka")


async def closed(admin: ClusterAdmin) -> None:
    """Close a client; what fails meanwhile is only logged."""
    try:
        async with asyncio.timeout(2):
            await admin.close()
    except Exception as error:
        if not is_of_the_bus(error):
            raise
        log.debug("admin_not_closed", detail=str(error))


__all__ = ["closed", "is_of_the_bus"]
