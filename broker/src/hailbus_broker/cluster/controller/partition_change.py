"""A change of one partition: its ISR, ELR, replicas and directories, and the election that follows from them.

Every decision that concerns a partition ends here, so the rules of elections (KIP-966, KIP-455) are in one place.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.cluster.metadata.names import NO_LEADER, NO_LEADER_CHANGE
from hailbus_broker.cluster.metadata.topics import LeaderRecovery
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hailbus_broker.cluster.metadata.topics import PartitionState
    from hailbus_broker.protocol.schema import Uuid


class Election(Enum):
    """Which replica may become the leader."""

    PREFERRED = auto()
    """The first replica if it is in sync, even in place of a leader that works."""
    ONLINE = auto()
    """One that has every committed record, if the partition needs a leader."""
    UNCLEAN = auto()
    """Any replica that is alive, if no other one can lead. Committed records may be lost."""


class _Elected(NamedTuple):
    leader: int
    is_unclean: bool


class PartitionChange:
    """Collects what should change, and decides what follows.

    Args:
        topic_id: Of the partition.
        before: What the partition is now.
        can_lead: Whether a broker is alive and has the replica in a directory that is online.
        min_isr: `min.insync.replicas`, at most the replication factor.
        has_elr: Whether the cluster keeps eligible leader replicas.
        default_directory: Directory of a replica that is new on its broker.
        election: Which replica may become the leader.

    Attributes:
        isr: Wanted.
        replicas: Wanted, those to be removed included.
        adding: Wanted.
        removing: Wanted.
        recovery: Wanted.
        without_tail: Brokers whose logs may miss their last records: they are not eligible.
        directories: By broker; what is missing stays or is the default.
        last_known_elr: Who led last in a partition without leader, ISR and ELR, and may lead again if it returns.
    """

    def __init__(
        self,
        topic_id: Uuid,
        before: PartitionState,
        *,
        can_lead: Callable[[int], bool],
        min_isr: int,
        has_elr: bool,
        default_directory: Callable[[int], Uuid],
        election: Election,
    ) -> None:
        self._topic_id: Final = topic_id
        self._before: Final = before
        self._can_lead: Final = can_lead
        self._min_isr: Final = min_isr
        self._has_elr: Final = has_elr
        self._default_directory: Final = default_directory
        self._election: Final = election
        self.isr = before.isr
        self.replicas = before.replicas
        self.adding = before.adding_replicas
        self.removing = before.removing_replicas
        self.recovery = before.recovery
        self.without_tail: Collection[int] = frozenset()
        self.last_known_elr = before.last_known_elr
        self.directories: Final[dict[int, Uuid]] = dict(zip(before.replicas, before.directories, strict=False))

    def build(self) -> PartitionChangeRecord | None:
        """Return the record of the change; None if nothing changes."""
        before = self._before
        self._complete_reassignment()
        elr = self._eligible()
        record = PartitionChangeRecord(partition_id=before.index, topic_id=self._topic_id)
        elected = self._elect(elr)
        if elected.leader != before.leader:
            record.leader = elected.leader
            if elected.is_unclean:
                self.isr, elr = (elected.leader,), ()
                self.recovery = LeaderRecovery.RECOVERING
            elif elected.leader in elr:
                self.isr = (elected.leader,)
                elr = tuple(broker_id for broker_id in elr if broker_id != elected.leader)
        elif not set(before.replicas) <= set(self.replicas):
            # Replicas that go must not be followed any longer: a new leader epoch fences them.
            record.leader = before.leader
        if elr != before.elr:
            record.eligible_leader_replicas = list(elr)
        # Without ELR the last replica of an ISR stays in it when it goes: only it has all records.
        if self.isr != before.isr and (self.isr or self._has_elr):
            record.isr = list(self.isr)
        self._remember_last_leader(record)
        self._assign(record)
        if self.recovery is not before.recovery:
            record.leader_recovery_state = int(self.recovery)
        return None if _is_empty(record) else record

    def _complete_reassignment(self) -> None:
        """End a reassignment as soon as every replica that stays is in sync."""
        if not self.adding and not self.removing:
            return
        isr = tuple(broker_id for broker_id in self.isr if broker_id not in self.removing)
        replicas = tuple(broker_id for broker_id in self.replicas if broker_id not in self.removing)
        if isr and replicas and set(replicas) <= set(isr):
            self.isr, self.replicas, self.adding, self.removing = isr, replicas, (), ()

    def _eligible(self) -> tuple[int, ...]:
        """Return the ELR: who was in the ISR while it was smaller than the minimum has every committed record."""
        if not self._has_elr or len(self.isr) >= self._min_isr:
            return ()
        candidates = dict.fromkeys((*self._before.elr, *self._before.isr))
        return tuple(
            broker_id
            for broker_id in candidates
            if broker_id not in self.isr and broker_id not in self.without_tail and broker_id in self.replicas
        )

    def _elect(self, elr: tuple[int, ...]) -> _Elected:
        current = self._before.leader

        def is_valid(broker_id: int) -> bool:
            has_all = broker_id in self.isr or (not self.isr and broker_id in elr)
            return has_all and broker_id in self.replicas and self._can_lead(broker_id)

        if self._election is Election.PREFERRED and self.replicas and is_valid(self.replicas[0]):
            return _Elected(self.replicas[0], is_unclean=False)
        for broker_id in (current, *self.replicas):
            if is_valid(broker_id):
                return _Elected(broker_id, is_unclean=False)
        last_known = self.last_known_elr
        if self._has_elr and not self.isr and not elr and len(last_known) == 1 and self._may_return(last_known[0]):
            return _Elected(last_known[0], is_unclean=True)
        if self._election is Election.UNCLEAN:
            for broker_id in self.replicas:
                if self._can_lead(broker_id):
                    return _Elected(broker_id, is_unclean=True)
        return _Elected(NO_LEADER, is_unclean=False)

    def _may_return(self, broker_id: int) -> bool:
        return broker_id in self.replicas and self._can_lead(broker_id)

    def _remember_last_leader(self, record: PartitionChangeRecord) -> None:
        """Note who led last in a partition that nobody can lead: after a loss of everything it has the most records."""
        before = self._before
        leader = before.leader if record.leader == NO_LEADER_CHANGE else record.leader
        wanted = self.last_known_elr
        if not self._has_elr or leader != NO_LEADER:
            wanted = ()
        elif before.leader != NO_LEADER:
            wanted = (before.leader,)
        if wanted != before.last_known_elr:
            record.last_known_elr = list(wanted)

    def _assign(self, record: PartitionChangeRecord) -> None:
        before = self._before
        directories = tuple(
            self.directories[broker_id] if broker_id in self.directories else self._default_directory(broker_id)
            for broker_id in self.replicas
        )
        if directories != before.directories:
            record.directories = list(directories)
        if self.replicas != before.replicas:
            record.replicas = list(self.replicas)
        if self.removing != before.removing_replicas:
            record.removing_replicas = list(self.removing)
        if self.adding != before.adding_replicas:
            record.adding_replicas = list(self.adding)


def _is_empty(record: PartitionChangeRecord) -> bool:
    return (
        record.leader == NO_LEADER_CHANGE
        and record.leader_recovery_state == LeaderRecovery.NO_CHANGE
        and record.isr is None
        and record.replicas is None
        and record.directories is None
        and record.adding_replicas is None
        and record.removing_replicas is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
    )
