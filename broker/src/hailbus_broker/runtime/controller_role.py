"""What a node does beside the quorum as one that may be the active controller: work by the clock, probes of brokers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.log import StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ApiError
from hailbus_broker.runtime.controller_registration import register_controller

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.brokers import ListenerEndpoint
    from hailbus_broker.runtime.node_core import NodeCore

log: Any = get_logger()

TICK_MS: Final = 50
"""So late a broker may be fenced after its session has ended."""
PROBE_S: Final = 1.0
"""How long a probe waits for a connection."""


FIRST_PAUSE_MS: Final = 20
LAST_PAUSE_MS: Final = 1_000
"""The pause between two probes of a broker doubles from the first to the last."""


@dataclass(slots=True)
class _Suspicion:
    """A broker that may have died.

    Attributes:
        due_ms: When it is probed next.
        pause_ms: From that probe to the one after it.
    """

    due_ms: int
    pause_ms: int = FIRST_PAUSE_MS


class ControllerRole:
    """The controller of a node, whether it is active or not.

    Brokers dial controllers, never the other way: of a broker that dies a controller learns by silence, or when the
    connection closes over which heartbeats came. Then it probes the broker's listener. If that refuses connections, the
    process has ended, and the broker is fenced; without an answer its session decides. A process that ends closes its
    sockets one after another, so the listener may still accept the first probe: it is repeated until the broker sends a
    heartbeat again. A controller that has become active has seen no heartbeats, so it probes all brokers.

    Args:
        core: Of the node.
    """

    def __init__(self, core: NodeCore) -> None:
        self._core: Final = core
        self._heard: Final[dict[Any, tuple[int, int]]] = {}
        self._suspects: Final[dict[tuple[int, int], _Suspicion]] = {}
        self._was_active = False

    def start(self) -> None:
        """Begin; the node takes part in the quorum."""
        self._core.every(TICK_MS, self._tick)
        if not self._core.roles.is_standalone:
            self._core.spawn(register_controller(self._core), "controller-registration")

    def resign(self) -> None:
        """Lead no more: the others elect another leader at once."""
        self._core.metadata.quorum.resign()

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        """Let the controller decide what is due by the clock."""
        metadata, controller, now_ms = self._core.metadata, self._core.controller, self._core.clock.now_ms()
        self._suspect_all_once()
        self._probe_suspects()
        while metadata.is_active and self._core.failure is None:
            deadline_ms = controller.deadline_ms()
            if deadline_ms is None or now_ms < deadline_ms:
                return
            try:
                metadata.write(controller.tick(next_offset=metadata.next_offset, now_ms=now_ms))
            except StorageError:
                return  # the metadata log has reported it, and takes no part in the quorum any more
            except ApiError:
                return  # another node leads the quorum; the metadata log hears of it after this turn of the loop

    # ------------------------------------------------------------------ suspects

    def _suspect_all_once(self) -> None:
        """Suspect every broker when this controller has become active."""
        is_active, self._was_active = self._core.metadata.is_active, self._was_active
        if is_active and not self._was_active:
            for broker in list(self._core.controller.image.brokers.values()):
                if broker.fenced:
                    continue
                if broker.node_id != self._core.node_id:
                    self._suspect(broker.node_id, broker.broker_epoch)
                elif broker.broker_epoch != self._core.broker_epoch:
                    # An earlier process of this node: it has ended, as this one holds the lock of the data directory.
                    self._fence(broker.node_id, broker.broker_epoch, reason="this node was started anew")
        if not is_active:
            self._suspects.clear()
        self._was_active = is_active

    def heard(self, connection: Any, broker_id: int, broker_epoch: int) -> None:
        """Note the connection over which a broker sends heartbeats."""
        self._heard[connection] = broker_id, broker_epoch
        self._suspects.pop((broker_id, broker_epoch), None)

    def connection_lost(self, connection: Any) -> None:
        """Suspect the broker if it was its connection that closed."""
        found = self._heard.pop(connection, None)
        if found is not None and self._core.metadata.is_active:
            self._suspect(*found)

    def _suspect(self, broker_id: int, broker_epoch: int) -> None:
        """Probe a broker now, and again until it is heard of."""
        self._suspects[broker_id, broker_epoch] = _Suspicion(due_ms=self._core.clock.now_ms())
        self._probe_suspects()

    def _probe_suspects(self) -> None:
        now_ms = self._core.clock.now_ms()
        for (broker_id, broker_epoch), suspicion in list(self._suspects.items()):
            if suspicion.due_ms > now_ms:
                continue
            broker = self._core.controller.image.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != broker_epoch or broker.fenced or not broker.endpoints:
                del self._suspects[broker_id, broker_epoch]
                continue
            suspicion.due_ms = now_ms + suspicion.pause_ms
            suspicion.pause_ms = min(2 * suspicion.pause_ms, LAST_PAUSE_MS)
            self._core.spawn(self._probe(broker_id, broker_epoch, broker.endpoints[0]), "broker-probe")

    async def _probe(self, broker_id: int, broker_epoch: int, endpoint: ListenerEndpoint) -> None:
        """Fence a broker if its listener refuses connections."""
        try:
            async with asyncio.timeout(PROBE_S):
                transport, _ = await self._core.loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            self._fence(broker_id, broker_epoch, reason="its listener refuses connections")
        except OSError as error:  # TimeoutError is one
            log.info("broker_probe_without_answer", broker_id=broker_id, error=str(error))
        else:
            transport.close()

    def _fence(self, broker_id: int, broker_epoch: int, *, reason: str) -> None:
        metadata = self._core.metadata
        if not metadata.is_active or self._core.failure is not None:
            return
        log.warning("broker_found_dead", broker_id=broker_id, reason=reason, effect="it is fenced at once")
        try:
            fenced = self._core.controller.fence(broker_id, broker_epoch, next_offset=metadata.next_offset)
            metadata.write(fenced)
        except (ApiError, StorageError) as error:
            log.info("broker_not_fenced", broker_id=broker_id, error=str(error))
