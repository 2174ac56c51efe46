"""When the active controller last heard of each broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.cluster.metadata.brokers import BrokerState
    from hailbus_broker.records import Offset


@dataclass(slots=True, kw_only=True)
class BrokerSession:
    """What is known of one incarnation of a broker beside its registration. Nothing of it is durable.

    Attributes:
        broker_epoch: Of the incarnation.
        known_offset: In the metadata log, of its registration or of what fenced it since. A heartbeat that unfences it
            has applied that: an earlier one may arrive late, even after the process has ended.
        metadata_offset: Of the last record that it has applied, as it said.
        shutdown_offset: Others have to have applied the records before it, so that the broker may stop; None while it
            is not shutting down.
        last_contact_ms: None after the end of the session.
    """

    broker_epoch: int
    known_offset: Offset
    last_contact_ms: int | None
    metadata_offset: Offset = -1
    shutdown_offset: Offset | None = None


class BrokerSessions:
    """One session per broker.

    Args:
        timeout_ms: `broker.session.timeout.ms`.
    """

    def __init__(self, *, timeout_ms: int) -> None:
        self._timeout_ms: Final = timeout_ms
        self._by_broker: Final[dict[int, BrokerSession]] = {}
        self._first_offset: Offset = 0

    def reset(self, brokers: Mapping[int, BrokerState], *, next_offset: Offset, now_ms: int) -> None:
        """Begin a session of full length for every broker that is not fenced: a new controller has heard of none.

        What fenced the others is before `next_offset`.
        """
        self._by_broker.clear()
        self._first_offset = next_offset
        for broker in brokers.values():
            if not broker.fenced:
                self.begin(broker.node_id, broker.broker_epoch, broker.broker_epoch, now_ms=now_ms)

    def begin(self, broker_id: int, broker_epoch: int, known_offset: Offset, *, now_ms: int | None) -> None:
        """Begin the session of an incarnation; without `now_ms` it has ended already."""
        self._by_broker[broker_id] = BrokerSession(
            broker_epoch=broker_epoch, known_offset=known_offset, last_contact_ms=now_ms
        )

    def touch(self, broker: BrokerState, *, now_ms: int) -> BrokerSession:
        """Note that a broker was heard of, and return its session."""
        session = self._by_broker.get(broker.node_id)
        if session is None or session.broker_epoch != broker.broker_epoch:
            # An earlier controller has fenced it, or registered it.
            known_offset = max(broker.broker_epoch, self._first_offset - 1)
            self.begin(broker.node_id, broker.broker_epoch, known_offset, now_ms=now_ms)
            session = self._by_broker[broker.node_id]
        session.last_contact_ms = now_ms
        return session

    def fence(self, broker: BrokerState, fenced_offset: Offset) -> None:
        """Note what fences a broker."""
        session = self._by_broker.get(broker.node_id)
        if session is None or session.broker_epoch != broker.broker_epoch:
            self.begin(broker.node_id, broker.broker_epoch, fenced_offset, now_ms=None)
        else:
            session.known_offset = fenced_offset

    def end(self, broker_id: int) -> None:
        """End the session of a broker that has stopped, or is known to be dead."""
        session = self._by_broker.get(broker_id)
        if session is not None:
            session.last_contact_ms = None

    def is_live(self, broker: BrokerState, *, now_ms: int) -> bool:
        """Whether an incarnation was heard of within the session timeout."""
        session = self._by_broker.get(broker.node_id)
        return (
            session is not None
            and session.broker_epoch == broker.broker_epoch
            and session.last_contact_ms is not None
            and now_ms - session.last_contact_ms <= self._timeout_ms
        )

    def stale(self, brokers: Mapping[int, BrokerState], *, now_ms: int) -> int | None:
        """Return the broker that is silent longest among those whose session has ended and who are not fenced."""
        silent = [
            (self._last_contact_ms(broker), broker.node_id)
            for broker in brokers.values()
            if not broker.fenced and not self.is_live(broker, now_ms=now_ms)
        ]
        return min(silent)[1] if silent else None

    def deadline_ms(self, brokers: Mapping[int, BrokerState]) -> int | None:
        """Return when the next session ends; None if every broker is fenced."""
        ends = [
            self._last_contact_ms(broker) + self._timeout_ms + 1 for broker in brokers.values() if not broker.fenced
        ]
        return min(ends, default=None)

    def lowest_active_offset(self, brokers: Mapping[int, BrokerState]) -> Offset | None:
        """Return the lowest metadata offset that active brokers have said to have applied; None if none is active."""
        offsets = []
        for broker in brokers.values():
            if broker.is_active:
                session = self._by_broker.get(broker.node_id)
                offsets.append(-1 if session is None else session.metadata_offset)
        return min(offsets, default=None)

    def _last_contact_ms(self, broker: BrokerState) -> int:
        session = self._by_broker.get(broker.node_id)
        if session is None or session.last_contact_ms is None:
            return -self._timeout_ms
        return session.last_contact_ms
