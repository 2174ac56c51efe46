"""The consumer protocol's coordinator (KIP-848), driven at random: answers get lost, members die, it restarts."""

from __future__ import annotations

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
                member.epoch, member.owned, member.told = epoch, owned, told
                if answer.error_code:
                    self.members[number] = self.new_member()
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
        answer = member.beat()
        if answer.error_code:
            # Fenced: what it owned is given up, and it joins again under a new name, as a process that restarts does.
            assert answer.error_code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}, answer
            self.members[number] = self.new_member()

    def check(self) -> None:
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


STEPS = ["beat", "beat", "beat", "beat, and the answer is lost", "leave", "die", "wait", "restart"]


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
