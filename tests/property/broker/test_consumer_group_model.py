"""The consumer protocol's coordinator (KIP-848), driven at random: answers get lost, members die, it restarts.

Requests come late as well: with an epoch that is over, or in the name of a member that is gone.
"""

from __future__ import annotations

from hailbus_broker.coordinators.group.consumer import ConsumerMember
from hailbus_broker.protocol.errors import ErrorCode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.test_consumer_groups import GROUP, RIDES, Coordinator, Member, image_with

PARTITIONS = 5


class World:
    """A group of up to three processes that read one topic, and what each of them believes to own."""

    def __init__(self, assignor: str) -> None:
        self.coordinator = Coordinator(image_with(rides=PARTITIONS))
        self.assignor = assignor
        self.name_count = 0
        self.members = [self.new_member() for _ in range(3)]
        self.group_epoch = 0
        self.memberships: list[tuple[str, int]] = []  # each member with each epoch it was given, the newest last
        self.lost_in_a_row: dict[str, int] = {}
        self.committed: int | None = None
        self.next_offset = 0

    def new_member(self) -> Member:
        self.name_count += 1
        return Member(self.coordinator, f"member-{self.name_count}", server_assignor=self.assignor)

    def step(self, name: str, number: int) -> None:
        member = self.members[number]
        match name:
            case "beat":
                self.beat(number)
            case "beat, and the answer is lost":
                epoch, owned, told = member.epoch, member.owned, member.told
                answer = member.beat()
                self.note(member.name, answer.member_epoch)
                member.epoch, member.owned, member.told = epoch, owned, told
                member.must_say_all = True
                self.lost_in_a_row[member.name] = self.lost_in_a_row.get(member.name, 0) + 1
                if answer.error_code:
                    self.members[number] = self.new_member()
            case "commit" if member.epoch > 0:
                self.commit(member)
            case "late requests":
                for name_then, epoch_then in self.memberships:
                    self.come_late(name_then, epoch_then)
            case "leave" if member.epoch > 0:
                member.beat(member_epoch=-1, topic_partitions=[])
                self.members[number] = self.new_member()
            case "die":
                self.members[number] = self.new_member()
            case "wait":
                self.coordinator.advance(20_000)
            case "restart":
                self.coordinator.restart()
        self.check()

    def beat(self, number: int) -> None:
        member = self.members[number]
        is_known = self.known(member.name) is not None
        answer = member.beat()
        if is_known and self.lost_in_a_row.pop(member.name, 0) <= 1:
            assert answer.error_code == 0, "a single answer that was lost is no reason to fence"
        if answer.error_code:
            # Fenced: what it owned is given up, and it joins again under a new name, as a process that restarts does.
            assert answer.error_code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}, answer
            self.members[number] = self.new_member()
        self.note(member.name, answer.member_epoch)

    def note(self, name: str, epoch: int) -> None:
        """A member was given an epoch, whether it learns of it or not."""
        if epoch > 0 and (name, epoch) not in self.memberships:
            self.memberships.append((name, epoch))

    def known(self, name: str) -> ConsumerMember | None:
        """A member as the coordinator has it."""
        group = self.coordinator.shard.consumer_groups.get(GROUP)
        return None if group is None else group.members.get(name)

    def offsets_code(self, name: str, epoch: int) -> ErrorCode:
        """What a member's commit and fetch of offsets are answered with."""
        known = self.known(name)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if known.member_epoch == epoch else ErrorCode.STALE_MEMBER_EPOCH

    def commit(self, member: Member) -> None:
        """A member commits, with the epoch that it believes to have."""
        self.next_offset += 1
        code = self.coordinator.commit(self.next_offset, member.name, member.epoch)
        assert code == self.offsets_code(member.name, member.epoch)
        assert code == self.coordinator.fetch(member.name, member.epoch)
        if code == ErrorCode.NONE:
            self.committed = self.next_offset

    def come_late(self, name: str, epoch: int) -> None:
        """Requests of a membership that is over are refused, each of them, and change nothing."""
        code = self.offsets_code(name, epoch)
        if code == ErrorCode.NONE:
            return  # not over
        coordinator = self.coordinator
        writes = len(coordinator.records)
        assert coordinator.commit(-7, name, epoch) == code, "a late commit"
        assert coordinator.fetch(name, epoch) == code, "a late fetch of offsets"
        in_transaction = ErrorCode.ILLEGAL_GENERATION if code == ErrorCode.STALE_MEMBER_EPOCH else code
        assert coordinator.commit_in_transaction(name, epoch) == in_transaction, "a late commit in a transaction"
        late = Member(coordinator, name)
        late.epoch = epoch
        known = self.known(name)
        # With the epoch before the present one it may be heard: if it says what it has, and has no more than that.
        is_last = known is not None and epoch == known.previous_member_epoch
        answer = late.beat(topic_partitions=None if is_last else [])
        fenced = ErrorCode.FENCED_MEMBER_EPOCH if code == ErrorCode.STALE_MEMBER_EPOCH else code
        assert answer.error_code == fenced, "a late heartbeat"
        assert len(coordinator.records) == writes

    def check(self) -> None:
        assert self.coordinator.committed() == self.committed, "a committed offset is another"
        group = self.coordinator.shard.consumer_groups.get(GROUP)
        if group is None:
            return
        assert group.group_epoch >= self.group_epoch, "the group's epoch fell"
        self.group_epoch = group.group_epoch
        owners: dict[int, str] = {}
        for member in self.members:
            if member.name in group.members:  # who was thrown out learns of it with the next beat
                for partition in member.owned.get(RIDES, ()):
                    owner = owners.setdefault(partition, member.name)
                    assert owner == member.name, f"partition {partition} is owned by {owner} and {member.name}"

    def heal(self) -> None:
        """All beat: they must come to share all partitions evenly, in one epoch."""
        for _ in range(30):
            for number in range(len(self.members)):
                self.beat(number)
                self.check()
            self.coordinator.advance(5_000)
            sizes = [len(member.owned.get(RIDES, ())) for member in self.members]
            epochs = {member.epoch for member in self.members}
            if sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1 and epochs == {self.group_epoch}:
                return
        raise AssertionError([(member.name, member.epoch, member.owned) for member in self.members])


STEPS = [
    *["beat"] * 4,
    *["beat, and the answer is lost"] * 2,
    "commit",
    "late requests",
    "leave",
    "die",
    "wait",
    "restart",
]


@settings(max_examples=200, deadline=None)
@given(
    script=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), max_size=60),
    assignor=st.sampled_from(["uniform", "range"]),
)
def test_no_partition_has_two_owners_and_the_group_settles(script: list[tuple[str, int]], assignor: str) -> None:
    world = World(assignor)
    for name, number in script:
        world.step(name, number)
    world.heal()
