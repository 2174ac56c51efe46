"""A leader counts what its followers have stored: what is committed, who waits, and which ISR it proposes."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.cluster.replication.in_sync import InSyncReplicas, Proposal
from hailbus_broker.log import LogConfig, Origin, PartitionLog, TailCache
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.followers import Followers, ReplicationSettings
from hailbus_broker.runtime.replica import FollowerReplica, LeaderReplica, NotEnoughReplicasError, NotLeaderError
from hailbus_broker.testing.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable

LAG_MS = 1_000


class ManualSync:
    """A group sync whose rounds the test runs."""

    def __init__(self) -> None:
        self.dirty: list[Any] = []

    def mark(self, replica: object) -> None:
        self.dirty.append(replica)

    @staticmethod
    def call_later(delay_s: float, function: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, function)

    def run(self) -> None:
        dirty, self.dirty = self.dirty, []
        for replica in dirty:
            pending = replica.log.start_sync()
            if pending is not None:
                pending.run()
            replica.synced(pending)


class ManualClock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.ms = 10_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


class World:
    """A leader of three replicas, on node 1."""

    def __init__(self, *, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2, epoch_start_offset: int = 0) -> None:
        self.clock = ManualClock()
        self.sync = ManualSync()
        self.proposals: list[Proposal] = []
        self.log = self.new_log()
        self.fenced: set[int] = set()
        in_sync = InSyncReplicas(
            node_id=1,
            leader_epoch=5,
            epoch_start_offset=epoch_start_offset,
            replicas=(1, 2, 3),
            isr=isr,
            partition_epoch=7,
            now_ms=self.clock.ms,
            is_eligible=lambda node_id, _: node_id not in self.fenced,
        )
        self.followers = Followers(
            in_sync,
            clock=self.clock,
            settings=ReplicationSettings(max_lag_ms=LAG_MS),
            min_isr=min_isr,
            submit=lambda _, proposal: self.proposals.append(proposal),
            is_alive=lambda node_id: node_id not in self.fenced,
        )
        self.leader = LeaderReplica(
            topic="rides",
            topic_id=bytes(16),
            index=0,
            leader_epoch=5,
            log=self.log,
            sync=self.sync,  # type: ignore[arg-type]  # all that a replica asks of it
            report=lambda error: None,
            followers=self.followers,
        )
        self.log.begin_leader_epoch(5)

    @staticmethod
    def new_log() -> PartitionLog:
        return PartitionLog.open(
            SimulatedDisk(random.Random(0)), "data/rides-0", LogConfig(), now_ms=0, clean=False, tail_cache=TailCache(0)
        )

    def append(self) -> int:
        """Append a record and return the log end offset."""
        return self.leader.append(a_batch(), now_ms=0).last_offset + 1


def a_batch() -> bytes:
    return bytes(build_batch([RecordToWrite(key=None, value=b"v", timestamp=0)]))


def noted(into: list[str], name: str) -> Callable[[Exception | None], None]:
    return lambda error: into.append(name if error is None else f"{name} {type(error).__name__}")


def test_a_record_is_committed_when_all_in_sync_replicas_have_stored_it() -> None:
    world = World()
    end = world.append()
    told: list[str] = []
    world.leader.when_committed(end, noted(told, "committed"))
    world.leader.when_stored(end, noted(told, "stored"))
    assert world.leader.fetched(2, 1, end)
    assert world.leader.fetched(3, 1, end)
    assert told == [], "the leader itself has not synced it"
    assert world.log.high_watermark == 0
    world.sync.run()
    assert told == ["stored", "committed"]
    assert world.log.high_watermark == end
    end = world.append()
    world.sync.run()
    world.leader.when_stored(end, noted(told, "stored"))
    world.leader.when_committed(end, noted(told, "committed"))
    assert told == ["stored", "committed", "stored"], "the followers do not have it"
    world.leader.fetched(2, 1, end)
    assert told == ["stored", "committed", "stored"]
    world.leader.fetched(3, 1, end)
    assert told == ["stored", "committed", "stored", "committed"]


def test_records_count_without_a_sync_where_the_settings_say_so() -> None:
    world = World()
    world.leader.flush_messages = 2**63 - 1
    end = world.append()
    world.leader.fetched(2, 1, end)
    world.leader.fetched(3, 1, end)
    assert world.log.high_watermark == end
    assert world.log.synced_end_offset == 0


def test_nothing_is_committed_below_the_minimum_of_in_sync_replicas() -> None:
    world = World(isr=(1,), min_isr=2)
    end = world.append()
    world.sync.run()
    assert not world.leader.has_min_isr
    assert world.log.high_watermark == 0
    world.leader.fetched(2, 4, end)
    assert [dict(proposal.isr) for proposal in world.proposals] == [{1: -1, 2: 4}]
    assert world.log.high_watermark == 0, "the controller has not decided yet"
    world.followers.in_sync.committed(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=8, now_ms=world.clock.ms)
    world.leader.recount()
    assert world.log.high_watermark == end


def test_a_coordinator_writes_nothing_below_the_minimum() -> None:
    world = World(isr=(1,), min_isr=2)
    with pytest.raises(NotEnoughReplicasError, match="rides-0"):
        world.leader.append(a_batch(), now_ms=0, origin=Origin.COORDINATOR)
    assert world.log.log_end_offset == 0


def test_a_new_leader_knows_what_is_committed_as_soon_as_its_followers_have_all_of_it() -> None:
    world = World(epoch_start_offset=2)
    world.append()
    end = world.append()
    world.sync.run()
    world.leader.fetched(2, 1, end)
    world.leader.fetched(3, 1, end - 1)
    assert not world.leader.knows_committed
    world.leader.fetched(3, 1, end)
    assert world.log.high_watermark == end
    assert world.leader.knows_committed is True


def test_a_lower_minimum_commits_what_waited() -> None:
    world = World(isr=(1,), min_isr=2)
    end = world.append()
    world.sync.run()
    assert world.log.high_watermark == 0
    world.followers.min_isr = 1
    world.leader.recount()
    assert world.log.high_watermark == end


def test_a_follower_that_is_behind_for_too_long_is_proposed_to_leave() -> None:
    world = World()
    end = world.append()
    world.sync.run()
    world.leader.fetched(2, 1, end)
    world.clock.ms += LAG_MS + 1
    world.leader.fetched(2, 1, end)
    world.leader.recount()
    assert [dict(proposal.isr) for proposal in world.proposals] == [{1: -1, 2: 1}]
    assert world.log.high_watermark == 0, "broker 3 counts until the controller says otherwise"
    world.followers.in_sync.committed(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=8, now_ms=world.clock.ms)
    world.leader.recount()
    assert world.log.high_watermark == end


def test_a_node_that_is_no_replica_counts_for_nothing() -> None:
    world = World()
    end = world.append()
    world.sync.run()
    assert not world.leader.fetched(9, 1, end)
    assert world.log.high_watermark == 0


def test_appends_wake_the_fetches_of_followers_and_commits_those_of_clients() -> None:
    world = World()
    woken: list[str] = []

    class Fetch:
        def __init__(self, name: str) -> None:
            self.name = name

        def notify(self) -> None:
            woken.append(self.name)

    world.leader.readers[1] = Fetch("client")
    world.leader.follower_readers[2] = Fetch("follower")
    end = world.append()
    assert woken == ["follower"]
    world.sync.run()
    world.leader.fetched(2, 1, end)
    world.leader.fetched(3, 1, end)
    assert woken == ["follower", "client"]
    world.leader.resign()
    assert woken == ["follower", "client", "client", "follower"]


def test_a_leader_that_has_resigned_commits_nothing_any_more() -> None:
    world = World(isr=(1,), min_isr=1)
    end = world.append()
    told: list[str] = []
    world.leader.when_committed(end, noted(told, "committed"))
    pending = world.log.start_sync()
    assert pending is not None
    world.leader.resign()
    assert told == ["committed NotLeaderError"]
    pending.run()
    world.leader.synced(pending)
    assert world.log.high_watermark == 0
    assert world.log.synced_end_offset == end, "but the log knows that it is synced"
    world.leader.fetched(2, 1, end)
    world.leader.recount()
    assert world.log.high_watermark == 0


def test_a_new_epoch_of_the_same_leader_counts_its_followers_anew() -> None:
    world = World()
    end = world.append()
    world.sync.run()
    anew = World(isr=(1, 2, 3)).followers
    world.leader.follow_up(anew, 6)
    assert world.leader.leader_epoch == 6
    assert world.log.leader_epochs.entries[-1] == (6, end), (
        "followers with later records of epoch 5 learn that it ended"
    )
    assert world.log.high_watermark == 0
    world.leader.fetched(2, 1, end)
    world.leader.fetched(3, 1, end)
    assert world.log.high_watermark == end


def test_without_followers_what_the_leader_has_stored_is_committed() -> None:
    world = World()
    end = world.append()
    world.sync.run()
    assert world.log.high_watermark == 0
    world.leader.follow_up(None, 5)
    assert world.log.high_watermark == end


@pytest.fixture
def follower() -> FollowerReplica:
    return FollowerReplica(
        topic="rides",
        topic_id=bytes(16),
        index=0,
        leader_id=1,
        leader_epoch=5,
        log=World.new_log(),
        sync=ManualSync(),  # type: ignore[arg-type]  # all that a replica asks of it
        report=lambda error: None,
    )


def sync_of(follower: FollowerReplica) -> ManualSync:
    sync = follower._sync
    assert isinstance(sync, ManualSync)
    return sync


def test_a_follower_has_stored_what_is_on_its_disk(follower: FollowerReplica) -> None:
    follower.append(a_batch(), now_ms=0)
    told: list[str] = []
    follower.when_stored(noted(told, "stored"))
    follower.commit(1)
    assert follower.log.high_watermark == 0, "consumers may read here, too, so it is on the disk before"
    assert told == []
    sync_of(follower).run()
    assert told == ["stored"]
    assert follower.log.high_watermark == 1
    follower.when_stored(noted(told, "at once"))
    assert told == ["stored", "at once"]


def test_a_follower_that_gets_another_role_answers_what_waits(follower: FollowerReplica) -> None:
    follower.append(a_batch(), now_ms=0)
    told: list[str] = []
    follower.when_stored(noted(told, "stored"))
    follower.commit(1)
    follower.resign()
    assert told == ["stored NotLeaderError"]
    sync_of(follower).run()
    assert follower.log.high_watermark == 0
    assert isinstance(follower.error, NotLeaderError)


def test_the_low_watermark_is_the_lowest_log_start_of_the_brokers_that_live() -> None:
    world = World()
    told: list[int] = []
    world.leader.start_watchers[0] = lambda: told.append(world.leader.low_watermark)
    for _ in range(3):
        end = world.append()
    world.sync.run()
    for node_id in (2, 3):
        world.leader.fetched(node_id, 1, end, 0)
    world.log.delete_records(2)
    assert world.leader.low_watermark == 0
    told.clear()
    world.leader.fetched(2, 1, end, 0)
    assert told == [], "no news"
    world.leader.fetched(2, 1, end, 2)
    world.leader.fetched(3, 1, end, 1)
    assert told == [0, 1]
    world.fenced.add(3)
    world.leader.recount()
    assert told == [0, 1, 2], "a fenced broker cannot bring records back: it is asked for them no more"
