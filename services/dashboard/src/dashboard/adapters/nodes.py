"""Asks the cluster for its brokers, leaders and in-sync replicas.

Any broker answers it. Lags need an answer of each leader, so they may be unknown while these are known.
"""

import asyncio
import time
from typing import Final

import structlog
from hailbus import Bus, ClusterAdmin
from ride_events import TOPICS

from dashboard.adapters.admin import renewed_admin
from dashboard.adapters.failures import is_of_the_bus
from dashboard.domain.cluster import Cluster, Partition, Registered, cluster_of

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard.nodes")

SHOWN_TOPICS: Final = (*(topic.name for topic in TOPICS), "__consumer_offsets", "__transaction_state")
_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 3.0


class Nodes:
    """The cluster's description of itself, renewed every second. `cluster` is the last one, `asked_s` its time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.cluster: Cluster | None = None
        self._asked_s = 0.0

    def age_s(self) -> float | None:
        """Return the age of the description in seconds; `None` before there is any."""
        return None if self.cluster is None else round(time.monotonic() - self._asked_s, 1)

    async def poll(self) -> None:
        """Ask for ever. After an error a new client asks again, by another broker if there is one."""
        async with renewed_admin(self._bus, "dashboard-cluster") as client:
            while True:
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        self.cluster = await _asked(client.admin)
                        self._asked_s = time.monotonic()
                except Exception as error:
                    if not is_of_the_bus(error):
                        raise
                    log.debug("cluster_not_described", detail=str(error))
                    await client.close()
                await asyncio.sleep(_EVERY_S)


async def _asked(admin: ClusterAdmin) -> Cluster:
    found = await admin.cluster()
    topics = await admin.topics(SHOWN_TOPICS)
    return cluster_of(
        cluster_id=found.cluster_id,
        controller_id=found.controller_id,
        registered=[
            Registered(
                node_id=broker.node_id,
                address=f"{broker.host}:{broker.port}",
                rack=broker.rack,
                is_fenced=broker.is_fenced,
            )
            for broker in found.brokers
        ],
        partitions=[
            Partition(
                topic=topic.name,
                partition=number,
                leader=topic.leaders[number],
                replicas=tuple(topic.replicas[number]),
                isr=tuple(topic.isr[number]),
            )
            for topic in topics.values()
            for number in sorted(topic.leaders)
        ],
    )


__all__ = ["SHOWN_TOPICS", "Nodes"]
