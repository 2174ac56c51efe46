"""Who is in sync with the leader of a partition, and what is committed: the leader's view of one leader epoch.

The controller decides who is in the ISR; the leader proposes. While a proposal is under way the leader counts the
members of both sets, so whichever of them the controller has decided on, everything below the high watermark is on all
of its members (KIP-497).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hailbus_broker.records import LeaderEpoch, Offset

UNKNOWN: Final = -1


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower is.

    Attributes:
        end_offset: What it has, exclusive: on its disk if the leader counts disks; -1 before its first fetch.
        broker_epoch: Of the incarnation that fetched last, -1 for unknown.
        last_caught_up_ms: When it last had everything that the leader had.
        last_fetch_ms: Of its last fetch, -1 before the first.
        leader_end_offset: End of the leader's log at that fetch.
        log_start_offset: Where its log starts, also after a crash; -1 before its first fetch.
    """

    end_offset: Offset = UNKNOWN
    broker_epoch: int = UNKNOWN
    last_caught_up_ms: int = 0
    last_fetch_ms: int = UNKNOWN
    leader_end_offset: Offset = UNKNOWN
    log_start_offset: Offset = UNKNOWN

    def is_caught_up(self, leader_end_offset: Offset, *, now_ms: int, max_lag_ms: int) -> bool:
        """Whether the follower has all that the leader has, or had so not long ago."""
        return self.end_offset >= leader_end_offset or now_ms - self.last_caught_up_ms <= max_lag_ms


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR that the leader asks the controller for.

    Attributes:
        isr: Members by node id, with the broker epoch that they fetched with; the leader's own is -1.
        partition_epoch: On which the proposal rests.
    """

    isr: Mapping[int, int]
    partition_epoch: int


class InSyncReplicas:
    """The replicas of a partition while this node leads it.

    Args:
        node_id: Of the leader.
        leader_epoch: That it leads.
        epoch_start_offset: Where its log ended when it began to lead: a follower below it may have other records there.
        replicas: All replicas.
        isr: Those in sync, as committed.
        partition_epoch: Of the committed state.
        now_ms: Time; members of the ISR count as caught up at this moment.
        is_eligible: Whether a broker may join: it is neither fenced nor about to stop, and fetched with its present
            epoch.
    """

    def __init__(
        self,
        *,
        node_id: int,
        leader_epoch: LeaderEpoch,
        epoch_start_offset: Offset,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        now_ms: int,
        is_eligible: Callable[[int, int], bool],
    ) -> None:
        self.node_id: Final = node_id
        self.epoch_start_offset: Final = epoch_start_offset
        self._is_eligible: Final = is_eligible
        self.leader_epoch: Final = leader_epoch
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self.followers: dict[int, FollowerProgress] = {}
        self._proposal: Proposal | None = None
        self._set_replicas(replicas, now_ms)

    def _set_replicas(self, replicas: Iterable[int], now_ms: int) -> None:
        before = self.followers
        self.followers = {
            replica: before.get(replica) or FollowerProgress(last_caught_up_ms=now_ms if replica in self.isr else 0)
            for replica in replicas
            if replica != self.node_id
        }

    # ------------------------------------------------------------------ questions

    @property
    def counted(self) -> frozenset[int]:
        """The replicas without which nothing is committed: those of the ISR, and those that are about to join it."""
        proposed = () if self._proposal is None else self._proposal.isr
        return frozenset((*self.isr, *proposed))

    @property
    def has_proposal(self) -> bool:
        """Whether the controller was asked for another ISR, and has not decided yet as far as the leader knows."""
        return self._proposal is not None

    def high_watermark(self, own_offset: Offset, log_end_offset: Offset, *, now_ms: int, max_lag_ms: int) -> Offset:
        """Return what is committed; it never goes back, so the caller keeps the highest.

        A follower that is about to be in sync is waited for: otherwise a busy leader would always be ahead of it.

        Args:
            own_offset: What the leader itself has, exclusive: on its disk if it counts disks.
            log_end_offset: End of the leader's log.
            now_ms: Time.
            max_lag_ms: `replica.lag.time.max.ms`.
        """
        counted = self.counted
        offset = own_offset
        for node_id, progress in self.followers.items():
            if progress.end_offset >= offset:
                continue
            is_joining = (
                progress.end_offset != UNKNOWN
                and progress.is_caught_up(log_end_offset, now_ms=now_ms, max_lag_ms=max_lag_ms)
                and self._is_eligible(node_id, progress.broker_epoch)
            )
            if node_id in counted or is_joining:
                offset = progress.end_offset
        return offset

    def is_under_min_isr(self, min_isr: int) -> bool:
        """Whether too few replicas are in sync to commit anything; there may be fewer replicas than that."""
        return len(self.isr) < min(min_isr, len(self.followers) + 1)

    # ------------------------------------------------------------------ fetches

    def fetched(self, node_id: int, broker_epoch: int, end_offset: Offset, log_end_offset: Offset, now_ms: int) -> bool:
        """A follower has asked for records from an offset, so it has all before it.

        Args:
            node_id: Of the follower.
            broker_epoch: It fetched with, -1 for unknown.
            end_offset: Where it wants to go on.
            log_end_offset: End of the leader's log.
            now_ms: Time.

        Returns:
            Whether it is a replica of the partition.
        """
        progress = self.followers.get(node_id)
        if progress is None:
            return False
        if progress.broker_epoch not in {broker_epoch, UNKNOWN}:
            # Another incarnation: what the one before had, this one may have lost.
            progress.last_caught_up_ms, progress.leader_end_offset = 0, UNKNOWN
        if end_offset >= log_end_offset:
            progress.last_caught_up_ms = max(progress.last_caught_up_ms, now_ms)
        elif progress.leader_end_offset != UNKNOWN and end_offset >= progress.leader_end_offset:
            # It has now what was there at its fetch before.
            progress.last_caught_up_ms = max(progress.last_caught_up_ms, progress.last_fetch_ms)
        progress.end_offset = end_offset
        progress.broker_epoch = broker_epoch
        progress.leader_end_offset = log_end_offset
        progress.last_fetch_ms = now_ms
        return True

    def starts_at(self, node_id: int, log_start_offset: Offset) -> bool:
        """Note where a follower's log starts.

        Returns:
            Whether that is news.
        """
        progress = self.followers.get(node_id)
        if progress is None or progress.log_start_offset == log_start_offset:
            return False
        progress.log_start_offset = log_start_offset
        return True

    def low_watermark(self, own_log_start_offset: Offset, is_alive: Callable[[int], bool]) -> Offset:
        """Return the lowest log start offset of the replicas whose brokers are alive: nobody can read below it.

        Args:
            own_log_start_offset: Of the leader.
            is_alive: Whether a broker is registered and not fenced.
        """
        starts = (progress.log_start_offset for node_id, progress in self.followers.items() if is_alive(node_id))
        return min((own_log_start_offset, *starts))

    # ------------------------------------------------------------------ proposals

    def propose(
        self, high_watermark: Offset, log_end_offset: Offset, *, now_ms: int, max_lag_ms: int
    ) -> Proposal | None:
        """Return another ISR to ask the controller for; None if it should stay, or while one is asked for.

        A follower joins when it has everything that is committed, and all that was there when this leader began. It
        leaves when it could not catch up for long. One that does not fetch any more stays outside, even if nothing is
        committed without it: else it would be in sync again as soon as it had left.
        """
        if self.has_proposal:
            return None
        members = {self.node_id: UNKNOWN}
        for node_id, progress in self.followers.items():
            if node_id in self.isr:
                if progress.is_caught_up(log_end_offset, now_ms=now_ms, max_lag_ms=max_lag_ms):
                    members[node_id] = progress.broker_epoch
            elif (
                progress.end_offset >= max(high_watermark, self.epoch_start_offset)
                and progress.end_offset != UNKNOWN
                and now_ms - progress.last_fetch_ms <= max_lag_ms
                and self._is_eligible(node_id, progress.broker_epoch)
            ):
                members[node_id] = progress.broker_epoch
        if members.keys() == set(self.isr):
            return None
        self._proposal = Proposal(members, self.partition_epoch)
        return self._proposal

    def deadline_ms(self, log_end_offset: Offset, *, max_lag_ms: int) -> int | None:
        """Return when a follower may have to leave; None if all have everything."""
        times = [
            progress.last_caught_up_ms + max_lag_ms + 1
            for node_id, progress in self.followers.items()
            if node_id in self.isr and progress.end_offset < log_end_offset
        ]
        return min(times, default=None)

    def is_open(self, proposal: Proposal) -> bool:
        """Whether the outcome of a proposal is not known yet."""
        return self._proposal is proposal

    def failed(self, proposal: Proposal) -> None:
        """The controller has refused a proposal for good: it has not happened, and never will.

        A proposal whose outcome is not known stays, until the metadata says what has become of it.
        """
        if self._proposal is proposal:
            self._proposal = None

    def committed(self, *, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, now_ms: int) -> None:
        """Take over a state of the partition, from the metadata or the controller's answer; an old one is ignored."""
        if partition_epoch <= self.partition_epoch:
            return
        before = set(self.isr)
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self._proposal = None
        self._set_replicas(replicas, now_ms)
        for node_id in set(self.isr) - before:
            if node_id in self.followers:
                progress = self.followers[node_id]
                progress.last_caught_up_ms = max(progress.last_caught_up_ms, now_ms)
