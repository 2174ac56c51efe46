"""A quorum of replicas in virtual time: messages that are late or lost, crashes that forget what was not synced."""

from __future__ import annotations

import heapq
import pickle
import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.metadata.snapshot import SnapshotId
from hailbus_broker.cluster.raft.effects import (
    Committed,
    Effect,
    Follows,
    InstallSnapshot,
    Leads,
    Persist,
    Reply,
    Send,
)
from hailbus_broker.cluster.raft.election_state import ElectionState
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    FetchResponse,
    FetchSnapshotResponse,
    LogPosition,
    RemoveVoterRequest,
    Request,
    Response,
    VoterChangeResponse,
    VoteResponse,
)
from hailbus_broker.cluster.raft.quorum import Quorum
from hailbus_broker.cluster.raft.raft import Raft
from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import CorruptBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLUSTER_ID = "cluster"
CHUNK = 4
REQUEST_TIMEOUT_MS = 1_000

Entry = tuple[int, Any]
"""An epoch, and what was written: a string for the leader's own record, a number for a client's, voters, a level."""


class Level(int):
    """A record with a level of `kraft.version`."""


def changes_in(entries: Sequence[Entry], offset: int) -> list[tuple[int, VoterSet | int]]:
    """What entries from an offset on say about the quorum."""
    return [(offset + index, what) for index, (_, what) in enumerate(entries) if isinstance(what, (VoterSet, Level))]


