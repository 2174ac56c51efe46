"""Whatever happens to followers, leaders and proposals: what was committed is on the disks of all in-sync replicas."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hailbus_broker.cluster.replication.in_sync import InSyncReplicas, Proposal
from hypothesis import given, note, settings
from hypothesis import strategies as st

MAX_LAG_MS = 1_000
COUNTS: Counter[str] = Counter()

Record = tuple[int, int]
"""A leader epoch, and a number that no other record has."""


@dataclass
class Replica:
    """A log in memory, and what of it is on the disk."""

    node_id: int
    log: list[Record] = field(default_factory=list)
    disk: list[Record] = field(default_factory=list)
    broker_epoch: int = 1
    is_up: bool = True


class World:
    """A partition, the controller's word about it, and what was committed so far."""

    def __init__(self, rng: random.Random, replica_count: int) -> None:
        self.rng = rng
        self.now_ms = 10_000
        self.number = 0
        self.replicas = {node_id: Replica(node_id) for node_id in range(1, replica_count + 1)}
        # The controller's state.
        self.isr = list(self.replicas)
        self.partition_epoch = 0
        self.leader_epoch = 0
        self.leader_id: int | None = 1
        self.committed: list[Record] = []
        self.under_way: list[tuple[InSyncReplicas, Proposal]] = []
        self.lead(1)

    def lead(self, node_id: int) -> None:
        """Tell a replica that it leads."""
        self.leader = self.replicas[node_id]
        self.high_watermark = 0
        self.view = InSyncReplicas(
            node_id=node_id,
            leader_epoch=self.leader_epoch,
            epoch_start_offset=len(self.leader.log),
            replicas=self.replicas,
            isr=self.isr,
            partition_epoch=self.partition_epoch,
            now_ms=self.now_ms,
            is_eligible=lambda other, epoch: self.replicas[other].is_up and self.replicas[other].broker_epoch == epoch,
        )
        self.tell_leader()

    def tell_leader(self) -> None:
        self.view.committed(
            replicas=self.replicas, isr=self.isr, partition_epoch=self.partition_epoch, now_ms=self.now_ms
        )

    # ------------------------------------------------------------------ steps

    def append(self) -> None:
        if self.leader.is_up:
            self.number += 1
            self.leader.log.append((self.leader_epoch, self.number))

    def sync(self) -> None:
        replica = self.rng.choice(list(self.replicas.values()))
        if replica.is_up:
            replica.disk = list(replica.log)

    def fetch(self) -> None:
        """A follower fetches from the end of its disk, as far as that is the leader's history."""
        follower = self.rng.choice(list(self.replicas.values()))
        leader = self.leader
        if follower is leader or not follower.is_up or not leader.is_up:
            return
        same = 0
        while same < min(len(follower.disk), len(leader.log)) and follower.disk[same] == leader.log[same]:
            same += 1
        if same < len(follower.disk):
            COUNTS["truncated"] += 1
            follower.log = follower.log[:same]
            follower.disk = follower.disk[:same]
            return  # the truncation is on the disk before the next fetch
        self.view.fetched(follower.node_id, follower.broker_epoch, same, len(leader.log), self.now_ms)
        follower.log = leader.log[: same + self.rng.randrange(4)]

    def advance(self) -> None:
        """The leader moves its high watermark."""
        leader = self.leader
        found = self.view.high_watermark(len(leader.disk), len(leader.log), now_ms=self.now_ms, max_lag_ms=MAX_LAG_MS)
        if leader.is_up and found > self.high_watermark:
            self.high_watermark = found
            if found > len(self.committed):
                self.committed = leader.log[:found]
                COUNTS["committed"] += 1

    def propose(self) -> None:
        if not self.leader.is_up:
            return
        proposal = self.view.propose(
            self.high_watermark, len(self.leader.log), now_ms=self.now_ms, max_lag_ms=MAX_LAG_MS
        )
        if proposal is not None:
            self.under_way.append((self.view, proposal))

    def decide(self) -> None:
        """The controller gets a proposal, of this leader or of one before; its answer may be lost."""
        if not self.under_way:
            return
        view, proposal = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        is_valid = (
            view.leader_epoch == self.leader_epoch
            and proposal.partition_epoch == self.partition_epoch
            and self.leader_id is not None
            and all(
                node_id == self.leader_id
                or (self.replicas[node_id].is_up and self.replicas[node_id].broker_epoch == epoch)
                for node_id, epoch in proposal.isr.items()
            )
        )
        if is_valid:
            COUNTS["grown" if len(proposal.isr) > len(self.isr) else "shrunk"] += 1
            self.isr = list(proposal.isr)
            self.partition_epoch += 1
        elif view is self.view and proposal.partition_epoch == self.partition_epoch:
            view.failed(proposal)
            return
        if view is self.view and self.rng.random() < 0.6:
            self.tell_leader()
        else:
            COUNTS["answer lost"] += 1

    def learn(self) -> None:
        """The leader gets the metadata."""
        if self.leader.node_id == self.leader_id and self.view.leader_epoch == self.leader_epoch:
            self.tell_leader()

    def crash(self) -> None:
        """A replica loses its power; the controller fences it and elects another leader from the ISR."""
        replica = self.rng.choice(list(self.replicas.values()))
        if not replica.is_up:
            return
        replica.is_up = False
        replica.log = list(replica.disk)
        left = [node_id for node_id in self.isr if node_id != replica.node_id]
        if replica.node_id in self.isr and left:
            self.isr = left
            self.partition_epoch += 1
        if replica.node_id == self.leader_id:
            self.elect()

    def elect(self) -> None:
        candidates = [node_id for node_id in self.isr if self.replicas[node_id].is_up]
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.leader_id = self.rng.choice(candidates) if candidates else None
        if self.leader_id is not None:
            COUNTS["elected"] += 1
            self.lead(self.leader_id)

    def restart(self) -> None:
        replica = self.rng.choice(list(self.replicas.values()))
        if replica.is_up:
            return
        replica.is_up = True
        replica.broker_epoch += 1
        if self.leader_id is None:
            self.elect()

    def wait(self) -> None:
        self.now_ms += self.rng.choice([1, 50, MAX_LAG_MS])

    def check(self) -> None:
        for node_id in self.isr:
            disk = self.replicas[node_id].disk
            assert disk[: len(self.committed)] == self.committed, f"replica {node_id} lacks what was committed"


STEPS = {
    World.append: 8,
    World.sync: 8,
    World.fetch: 12,
    World.advance: 4,
    World.propose: 4,
    World.decide: 3,
    World.learn: 2,
    World.crash: 1,
    World.restart: 5,
    World.wait: 2,
}


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_what_was_committed_is_on_all_in_sync_replicas(seed: int, replica_count: int) -> None:
    note(f"seed {seed}")
    world = World(random.Random(seed), replica_count)
    steps, weights = list(STEPS), list(STEPS.values())
    for _ in range(500):
        world.rng.choices(steps, weights)[0](world)
        world.check()


def test_everything_that_matters_happens() -> None:
    COUNTS.clear()
    for seed in range(60):
        world = World(random.Random(seed), 3)
        steps, weights = list(STEPS), list(STEPS.values())
        for _ in range(500):
            world.rng.choices(steps, weights)[0](world)
            world.check()
    for what in ("truncated", "committed", "grown", "shrunk", "answer lost", "elected"):
        assert COUNTS[what] > 20, (what, COUNTS)
