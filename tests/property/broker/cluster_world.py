"""A controller among brokers that come, go, fall silent and change ISRs at random, with checks after each step."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from hailbus_broker.cluster.controller import Controller
from hailbus_broker.cluster.features import ELR_VERSION, METADATA_VERSION
from hailbus_broker.cluster.metadata.image import LeaderRecovery, MetadataImage, PartitionState, ResourceType
from hailbus_broker.cluster.metadata.records import METADATA_LEVEL, decode_record, encode_record
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.protocol.definitions import (
    alter_partition_reassignments_request,
    alter_partition_request,
    assign_replicas_to_dirs_request,
    broker_registration_request,
    elect_leaders_request,
)
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import AlterPartitionReassignmentsRequest
from hailbus_broker.protocol.definitions.alter_partition_request import AlterPartitionRequest
from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
from hailbus_broker.protocol.definitions.broker_heartbeat_request import BrokerHeartbeatRequest
from hailbus_broker.protocol.definitions.broker_registration_request import BrokerRegistrationRequest
from hailbus_broker.protocol.definitions.elect_leaders_request import ElectLeadersRequest
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hailbus_broker.protocol.schema import Message

BROKERS = [1, 2, 3, 4, 5]
RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: None}
TOPICS = ["rides", "bikes", "cars"]
NO_LEADER = -1

Partitions = dict[tuple[bytes, int], PartitionState]


class World:
    """One run.

    Attributes:
        seen: How often what has happened.
        tail_lost: Partitions of which a broker may have lost acknowledged records since somebody led them.
    """

    def __init__(self, seed: int, *, has_elr: bool) -> None:
        self.rng = random.Random(seed)
        self.image = MetadataImage()
        self.config = BrokerConfig({"broker.session.timeout.ms": "9000", "metadata.max.idle.interval.ms": "0"})
        self.controller = Controller(
            self.image, self.config, node_id=1, directory_id=bytes(16), chance=random.Random(seed)
        )
        self.offset = 0
        self.now_ms = 1_000
        self.seen: Counter[str] = Counter()
        self.tail_lost: set[tuple[bytes, int]] = set()
        self.vouched_for: list[int] = []
        """The ISR that a leader asks for."""
        self.write(
            self.controller.activate(next_offset=self.offset, now_ms=self.now_ms, has_open_transaction=False),
            "activate",
        )
        if has_elr:
            self.write([FeatureLevelRecord(name=ELR_VERSION, feature_level=1)], "elr")
        self.actions: list[Callable[[], None]] = [
            *[self.register] * 3,
            *[self.unfence] * 8,
            self.refused,
            self.fall_silent,
            *[self.shut_down] * 2,
            self.unregister,
            *[self.create_topic] * 2,
            self.delete_topic,
            self.create_partitions,
            *[self.alter_isr] * 14,
            *[self.reassign] * 4,
            self.cancel_reassignment,
            *[self.elect] * 2,
            self.unclean_elections,
            self.balance,
            self.change_minimum,
            self.lose_directory,
            self.assign_directory,
            self.failed_append,
        ]

    # ------------------------------------------------------------------ the log

    def partitions(self) -> Partitions:
        return {
            (topic.topic_id, state.index): state for topic in self.image.topics.values() for state in topic.partitions
        }

    def write(self, records: Sequence[Message], what: str) -> None:
        before = self.partitions()
        decoded = [decode_record(encode_record(record)) for record in records]
        self.image.apply(decoded)
        self.offset += len(records)
        self.check(before, what)
        touched = [(bytes(one.topic_id), one.partition_id) for one in decoded if isinstance(one, PartitionChangeRecord)]
        assert len(set(touched)) == len(touched) or what == "heartbeat", (what, "two changes of one partition at once")

    def step(self) -> None:
        action = self.rng.choice(self.actions)
        try:
            action()
        except ApiError as error:
            self.seen[f"{action.__name__} refused: {error.code.name}"] += 1
        self.seen[action.__name__] += 1

    # ------------------------------------------------------------------ brokers

    def request(self, broker_id: int, *, previous: int = -1) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id="c",
            incarnation_id=self.rng.randbytes(16),
            listeners=[broker_registration_request.Listener(name="CLIENT", host="h", port=broker_id)],
            features=[
                broker_registration_request.Feature(name=ELR_VERSION, max_supported_version=1),
                broker_registration_request.Feature(
                    name=METADATA_VERSION, min_supported_version=METADATA_LEVEL, max_supported_version=METADATA_LEVEL
                ),
            ],
            rack=RACKS[broker_id],
            log_dirs=[bytes([broker_id, number] + [7] * 14) for number in range(2)],
            previous_broker_epoch=previous,
        )

    def register(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        broker = self.image.brokers.get(broker_id)
        if broker is not None and self.rng.random() < 0.7:
            self.write(self.controller.fence(broker_id, broker.broker_epoch, next_offset=self.offset), "fence")
        is_clean = broker is not None and self.rng.random() < 0.6
        previous = broker.broker_epoch if broker is not None and is_clean else -1
        decision = self.controller.register(
            self.request(broker_id, previous=previous), cluster_id="c", next_offset=self.offset, now_ms=self.now_ms
        )
        self.write(decision.records, "register clean" if is_clean else "register unclean")
        assert self.image.brokers[broker_id].fenced

    def heartbeat(self, broker_id: int, **wishes: object) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].broker_epoch,
            current_metadata_offset=self.offset - 1,
        )
        for name, value in wishes.items():
            setattr(request, name, value)
        decision = self.controller.heartbeat(request, next_offset=self.offset, now_ms=self.now_ms)
        self.write(decision.records, "heartbeat")
        broker = self.image.brokers[broker_id]
        assert decision.response.is_fenced == broker.fenced
        if decision.response.should_shut_down:
            assert not [state for state in self.partitions().values() if state.leader == broker_id]

    def some_broker(self) -> int | None:
        brokers = sorted(self.image.brokers)
        return self.rng.choice(brokers) if brokers else None

    def unfence(self) -> None:
        broker_id = self.some_broker()
        if broker_id is not None:
            self.heartbeat(broker_id)

    def shut_down(self) -> None:
        broker_id = self.some_broker()
        if broker_id is not None:
            for _ in range(self.rng.randint(1, 3)):
                self.heartbeat(broker_id, want_shut_down=True)
                if self.rng.random() < 0.5:
                    for other in sorted(self.image.brokers):
                        if other != broker_id:
                            self.heartbeat(other)

    def refused(self) -> None:
        broker_id = self.some_broker()
        if broker_id is not None:
            epoch = self.image.brokers[broker_id].broker_epoch
            self.write(self.controller.fence(broker_id, epoch, next_offset=self.offset), "fence")
            assert self.image.brokers[broker_id].fenced

    def fall_silent(self) -> None:
        """Time passes; some brokers say something, the others are fenced."""
        self.now_ms += self.rng.randrange(12_000)
        for broker_id in sorted(self.image.brokers):
            if self.rng.random() < 0.8:
                self.heartbeat(broker_id, want_fence=self.image.brokers[broker_id].fenced)
        while (deadline_ms := self.controller.deadline_ms()) is not None and deadline_ms <= self.now_ms:
            self.write(self.controller.tick(next_offset=self.offset, now_ms=self.now_ms), "tick")
        assert not self.controller.tick(next_offset=self.offset, now_ms=self.now_ms)

    def unregister(self) -> None:
        broker_id = self.some_broker()
        if broker_id is not None and self.rng.random() < 0.3:
            self.write(self.controller.unregister(broker_id).records, "unregister")

    def lose_directory(self) -> None:
        broker_id = self.some_broker()
        if broker_id is not None:
            self.heartbeat(broker_id, offline_log_dirs=[self.rng.choice(self.image.brokers[broker_id].log_dirs)])

    # ------------------------------------------------------------------ topics

    def create_topic(self) -> None:
        free = [name for name in TOPICS if name not in self.image.topics]
        if free:
            configs: dict[str, str | None] = {"min.insync.replicas": str(self.rng.randint(1, 3))}
            if self.rng.random() < 0.3:
                configs["unclean.leader.election.enable"] = "true"
            new = self.controller.create_topic(
                self.rng.choice(free),
                partition_count=self.rng.randint(1, 3),
                replication_factor=self.rng.randint(1, 4),
                configs=configs,
            )
            self.write(new.records, "create")

    def delete_topic(self) -> None:
        if self.image.topics and self.rng.random() < 0.3:
            topic = self.image.topics[self.rng.choice(sorted(self.image.topics))]
            self.write(self.controller.delete_topic(topic), "delete")

    def create_partitions(self) -> None:
        if self.image.topics:
            topic = self.image.topics[self.rng.choice(sorted(self.image.topics))]
            if len(topic.partitions) < 5:
                self.write(self.controller.create_partitions(topic.name, len(topic.partitions) + 1), "create")

    def change_minimum(self) -> None:
        if self.image.topics:
            name = self.rng.choice(sorted(self.image.topics))
            changes = {"min.insync.replicas": str(self.rng.randint(1, 3))}
            self.write(self.controller.alter_configs(ResourceType.TOPIC, name, changes), "minimum")

    def some_partition(self) -> tuple[bytes, PartitionState] | None:
        found = self.partitions()
        if not found:
            return None
        key = self.rng.choice(list(found))
        return key[0], found[key]

    def alter_isr(self) -> None:
        some = self.some_partition()
        if some is None or some[1].leader == NO_LEADER:
            return
        topic_id, state = some
        followers = [one for one in state.replicas if one != state.leader]
        isr = [state.leader, *self.rng.sample(followers, self.rng.randint(0, len(followers)))]
        if self.rng.random() < 0.6:
            isr = [one for one in isr if one in self.image.brokers and self.image.brokers[one].is_active]
        asked = alter_partition_request.PartitionData(
            partition_index=state.index,
            leader_epoch=state.leader_epoch - (self.rng.random() < 0.1),
            new_isr_with_epochs=[
                alter_partition_request.BrokerState(
                    broker_id=one,
                    broker_epoch=self.image.brokers[one].broker_epoch if one in self.image.brokers else 0,
                )
                for one in isr
            ],
            partition_epoch=state.partition_epoch - (self.rng.random() < 0.1),
        )
        request = AlterPartitionRequest(
            broker_id=state.leader,
            broker_epoch=self.image.brokers[state.leader].broker_epoch,
            topics=[alter_partition_request.TopicData(topic_id=topic_id, partitions=[asked])],
        )
        self.vouched_for = isr
        decision = self.controller.alter_partition(request, version=3)
        ((result,),) = [one.partitions for one in decision.response.topics]
        self.seen[f"isr {result.error_code}"] += 1
        self.write(decision.records, "isr")
        if not result.error_code:
            now = self.partitions()[topic_id, state.index]
            assert (result.leader_id, result.leader_epoch, tuple(result.isr), result.partition_epoch) == (
                now.leader,
                now.leader_epoch,
                now.isr,
                now.partition_epoch,
            )

    def reassign(self) -> None:
        some = self.some_partition()
        if some is not None:
            self.ask_reassignment(some, self.rng.sample(BROKERS, self.rng.randint(1, 4)))

    def cancel_reassignment(self) -> None:
        some = self.some_partition()
        if some is not None:
            self.ask_reassignment(some, None)

    def ask_reassignment(self, some: tuple[bytes, PartitionState], replicas: list[int] | None) -> None:
        asked = alter_partition_reassignments_request.ReassignableTopic(
            name=self.image.topics_by_id[some[0]].name,
            partitions=[
                alter_partition_reassignments_request.ReassignablePartition(
                    partition_index=some[1].index, replicas=replicas
                )
            ],
        )
        decision = self.controller.alter_reassignments(AlterPartitionReassignmentsRequest(topics=[asked]))
        ((result,),) = [one.partitions for one in decision.response.responses]
        self.seen[f"reassignment {result.error_code}"] += 1
        self.write(decision.records, "reassignment")

    def elect(self) -> None:
        some = self.some_partition()
        if some is None:
            return
        is_unclean = self.rng.random() < 0.2
        asked = elect_leaders_request.TopicPartitions(
            topic=self.image.topics_by_id[some[0]].name, partitions=[some[1].index]
        )
        request = ElectLeadersRequest(election_type=int(is_unclean), topic_partitions=[asked])
        decision = self.controller.elect_leaders(request, version=2)
        ((result,),) = [one.partition_result for one in decision.response.replica_election_results]
        self.seen[f"election {result.error_code}"] += 1
        self.write(decision.records, "elect unclean" if is_unclean else "elect")

    def unclean_elections(self) -> None:
        self.write(self.controller.elect_unclean()[0], "unclean")

    def balance(self) -> None:
        self.write(self.controller.balance_leaders()[0], "balance")

    def assign_directory(self) -> None:
        some = self.some_partition()
        if some is None:
            return
        broker_id = self.rng.choice(some[1].replicas)
        if broker_id not in self.image.brokers:
            return
        topic = assign_replicas_to_dirs_request.TopicData(
            topic_id=some[0],
            partitions=[assign_replicas_to_dirs_request.PartitionData(partition_index=some[1].index)],
        )
        request = AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].broker_epoch,
            directories=[
                assign_replicas_to_dirs_request.DirectoryData(
                    id=bytes([broker_id, self.rng.randrange(2)] + [7] * 14), topics=[topic]
                )
            ],
        )
        self.write(self.controller.assign_replicas(request).records, "directory")

    def failed_append(self) -> None:
        """The controller goes back to what was committed, and decides on as if the lost records had never been."""
        committed = self.image.copy()
        expected = committed.to_records()
        broker_id = self.some_broker()
        if broker_id is not None:
            epoch = self.image.brokers[broker_id].broker_epoch
            self.image.apply(self.controller.fence(broker_id, epoch, next_offset=self.offset))
        self.image = self.controller.image = committed
        assert self.image.to_records() == expected

    # ------------------------------------------------------------------ what has to hold

    def check(self, before: Partitions, what: str) -> None:
        for key, state in self.partitions().items():
            old = before.get(key)
            if what in {"register unclean", "unregister"}:
                self.tail_lost.add(key)
            has_lost = key in self.tail_lost
            self.check_state(key, state, what)
            if old is None:
                continue
            assert state.partition_epoch >= old.partition_epoch
            assert state.leader_epoch >= old.leader_epoch
            if state != old:
                assert state.partition_epoch > old.partition_epoch
            if state.leader != old.leader:
                assert state.leader_epoch > old.leader_epoch, "a change of the leader begins an epoch"
                self.note_election(key, old, state, what, has_lost=has_lost)

    def check_state(self, key: tuple[bytes, int], state: PartitionState, what: str) -> None:
        topic = self.image.topics_by_id[key[0]]
        for ids in (state.replicas, state.isr, state.elr, state.adding_replicas, state.removing_replicas):
            assert len(set(ids)) == len(ids)
        replicas = set(state.replicas)
        assert replicas, "a partition has replicas"
        assert set(state.isr) <= replicas
        assert set(state.elr) <= replicas
        assert not set(state.isr) & set(state.elr)
        assert set(state.adding_replicas) <= replicas
        assert set(state.removing_replicas) <= replicas
        assert not set(state.adding_replicas) & set(state.removing_replicas)
        assert len(state.directories) == len(state.replicas)
        if state.leader != NO_LEADER:
            assert state.leader in state.isr
            for broker_id in state.isr:
                broker = self.image.brokers.get(broker_id)
                assert broker is not None, f"{broker_id} is in sync and not registered"
                assert broker.is_active, f"{broker_id} is in sync and not active"
            leader = self.image.brokers[state.leader]
            assert leader.has_online_directory(state.directory(state.leader))
            self.tail_lost.discard(key)
        if not self.controller.has_elr:
            assert state.isr, "without ELR the last replica stays in the ISR"
            assert not state.elr
        if not state.isr and not state.elr:
            assert key in self.tail_lost, f"{topic.name}-{state.index} has neither ISR nor ELR after {what}"

    def note_election(
        self, key: tuple[bytes, int], old: PartitionState, state: PartitionState, what: str, *, has_lost: bool
    ) -> None:
        if state.leader == NO_LEADER:
            self.seen["leader lost"] += 1
            return
        topic = self.image.topics_by_id[key[0]]
        was_asked = self.controller.allows_unclean_election(topic) or what == "elect unclean"
        if what == "isr" and state.leader in self.vouched_for:
            self.seen["elected from the ISR that ends a reassignment"] += 1
        elif state.leader in old.isr:
            self.seen["elected from ISR"] += 1
        elif state.leader in old.elr:
            self.seen["elected from ELR"] += 1
            assert not set(old.isr) & set(state.isr), "a replica in sync comes before an eligible one"
        elif old.last_known_elr == (state.leader,) and not old.isr and has_lost and not was_asked:
            self.seen["elected as last known"] += 1
            assert state.isr == (state.leader,)
            assert state.recovery is LeaderRecovery.RECOVERING
        else:
            self.seen["elected unclean"] += 1
            assert was_asked, (old, state, what)
            assert state.recovery is LeaderRecovery.RECOVERING
