"""The classic group coordinator, driven at random by clients that die and come late; it restarts, too.

Requests come late as well: from a generation that is over, or in the name of a member that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ErrorCode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.test_classic_groups import GROUP, Coordinator

PARTITIONS = 4


@dataclass
class Client:
    """A member as client libraries implement it. What it waits for is a token; a client that died waits for nothing."""

    number: int
    member_id: str = ""
    generation: int = -1
    life: int = 0
    """Of the coordinator, when it told the generation."""
    leader: str = ""
    members: list[str] = field(default_factory=list)
    share: bytes | None = None
    must_join: bool = True
    waits_for: str | None = None
    loses_answer: bool = False

    def forget(self) -> None:
        """A new process: it knows nothing."""
        self.member_id, self.generation, self.share, self.waits_for = "", -1, None, None
        self.leader, self.must_join = "", True

    @property
    def is_leader(self) -> bool:
        return self.member_id != "" and self.leader == self.member_id


class RestartedCoordinator(Coordinator):
    """One whose member ids differ in each life."""

    def __init__(self) -> None:
        self.life = 0
        super().__init__()

    def make(self, delay_ms: int) -> GroupShard:
        self.life += 1
        shard = super().make(delay_ms)
        shard._state.rng.seed(self.life)
        return shard


class World:
    """Clients, the coordinator, and what was promised."""

    def __init__(self) -> None:
        self.coordinator = RestartedCoordinator()
        self.clients = [Client(number) for number in range(3)]
        self.token_count = 0
        # A generation is durable once its leader has assigned shares; else it is counted again after a restart.
        self.leaders: dict[tuple[int, int], str] = {}
        self.memberships: list[tuple[str, int]] = []  # each member id with each generation it was told, the newest last
        self.assigned: dict[tuple[int, str], tuple[int, dict[str, bytes]]] = {}
        self.committed: int | None = None
        self.next_offset = 0
        self.highest_generation = 0

    def token(self, kind: str) -> str:
        self.token_count += 1
        return f"{kind} {self.token_count}"

    def take_answers(self) -> None:
        """Let each client that waits see its answer, if there is one."""
        for client in self.clients:
            answer = self.coordinator.answers.pop(client.waits_for, None)
            if answer is not None and client.loses_answer:
                # The connection broke: the member is in a generation of which it knows nothing, and asks again later.
                client.waits_for, client.loses_answer = None, False
                continue
            match answer:
                case JoinGroupResponse():
                    client.waits_for = None
                    self.take_join(client, answer)
                case SyncGroupResponse():
                    client.waits_for = None
                    self.take_sync(client, answer)

    def take_join(self, client: Client, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            client.forget()
            return
        if answer.error_code:
            return
        if client.share is not None or client.life == self.coordinator.life:
            assert answer.generation_id >= client.generation, "a member's generation fell"
        client.life = self.coordinator.life
        client.member_id, client.generation, client.share = answer.member_id, answer.generation_id, None
        if (answer.member_id, answer.generation_id) not in self.memberships:
            self.memberships.append((answer.member_id, answer.generation_id))
        client.must_join = False
        client.leader = answer.leader
        client.members = [member.member_id for member in answer.members]
        assert self.leaders.setdefault((self.coordinator.life, answer.generation_id), answer.leader) == answer.leader
        if client.is_leader:
            assert client.member_id in client.members
        self.highest_generation = max(self.highest_generation, answer.generation_id)

    def take_sync(self, client: Client, answer: SyncGroupResponse) -> None:
        if answer.error_code:
            self.take_error(client, answer.error_code)
        else:
            share = bytes(answer.assignment)
            expected = self.assigned[client.generation, client.leader][1].get(client.member_id, b"")
            assert share == expected, "a share that the leader of this generation did not give"
            client.share = share

    def take_error(self, client: Client, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            client.forget()
        elif code in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}:
            client.must_join = True

    def step(self, name: str, client: Client) -> None:
        """One thing that a client does, or that happens to it."""
        coordinator = self.coordinator
        match name:
            case "join" if client.waits_for is None:
                client.waits_for = self.token("join")
                coordinator.join(client.waits_for, client.member_id)
            case "sync" if client.waits_for is None and client.generation >= 0:
                shares = None
                if client.is_leader:
                    shares = {
                        member: bytes(range(index, PARTITIONS, len(client.members)))
                        for index, member in enumerate(sorted(client.members))
                    }
                    # A leader that repeats itself says the same again, unless the generation is counted again.
                    life, said = self.assigned.get((client.generation, client.leader), (-1, shares))
                    shares = said if life == client.life else shares
                    self.assigned[client.generation, client.leader] = client.life, shares
                client.waits_for = self.token("sync")
                coordinator.sync(client.waits_for, client.member_id, client.generation, shares)
            case "beat" if client.generation >= 0:
                self.take_error(client, coordinator.beat(client.member_id, client.generation))
            case "commit" if client.share is not None:
                self.next_offset += 1
                code = coordinator.commit(self.next_offset, generation=client.generation, member_id=client.member_id)
                if code == 0:
                    assert client.generation == coordinator.group().generation, "a stale generation committed"
                    self.committed = self.next_offset
            case "late requests":
                for member_id, generation in self.memberships:
                    self.come_late(member_id, generation)
            case "leave" if client.member_id:
                coordinator.leave(client.member_id)
                client.forget()
            case "behave":
                self.behave(client)
            case "lose an answer":
                client.loses_answer = True
            case "die":
                client.forget()
            case "wait":
                coordinator.advance(3_500)
            case "wait long":
                coordinator.advance(61_000)
            case "restart":
                self.restart()
        self.take_answers()
        self.check()

    def come_late(self, member_id: str, generation: int) -> None:
        """Requests of a membership that is over are refused, each of them, and change nothing."""
        coordinator = self.coordinator
        group = coordinator.shard.groups.get(GROUP)
        members = {} if group is None else group.members
        if group is not None and member_id in members and generation == group.generation:
            return  # not over
        code = ErrorCode.UNKNOWN_MEMBER_ID if member_id not in members else ErrorCode.ILLEGAL_GENERATION
        writes, answers = len(coordinator.records), set(coordinator.answers)
        assert coordinator.beat(member_id, generation) == code, "a late heartbeat"
        token = self.token("late sync")
        coordinator.sync(token, member_id, generation, {member_id: bytes(range(PARTITIONS))})
        assert coordinator.answers.pop(token).error_code == code, "a late sync"  # type: ignore[attr-defined]  # it is a SyncGroupResponse
        unheard = ErrorCode.ILLEGAL_GENERATION if group is None else code
        assert coordinator.commit(-7, generation=generation, member_id=member_id) == unheard, "a late commit"
        in_transaction = coordinator.commit_in_transaction(-7, generation=generation, member_id=member_id)
        assert in_transaction == unheard, "a late commit in a transaction"
        assert len(coordinator.records) == writes
        assert set(coordinator.answers) == answers, "somebody was answered because of a late request"

    def restart(self) -> None:
        """The broker starts again: who waited for an answer gets none, and asks again."""
        self.coordinator.restart()
        self.coordinator.answers.clear()
        for client in self.clients:
            client.waits_for = None

    def check(self) -> None:
        found = self.coordinator.shard.committed(GROUP, "t", 0)
        assert (None if found is None else found.offset) == self.committed, "a committed offset is another"
        # One owner per partition and generation, whoever believes to be in it.
        owners: dict[tuple[int, str, int], str] = {}
        for client in self.clients:
            for partition in client.share or b"":
                owner = owners.setdefault((client.generation, client.leader, partition), client.member_id)
                assert owner == client.member_id, f"partition {partition} has two owners"

    def behave(self, client: Client) -> None:
        """What a client library does next."""
        self.step("beat", client)
        if client.must_join:
            self.step("join", client)
        elif client.share is None:
            self.step("sync", client)

    def heal(self) -> None:
        """From here on everyone behaves: all must come to share the partitions in one generation."""
        for _ in range(40):
            for client in self.clients:
                self.behave(client)
            self.coordinator.advance(1_000)
            self.take_answers()
            shares = sorted(partition for client in self.clients for partition in client.share or b"")
            if shares == list(range(PARTITIONS)) and len({client.generation for client in self.clients}) == 1:
                return
        raise AssertionError(f"no common generation: {self.clients}")


STEPS = [
    *["behave"] * 6,
    *["commit"] * 3,
    "join",
    "sync",
    "beat",
    "lose an answer",
    "late requests",
    "lose an answer",
    "leave",
    "die",
    "wait",
    "wait long",
    "restart",
]


@settings(max_examples=300, deadline=None)
@given(script=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), max_size=60))
def test_one_leader_one_owner_and_no_commit_is_lost(script: list[tuple[str, int]]) -> None:
    world = World()
    for name, number in script:
        world.step(name, world.clients[number])
    # Who was forgotten by its client holds up a rebalance until its time is over.
    world.step("wait long", world.clients[0])
    world.heal()
