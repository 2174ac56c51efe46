"""Groups and offsets that go: because they were deleted, or because nobody has needed them for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicState
from hailbus_broker.coordinators.group.classic_records import removal_record
from hailbus_broker.coordinators.group.consumer_records import group_removal_records
from hailbus_broker.coordinators.outcome import CoordinatorRecord, Outcome
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.consumer_protocol_subscription import ConsumerProtocolSubscription
from hailbus_broker.protocol.definitions.offset_commit_key import OffsetCommitKey
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hailbus_broker.coordinators.group.offsets import CommittedOffsets
    from hailbus_broker.coordinators.group.state import GroupState

FORGOTTEN_AT_ONCE: Final = 200
"""So many offsets of a deleted topic are removed by one decision."""

GROUPS_AT_ONCE: Final = 200
"""So many groups are searched for a deleted topic before other work has its turn."""


class GroupExpiry:
    """Decides which groups and offsets are removed."""

    def __init__(self, state: GroupState, offsets: CommittedOffsets) -> None:
        self._state: Final = state
        self._offsets: Final = offsets

    def delete_group(self, group_id: str) -> Outcome:
        """Forget a group and its offsets.

        Raises:
            ApiError: It has members, or there is no such group.
        """
        group = self._state.groups.get(group_id)
        consumer_group = self._state.consumer_groups.get(group_id)
        if not self.knows(group_id):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if (group is not None and group.state is not ClassicState.EMPTY) or (
            consumer_group is not None and consumer_group.members
        ):
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members.")
        out = Outcome()
        out.records += [
            CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
            for topic, partition in sorted(self._offsets.by_group.get(group_id, {}))
        ]
        if consumer_group is not None:
            out.records += group_removal_records(consumer_group)
        else:
            out.records.append(removal_record(group_id))
        return out

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> Outcome:
        """Forget some offsets of a group."""
        out = Outcome()
        known = self._offsets.by_group.get(group_id, {})
        out.records = [
            CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
            for topic, partition in partitions
            if (topic, partition) in known
        ]
        return out

    def knows(self, group_id: str) -> bool:
        """Whether there is such a group, with members or only with offsets."""
        return (
            group_id in self._state.groups
            or group_id in self._offsets.by_group
            or group_id in self._state.consumer_groups
        )

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics that members of a group want; None if that cannot be known because they do not consume."""
        consumer_group = self._state.consumer_groups.get(group_id)
        if consumer_group is not None:
            return frozenset().union(
                *(
                    member.subscribed_topics | consumer_group.regex_topics.get(member.subscribed_regex, frozenset())
                    for member in consumer_group.members.values()
                )
            )
        group = self._state.groups.get(group_id)
        if group is None or not group.members:
            return frozenset()
        if group.protocol_type != "consumer":
            return None
        topics: set[str] = set()
        for member in group.members.values():
            for _, metadata in member.protocols.entries:
                topics.update(subscription_topics(metadata))
        return frozenset(topics)

    def group_ids(self) -> list[str]:
        """All groups that have members, offsets or a record, by name."""
        return sorted({*self._offsets.by_group, *self._state.groups, *self._state.consumer_groups})

    def expire_offsets(self, *, wall_ms: int) -> Outcome:
        """Remove what `expire_group` removes, of all groups."""
        out = Outcome()
        for group_id in self.group_ids():
            expired = self.expire_group(group_id, wall_ms=wall_ms)
            out.records += expired.records
            out.log_events += expired.log_events
        return out

    def expire_group(self, group_id: str, *, wall_ms: int) -> Outcome:
        """Remove offsets not needed for `offsets.retention.minutes`, and the group if it has none left (KIP-211).

        A group without members and offsets goes at once, unless an open transaction may still commit offsets for it.

        Offsets of a group with members stay while it is subscribed to their topic; otherwise they count from the
        moment at which the group became empty, or from their commit, whichever is later.
        """
        out = Outcome()
        group = self._state.groups.get(group_id)
        consumer_group = self._state.consumer_groups.get(group_id)
        offsets = self._offsets.by_group.get(group_id, {})
        pending = self._offsets.pending_of(group_id)
        has_members = any(other is not None and other.members for other in (group, consumer_group))
        expired: list[tuple[str, int]] = []
        if offsets:
            subscribed = self.subscribed_topics(group_id)
            if subscribed is None:
                return out
            limit_ms = wall_ms - self._state.config.offsets_retention_ms
            empty_since_ms = group.state_since_ms if group is not None and not has_members else 0
            expired = [
                place
                for place, committed in sorted(offsets.items())
                if place[0] not in subscribed
                and max(committed.commit_timestamp_ms, empty_since_ms) <= limit_ms
                and place not in pending
            ]
            out.records += [
                CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
                for topic, partition in expired
            ]
            if expired:
                out.log_events.append(("offsets_expired", {"group": group_id, "count": len(expired)}))
        if has_members or pending or len(expired) < len(offsets):
            return out
        if consumer_group is not None:
            out.records += group_removal_records(consumer_group)
        elif group is not None and (offsets or (group.state is ClassicState.EMPTY and not group.pending)):
            out.records.append(removal_record(group_id))
        return out

    def forget_topic(self, topic: str) -> Iterator[Outcome]:
        """A topic was deleted: its offsets go, or a topic of the same name would inherit them.

        Yields:
            One outcome after another, to be carried out before the next; an empty one between many groups.
        """
        for number, group_id in enumerate(sorted(self._offsets.by_group), 1):
            places = sorted(place for place in self._offsets.by_group.get(group_id, ()) if place[0] == topic)
            for start in range(0, len(places), FORGOTTEN_AT_ONCE):
                out = Outcome()
                out.records += [
                    CoordinatorRecord(OffsetCommitKey(group=group_id, topic=name, partition=partition), None)
                    for name, partition in places[start : start + FORGOTTEN_AT_ONCE]
                ]
                yield out
            if number % GROUPS_AT_ONCE == 0:
                yield Outcome()


def subscription_topics(metadata: bytes) -> list[str]:
    """The topics in a consumer's subscription; none if it is not one."""
    if len(metadata) < 2:
        return []
    version = min(int.from_bytes(metadata[:2], "big", signed=True), 3)
    try:
        return codec.decode(ConsumerProtocolSubscription, metadata, version, position=2).topics
    except ProtocolError:
        return []
