"""A controller without its network: a node that takes part in the quorum, and decides when it leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.runtime.controller_role import ControllerRole
from hailbus_broker.runtime.node_core import NodeCore

if TYPE_CHECKING:
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.metadata import QuorumSettings


class ControllerNode:
    """One controller.

    Args:
        config: Its settings.
        quorum: What they say about the quorum; None to read it from them.
        machine: What it runs on; None is the process's own.
    """

    def __init__(
        self, config: BrokerConfig, quorum: QuorumSettings | None = None, *, machine: Machine | None = None
    ) -> None:
        self.core: Final = NodeCore(config, machine=machine)
        self._quorum: Final = quorum or self.core.roles.quorum
        self._role: Final = ControllerRole(self.core)

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
        core.controller_role = self._role
        self._role.start()

    def resign(self) -> None:
        """Lead no more: the others elect another leader at once."""
        self._role.resign()

    async def stop(self) -> None:
        """Close the log."""
        await self.core.stop()