class ModelLog:
    """A log in memory; `disk` is what a crash leaves."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.start_offset = disk.start_offset
        self.latest_snapshot = disk.snapshot
        self.entries: list[Entry] = list(disk.entries)
        self.synced_end_offset = self.start_offset + len(self.entries)

    @property
    def end(self) -> LogPosition:
        if self.entries:
            return LogPosition(self.entries[-1][0], self.start_offset + len(self.entries))
        return LogPosition(self.latest_snapshot.leader_epoch if self.latest_snapshot else 0, self.start_offset)

    def end_of_epoch(self, epoch: int) -> LogPosition | None:
        for index in range(len(self.entries) - 1, -1, -1):
            if self.entries[index][0] <= epoch:
                return LogPosition(self.entries[index][0], self.start_offset + index + 1)
        snapshot = self.latest_snapshot
        if snapshot is not None and snapshot.end_offset == self.start_offset and snapshot.leader_epoch <= epoch:
            return LogPosition(snapshot.leader_epoch, snapshot.end_offset)
        return None

    def append(self, epoch: int, what: Any) -> int:
        self.entries.append((epoch, what))
        return self.end.end_offset - 1

    def append_start_of_epoch(self, epoch: int, *, leader_id: int, voters: VoterSet, granting: Sequence[int]) -> None:
        assert leader_id in granting
        assert len(set(granting) & set(voters.ids)) >= voters.majority
        self.append(epoch, f"leader {leader_id}")

    def append_voters(self, epoch: int, voters: VoterSet, *, level: int | None = None) -> int:
        if level is not None:
            self.append(epoch, Level(level))
        return self.append(epoch, voters)

    def read(self, offset: int, count: int) -> bytes:
        index = offset - self.start_offset
        assert index >= 0, (offset, self.start_offset)
        return pickle.dumps((offset, self.entries[index : index + count]))

    def append_fetched(self, records: bytes | memoryview) -> list[tuple[int, VoterSet | int]]:
        offset, entries = pickle.loads(records)  # noqa: S301 - its own bytes
        if offset != self.end.end_offset:
            raise CorruptBatchError(f"records from {offset} on do not follow {self.end.end_offset}")
        self.entries += entries
        return changes_in(entries, offset)

    def truncate_to(self, end_offset: int) -> None:
        del self.entries[end_offset - self.start_offset :]
        self.synced_end_offset = min(self.synced_end_offset, end_offset)


@dataclass
class Disk:
    """What is on a node's disk. A snapshot's data is all that was written before its end."""

    state: ElectionState = field(default_factory=ElectionState)
    entries: list[Entry] = field(default_factory=list)
    start_offset: int = 0
    snapshot: SnapshotId | None = None
    prefix: list[Entry] = field(default_factory=list)


class Node:
    """One replica with its driver."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.key = ReplicaKey(node_id, bytes([node_id]) * 16)
        self.endpoints: tuple[Endpoint, ...] = (Endpoint("CONTROLLER", "node", node_id),)
        self.is_formatted = False
        self.disk = Disk()
        self.life = 0
        self.raft: Raft | None = None
        self.log: ModelLog

    def start(self) -> None:
        if self.raft is not None:
            return
        self.life += 1
        self.log = ModelLog(self.disk)
        self.effects: deque[Effect] = deque()
        self.is_busy = False
        self.is_syncing = False
        self.tick_ms: int | None = None
        self.tokens: dict[int, Callable[[Response], None]] = {}
        history = VoterHistory(VoterSet([]) if self.world.is_dynamic else self.world.voters)
        if self.is_formatted:
            history.learn([(-1, 1), (-1, self.world.voters)])
        history.learn(changes_in(self.disk.prefix, 0))
        history.learn(changes_in(self.disk.entries, self.disk.start_offset))
        self.raft = Raft(
            Quorum(
                replica=self.key,
                cluster_id=CLUSTER_ID,
                log=self.log,
                state=self.disk.state,
                history=history,
                settings=self.world.settings,
                chance=random.Random(self.world.chance.random()),
                endpoints=self.endpoints,
                high_watermark=self.log.start_offset,
                now_ms=self.world.now_ms,
            ),
            bootstrap=[node.endpoints[0] for node in self.world.nodes.values() if node is not self],
        )
        self.applied = self.log.start_offset
        self.carry_out()

    def crash(self) -> None:
        self.life += 1
        self.raft = None

    def lose_directory(self) -> None:
        """Come back with an empty disk, as another replica."""
        self.key = ReplicaKey(self.node_id, random.Random(self.world.chance.random()).randbytes(16))
        self.disk, self.is_formatted = Disk(), False

    def carry_out(self) -> None:
        """Do the effects in order, sync the log, and wait for the next deadline."""
        raft = self.raft
        assert raft is not None
        self.effects += raft.take_effects()
        while self.effects and not self.is_busy and self.raft is raft:
            effect = self.effects.popleft()
            if isinstance(effect, Persist):
                self.is_busy = True
                self.later(self.world.disk_ms(), self._persisted, effect.state)
            else:
                self._do(effect)
        if self.raft is not raft:
            return
        if not self.is_syncing and (
            self.log.synced_end_offset < self.log.end.end_offset or self.disk.entries != self.log.entries
        ):
            self.is_syncing = True
            self.later(self.world.disk_ms(), self._synced, list(self.log.entries), self.log.start_offset)
        deadline_ms = raft.deadline_ms()
        if deadline_ms is not None and (self.tick_ms is None or deadline_ms < self.tick_ms):
            self.tick_ms = max(deadline_ms, self.world.now_ms + 1)
            self.world.at(self.tick_ms, self._tick, self.life, self.tick_ms)

    def later(self, delay_ms: int, work: Callable[..., None], *arguments: Any) -> None:
        life = self.life

        def run() -> None:
            if self.life == life and self.raft is not None:
                work(*arguments)
                self.carry_out()

        self.world.at(self.world.now_ms + delay_ms, run)

    def _tick(self, life: int, tick_ms: int) -> None:
        if self.life == life and self.raft is not None and self.tick_ms == tick_ms:
            self.tick_ms = None
            self.raft.tick(self.world.now_ms)
            self.carry_out()

    def _persisted(self, state: ElectionState) -> None:
        self.world.check_state(self, state)
        self.disk.state = ElectionState.decode(state.encode(1, ()))
        assert self.disk.state == state
        self.is_busy = False

    def _synced(self, entries: list[Entry], start_offset: int) -> None:
        self.is_syncing = False
        if start_offset != self.log.start_offset:
            return  # the log was replaced meanwhile
        self.disk.entries = entries
        common = 0
        for mine, synced in zip(self.log.entries, entries, strict=False):
            if mine != synced:
                break
            common += 1
        self.log.synced_end_offset = start_offset + common
        assert self.raft is not None
        self.raft.synced(self.world.now_ms)

    def _do(self, effect: Effect) -> None:
        world, raft = self.world, self.raft
        assert raft is not None
        match effect:
            case Send():
                world.send(self, effect)
            case Reply():
                self._reply(effect)
            case Committed():
                world.check_committed(self, effect.high_watermark)
            case Leads():
                world.check_leader(self, effect)
            case InstallSnapshot():
                prefix = pickle.loads(effect.data)  # noqa: S301 - its own bytes
                assert len(prefix) == effect.snapshot.end_offset
                disk = self.disk
                disk.prefix, disk.snapshot, disk.start_offset, disk.entries = prefix, effect.snapshot, len(prefix), []
                self.log.__init__(disk)  # type: ignore[misc]  # the object stays, as others refer to it
                world.counts["snapshot installed"] += 1
                raft.snapshot_installed(effect.snapshot, changes_in(prefix, 0), world.now_ms)
                self.effects += raft.take_effects()
            case Follows():
                pass

    def _reply(self, effect: Reply) -> None:
        raft, response, world = self.raft, effect.response, self.world
        assert raft is not None
        assert isinstance(effect.token, int)
        answer = self.tokens.pop(effect.token, None)
        if answer is None:
            assert isinstance(response, VoterChangeResponse)
            world.changed(self, effect.token, response)
            return
        if (
            isinstance(response, VoteResponse)
            and response.is_granted
            and world.chance.random() < world.crash_after_vote
        ):
            # What it said must bind it after a crash, too.
            answer(response)
            world.crash(self, noticed=False)
            world.at(world.now_ms + 2, self.start)
            return
        if isinstance(response, FetchResponse):
            world.check_told(response)
        if isinstance(response, FetchResponse) and response.records_from is not None:
            if raft.quorum.epoch != response.leadership.leader_epoch or not isinstance(raft.quorum.role, Leader):
                return
            if response.records_from < self.log.start_offset:
                return
            if response.records_from < self.log.end.end_offset:
                response = replace(response, records=self.log.read(response.records_from, world.records_per_fetch))
        if isinstance(response, FetchSnapshotResponse) and not response.error and not response.request_error:
            data = pickle.dumps(self.disk.prefix)
            part = data[response.position : response.position + 50 * CHUNK]
            response = replace(response, data=part, size=len(data))
        answer(response)

    def snapshot(self) -> None:
        """Write a snapshot of what is committed, and forget the log before it."""
        raft, log = self.raft, self.log
        assert raft is not None
        end_offset = min(raft.quorum.high_watermark, self.applied)
        if end_offset <= log.start_offset or self.is_syncing or log.synced_end_offset < end_offset:
            return
        count = end_offset - log.start_offset
        disk = self.disk
        disk.prefix = disk.prefix + log.entries[:count]
        disk.snapshot = log.latest_snapshot = SnapshotId(end_offset, log.entries[count - 1][0])
        disk.start_offset = log.start_offset = end_offset
        disk.entries = disk.entries[count:]
        del log.entries[:count]
        raft.quorum.history.forget_before(end_offset)
        self.world.counts["snapshot taken"] += 1


