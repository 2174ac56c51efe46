"""One decision about groups: it works on copies, which are installed once its records are appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailbus_broker.coordinators.outcome import Outcome

if TYPE_CHECKING:
    from hailbus_broker.coordinators.group.classic import ClassicGroup, Member
    from hailbus_broker.coordinators.group.consumer import ConsumerGroup
    from hailbus_broker.coordinators.group.rebalances import Rebalance, RebalanceHistory
    from hailbus_broker.coordinators.group.state import GroupState, MemberKey
    from hailbus_broker.coordinators.outcome import Token


class GroupDecision(Outcome):
    """What a request or a timer leads to. Must be carried out before the next decision is made.

    Args:
        state: What is decided on. The decision changes it in `install` only.
        now_ms: The time that sessions and deadlines go by; it never goes back.
        wall_ms: Milliseconds since 1970 UTC, for what is recorded.
        request: As in `Outcome`.
    """

    # Most decisions are heartbeats, which change next to nothing: what is not needed is not made.
    _classic: dict[str, ClassicGroup] | None = None
    _consumer: tuple[ConsumerGroup, int] | None = None
    _sessions: dict[MemberKey, int] | None = None
    _timeouts: dict[MemberKey, int] | None = None
    _revocation: tuple[MemberKey, int | None] | None = None
    _checks: list[tuple[MemberKey, int]] | None = None
    _rebalances: list[tuple[RebalanceHistory, Rebalance]] | None = None

    def __init__(self, state: GroupState, *, now_ms: int, wall_ms: int, request: Token[Any] | None = None) -> None:
        self.state = state
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.request = request
        self.records = []
        self.replies = []
        self.log_events = []

    def copy_of(self, group: ClassicGroup) -> ClassicGroup:
        """Return the copy of a group that this decision changes."""
        if self._classic is not None and group.group_id in self._classic:
            return self._classic[group.group_id]
        made = group.copy()
        self.add_classic(made)
        return made

    def add_classic(self, group: ClassicGroup) -> None:
        """Add a group of the classic protocol, or a changed copy of one."""
        if self._classic is None:
            self._classic = {}
        self._classic[group.group_id] = group

    def add_consumer(self, group: ConsumerGroup) -> None:
        """Add a group of the consumer protocol, or note that a known one follows the present metadata."""
        self._consumer = group, self.state.image.version

    def touch(self, group: ClassicGroup, member: Member, *, timeout_ms: int | None = None) -> None:
        """Let a classic member's session begin again."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        key = (group.group_id, member.member_id)
        if self._timeouts is None:
            self._timeouts = {}
        self._timeouts[key] = timeout_ms
        self.extend_session(key, self.now_ms + timeout_ms)

    def extend_session(self, key: MemberKey, deadline_ms: int) -> None:
        """Let a member's session last until a time."""
        if self._sessions is None:
            self._sessions = {}
        self._sessions[key] = deadline_ms

    def set_revocation(self, key: MemberKey, deadline_ms: int | None) -> None:
        """Give a member until a time to give its partitions up; None: it has nothing to give up."""
        self._revocation = key, deadline_ms

    def check_group_at(self, group: ClassicGroup, due_ms: int) -> None:
        """Have the deadlines of a group itself checked at a time."""
        self.check_at((group.group_id, ""), due_ms)

    def check_at(self, key: MemberKey, due_ms: int) -> None:
        """Have the deadlines of a member checked at a time."""
        if self._checks is None:
            self._checks = []
        self._checks.append((key, due_ms))

    def note_rebalance(self, history: RebalanceHistory, rebalance: Rebalance, *, group_id: str) -> None:
        """Remember a rebalance, count its cause, and report it in the log."""
        if self._rebalances is None:
            self._rebalances = []
        self._rebalances.append((history, rebalance))
        data = rebalance.as_json()
        del data["at_ms"]
        self.log_events.append(("rebalance_started", {"group": group_id, **data}))

    def install(self) -> None:
        """See `Outcome`."""
        state = self.state
        if self._classic is not None:
            state.groups.update(self._classic)
        if self._consumer is not None:
            consumer_group, image_version = self._consumer
            consumer_group.image_version = image_version
            state.consumer_groups[consumer_group.group_id] = consumer_group
        if self._sessions is not None:
            for key, deadline_ms in self._sessions.items():
                state.touch(key, deadline_ms)
        if self._revocation is not None:
            key, revocation_ms = self._revocation
            if revocation_ms is None:
                state.revocation_deadlines.pop(key, None)
            else:
                state.revocation_deadlines[key] = revocation_ms
                state.timers.arm(key, revocation_ms)
        for key, due_ms in self._checks or ():
            state.timers.arm(key, due_ms)
        for history, rebalance in self._rebalances or ():
            history.entries.append(rebalance)
            state.rebalance_counts[rebalance.cause] += 1

    def replies_parked(self) -> None:
        """See `Outcome`; a member that waits for our disk is not silent."""
        self.state.parked_replies.update(list(self._timeouts or ()))

    def replies_released(self, now_ms: int) -> None:
        """See `Outcome`; the sessions begin again, since no member could have sent a heartbeat before."""
        state = self.state
        for key, timeout_ms in (self._timeouts or {}).items():
            state.parked_replies[key] -= 1
            if not state.parked_replies[key]:
                del state.parked_replies[key]
            if key in state.session_deadlines:
                state.touch(key, max(state.session_deadlines[key], now_ms + timeout_ms))
