"""A controller without its network: a node that takes part in the quorum, and decides when it leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.runtime.node_core import NodeCore

if TYPE_CHECKING:
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.metadata import QuorumSettings

TICK_MS: Final = 50
"""So late a broker may be fenced after its session has ended."""


class ControllerNode:
    """One controller.

    Args:
        config: Its settings.
        quorum: What they say about the quorum.
        machine: What it runs on; None is the process's own.
    """

    def __init__(self, config: BrokerConfig, quorum: QuorumSettings, *, machine: Machine | None = None) -> None:
        self.core: Final = NodeCore(config, machine=machine)
        self._quorum: Final = quorum

    async def start(self) -> None:
        """Open the data directory, and take part in the quorum.

        Raises:
            StartError: The directory cannot be used, or the metadata in it.
        """
        core = self.core
        core.open()
        try:
            core.join_quorum(self._quorum)
        except BaseException:
            await core.stop(is_clean=False)
            raise
        core.refresh_config(core.image)
        core.publisher.subscribe(core)
        core.every(TICK_MS, self._tick)

    def _tick(self) -> None:
        """Let the controller decide what is due by the clock."""
        metadata, controller, now_ms = self.core.metadata, self.core.controller, self.core.clock.now_ms()
        while metadata.is_active and self.core.failure is None:
            deadline_ms = controller.deadline_ms()
            if deadline_ms is None or now_ms < deadline_ms:
                return
            metadata.write(controller.tick(now_ms=now_ms))

    def resign(self) -> None:
        """Lead no more: the others elect another leader at once."""
        self.core.metadata.quorum.resign()

    async def stop(self) -> None:
        """Close the log."""
        await self.core.stop()
