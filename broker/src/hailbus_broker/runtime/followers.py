"""The followers of a partition that this node leads: what they have stored, and who of them is in sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hailbus_broker.cluster.replication.in_sync import InSyncReplicas, Proposal
    from hailbus_broker.log import PartitionLog
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.replica import LeaderReplica

NOTHING: Final = -1
"""In place of an offset: the high watermark stays where it is."""


@dataclass(slots=True, kw_only=True)
class ReplicationSettings:
    """What the broker's settings say about its followers; one object for all partitions.

    Attributes:
        max_lag_ms: `replica.lag.time.max.ms`.
        serves_racks: Whether consumers read from followers (`replica.selector.class`): these then hear of a new high
            watermark at once, and not with the next records.
    """

    max_lag_ms: int
    serves_racks: bool = False


@dataclass(slots=True)
class IsrChanges:
    """How often the ISR of a partition that this node leads has changed; one object for all partitions."""

    shrink_count: int = 0
    expand_count: int = 0

    def note(self, before: Iterable[int], after: Iterable[int]) -> None:
        """Count a change; one that replaces a member counts as both."""
        self.shrink_count += not set(before) <= set(after)
        self.expand_count += not set(after) <= set(before)


class Followers:
    """The other replicas of a partition.

    Args:
        in_sync: Who is in sync.
        clock: Measures how long a follower has been behind.
        settings: Of the broker.
        min_isr: `min.insync.replicas` of the topic.
        submit: Sends a proposal to the controller.
        is_alive: Whether a broker is registered and not fenced.
        isr_changes: Counts them.
    """

    __slots__ = ("_clock", "_is_alive", "_isr_changes", "_settings", "_submit", "in_sync", "min_isr")

    def __init__(
        self,
        in_sync: InSyncReplicas,
        *,
        clock: Clock,
        settings: ReplicationSettings,
        min_isr: int,
        submit: Callable[[LeaderReplica, Proposal], None],
        is_alive: Callable[[int], bool] = lambda _: True,
        isr_changes: IsrChanges | None = None,
    ) -> None:
        self.in_sync: Final = in_sync
        self.min_isr = min_isr
        self._clock: Final = clock
        self._settings: Final = settings
        self._submit: Final = submit
        self._is_alive: Final = is_alive
        self._isr_changes: Final = isr_changes or IsrChanges()

    @property
    def serves_racks(self) -> bool:
        """Whether consumers read from followers."""
        return self._settings.serves_racks

    @property
    def has_min_isr(self) -> bool:
        """Whether the ISR is as large as `min.insync.replicas` says."""
        return not self.in_sync.is_under_min_isr(self.min_isr)

    def fetched(self, node_id: int, broker_epoch: int, offset: int, log: PartitionLog) -> bool:
        """Note that a follower has everything below an offset.

        Returns:
            Whether it is a follower of the partition.
        """
        return self.in_sync.fetched(node_id, broker_epoch, offset, log.log_end_offset, self._clock.now_ms())

    def committed_offset(self, own_offset: int, log_end_offset: int) -> int:
        """Return what all counted replicas have stored; -1 while fewer are in sync than `min.insync.replicas`.

        Args:
            own_offset: What the leader itself has stored.
            log_end_offset: End of the leader's log.
        """
        if not self.has_min_isr:
            return NOTHING
        return self.in_sync.high_watermark(
            own_offset, log_end_offset, now_ms=self._clock.now_ms(), max_lag_ms=self._settings.max_lag_ms
        )

    def low_watermark(self, log: PartitionLog) -> int:
        """Return the lowest log start offset of the replicas whose brokers are alive; -1 while one is not known."""
        return self.in_sync.low_watermark(log.log_start_offset, self._is_alive)

    def change_isr(self, isr: Iterable[int], partition_epoch: int) -> None:
        """Take over the ISR that the controller has decided on; the replicas stay."""
        self.committed((self.in_sync.node_id, *self.in_sync.followers), isr, partition_epoch)

    def committed(self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int) -> None:
        """Take over a state of the partition; an old one is ignored."""
        before = self.in_sync.isr
        self.in_sync.committed(replicas=replicas, isr=isr, partition_epoch=partition_epoch, now_ms=self._clock.now_ms())
        self._isr_changes.note(before, self.in_sync.isr)

    def propose(self, leader: LeaderReplica, log: PartitionLog) -> None:
        """Ask the controller for another ISR if it should change, and no other change is under way."""
        proposal = self.in_sync.propose(
            log.high_watermark, log.log_end_offset, now_ms=self._clock.now_ms(), max_lag_ms=self._settings.max_lag_ms
        )
        if proposal is not None:
            self._submit(leader, proposal)