class World:
    """The nodes, the network between them, time, and what must never happen."""

    def __init__(self, seed: int, *, voters: int, observers: int = 0, is_dynamic: bool = False) -> None:
        self.is_dynamic = is_dynamic
        self.chance = random.Random(seed)
        # With short timeouts there are many elections; without an order among the voters votes are split.
        is_fast = self.chance.random() < 0.6
        self.settings = RaftSettings(
            fetch_timeout_ms=200 if is_fast else 2_000,
            election_timeout_ms=100 if is_fast else 1_000,
            suspicion_stagger_ms=self.chance.choice((0, 10, 100)),
            voter_change_timeout_ms=3_000,
            auto_join=is_dynamic and self.chance.random() < 0.2,
        )
        self.records_per_fetch = self.chance.choice((1, 2, 7))
        self.now_ms = 1_000
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, voters + observers + 1)}
        self.voters = VoterSet(
            Voter(node.key, node.endpoints) for node in self.nodes.values() if node.node_id <= voters
        )
        for node in self.nodes.values():
            node.is_formatted = is_dynamic and node.node_id <= voters
        self.changes: dict[int, str] = {}
        self.committed_voters = self.voters
        self.cuts: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.crash_after_vote = 0.1
        self.slowness_ms = 5
        self.slow_disk_ms = 5
        self.committed: list[Entry] = []
        self.committed_in: list[int] = []
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[ReplicaKey, int], int] = {}
        self.acknowledged: dict[int, Entry] = {}
        self.waiting: list[tuple[int, int, int, Entry]] = []
        self._last_value = 0
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ time and network

    def at(self, time_ms: int, work: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_ms, self._count, work, arguments))

    def run_until(self, time_ms: int) -> None:
        while self._events and self._events[0][0] <= time_ms:
            self.now_ms, _, work, arguments = heapq.heappop(self._events)
            work(*arguments)
        self.now_ms = time_ms

    def disk_ms(self) -> int:
        return self.chance.randint(0, self.slow_disk_ms)

    def _arrives(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) not in self.cuts and self.chance.random() >= self.loss

    def send(self, sender: Node, effect: Send) -> None:
        receiver = self.nodes[effect.endpoint.port]
        life = sender.life

        def fail() -> None:
            if sender.life == life and sender.raft is not None:
                sender.raft.failed(effect.number, self.now_ms)
                sender.carry_out()

        def deliver(response: Response) -> None:
            if sender.life == life and sender.raft is not None:
                sender.raft.response(effect.number, response, self.now_ms)
                sender.carry_out()

        def answer(response: Response) -> None:
            if self._arrives(receiver.node_id, sender.node_id):
                self.at(self.now_ms + self.chance.randint(0, self.slowness_ms), deliver, response)

        # A failure after the response says nothing.
        self.at(self.now_ms + REQUEST_TIMEOUT_MS, fail)
        if self._arrives(sender.node_id, receiver.node_id):
            delay_ms = self.chance.randint(0, self.slowness_ms)
            self.at(self.now_ms + delay_ms, self._arrive, receiver, effect.request, answer, fail)

    def _arrive(
        self, receiver: Node, request: Request, answer: Callable[[Response], None], fail: Callable[[], None]
    ) -> None:
        if receiver.raft is None:
            self.at(self.now_ms + 1, fail)
            return
        self._count += 1
        receiver.tokens[self._count] = answer
        receiver.raft.request(request, self._count, self.now_ms)
        receiver.carry_out()

    # ------------------------------------------------------------------ deeds

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.raft is not None]

    def crash(self, node: Node, *, noticed: bool) -> None:
        node.crash()
        self.counts["crash"] += 1
        if noticed:
            for other in self.running:
                other.later(1, lambda raft=other.raft: raft.leader_refuses_connections(node.node_id, self.now_ms))

    def write(self) -> None:
        """A client writes to every node that thinks it leads."""
        for node in self.running:
            raft = node.raft
            assert raft is not None
            if isinstance(raft.quorum.role, Leader):
                self._last_value += 1
                offset = node.log.append(raft.quorum.epoch, self._last_value)
                self.waiting.append((node.node_id, raft.quorum.epoch, offset, (raft.quorum.epoch, self._last_value)))
                raft.appended(self.now_ms)
                node.carry_out()

    def change_voters(self, node: Node) -> None:
        """Ask every node that thinks it leads to add a node as a voter, or to remove it."""
        for leader in self.running:
            raft = leader.raft
            assert raft is not None
            if not isinstance(raft.quorum.role, Leader):
                continue
            known = raft.quorum.voters.get(node.node_id)
            request: Request
            if known is not None:
                request = RemoveVoterRequest(cluster_id=CLUSTER_ID, voter=known.key)
                what = "remove leader" if leader is node else "remove"
            else:
                request = AddVoterRequest(
                    cluster_id=CLUSTER_ID,
                    voter=node.key,
                    endpoints=node.endpoints,
                    timeout_ms=self.chance.choice((100, 3_000)),
                    ack_when_committed=self.chance.random() < 0.8,
                )
                what = "add" if request.ack_when_committed else "add without waiting"
            self._count += 1
            self.changes[self._count] = what
            raft.request(request, self._count, self.now_ms)
            leader.carry_out()

    def changed(self, node: Node, token: int, response: VoterChangeResponse) -> None:
        """A change of the voters was answered."""
        what = self.changes.pop(token)
        self.counts[f"{what}: {response.error.name}"] += 1
        if response.error is ErrorCode.NONE and what in {"add", "remove", "remove leader"}:
            assert node.raft is not None
            committed = [entry for _, entry in self.committed if isinstance(entry, VoterSet)]
            assert node.raft.quorum.voters in committed, f"{what} was answered before its commit"

    def lose_directory(self, node: Node) -> None:
        """Take the disk of a node away that no node takes for a voter."""
        voters = [self.committed_voters]
        voters += [other.raft.quorum.voters for other in self.running if other.raft is not None]
        for other in self.nodes.values():
            voters += [what for _, what in other.disk.entries if isinstance(what, VoterSet)]
        if not any(node.node_id in known.ids for known in voters):
            node.crash()
            node.lose_directory()
            self.counts["directory lost"] += 1
            node.start()

    def heal(self) -> None:
        self.cuts.clear()
        self.loss = self.crash_after_vote = 0.0
        self.slowness_ms = self.slow_disk_ms = 5
        for node in self.nodes.values():
            if node.raft is None:
                node.start()

    # ------------------------------------------------------------------ what must hold

    def check_state(self, node: Node, state: ElectionState) -> None:
        before = node.disk.state
        assert state.epoch >= before.epoch, (node.node_id, before, state)
        if state.voted is not None:
            first = self.votes.setdefault((node.key, state.epoch), state.voted.node_id)
            assert first == state.voted.node_id, f"node {node.node_id} voted twice in epoch {state.epoch}"

    def check_leader(self, node: Node, effect: Leads) -> None:
        self.counts["leader"] += 1
        first = self.leaders.setdefault(effect.epoch, node.node_id)
        assert first == node.node_id, f"epoch {effect.epoch} has the leaders {first} and {node.node_id}"
        mine = node.disk.prefix + node.log.entries
        before = [entry for entry, epoch in zip(self.committed, self.committed_in, strict=True) if epoch < effect.epoch]
        assert mine[: len(before)] == before, f"leader {node.node_id} of epoch {effect.epoch} lacks what is committed"

    def check_committed(self, node: Node, high_watermark: int) -> None:
        mine = node.disk.prefix[: node.log.start_offset] + node.log.entries
        assert len(mine) >= high_watermark, (node.node_id, len(mine), high_watermark)
        for offset in range(min(node.applied, len(self.committed)), high_watermark):
            if offset < len(self.committed):
                assert mine[offset] == self.committed[offset], f"offset {offset} is committed twice"
            else:
                self.committed.append(mine[offset])
                assert node.raft is not None
                self.committed_in.append(node.raft.quorum.epoch)
                voters = node.raft.quorum.voters
                copies = sum(
                    other.disk.start_offset + len(other.disk.entries) > offset
                    and (other.disk.prefix + other.disk.entries)[offset] == mine[offset]
                    for other in self.nodes.values()
                    if voters.has(other.key)
                )
                assert copies >= voters.majority, f"offset {offset} is committed and on {copies} disks of {voters}"
                if isinstance(mine[offset][1], VoterSet):
                    self.check_voters(mine[offset][1])
        self.check_history(node)
        assert high_watermark >= node.applied
        node.applied = high_watermark
        for node_id, epoch, offset, entry in list(self.waiting):
            if (
                node_id == node.node_id
                and node.raft is not None
                and node.raft.quorum.epoch == epoch
                and offset < high_watermark
            ):
                self.acknowledged[offset] = entry
                self.waiting.remove((node_id, epoch, offset, entry))

    def check_told(self, response: FetchResponse) -> None:
        """A leader tells no high watermark below one that a leader before it has told; -1 says nothing."""
        told, epoch = response.high_watermark, response.leadership.leader_epoch
        before = sum(committed_in < epoch for committed_in in self.committed_in)
        assert told == -1 or told >= before, (
            f"epoch {epoch} tells {told}, and {before} records were committed before it"
        )

    def check_history(self, node: Node) -> None:
        """A replica knows the voters that its own log names last."""
        assert node.raft is not None
        named = [what for _, what in node.disk.prefix[: node.log.start_offset] if isinstance(what, VoterSet)]
        named += [what for _, what in node.log.entries if isinstance(what, VoterSet)]
        if named:
            assert node.raft.quorum.voters == named[-1], f"node {node.node_id} has missed a change of the voters"

    def check_voters(self, voters: VoterSet) -> None:
        """One voter at a time, so that the majorities of two sets that follow each other overlap."""
        before, after = ({voter.key for voter in known} for known in (self.committed_voters, voters))
        assert len(before ^ after) <= 1, f"{before} and {after} differ by more than one voter"
        self.committed_voters = voters
        self.counts["voters committed"] += 1

    def check_end(self) -> None:
        """Everything works again, so a record is committed and reaches everybody; and none was lost on the way."""
        before, deadline_ms = len(self.committed), self.now_ms + 30_000
        while len(self.committed) == before or any(node.applied < len(self.committed) for node in self.nodes.values()):
            assert self.now_ms < deadline_ms, [(node.node_id, node.applied, before) for node in self.nodes.values()]
            if len(self.committed) == before:
                self.write()
            self.run_until(self.now_ms + 200)
        for node in self.running:
            self.check_history(node)
            assert node.raft is not None
            voters = node.raft.quorum.voters
            assert voters == self.committed_voters, f"node {node.node_id} has other voters than the others: {voters}"
            if isinstance(node.raft.quorum.role, Leader):
                assert node.raft.quorum.is_voter, f"node {node.node_id} leads, and was removed"
        for offset, entry in self.acknowledged.items():
            assert self.committed[offset] == entry, f"the acknowledged record at {offset} is lost"
