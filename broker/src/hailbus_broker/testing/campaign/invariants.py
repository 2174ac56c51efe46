"""What the nodes of a cluster must agree on at any moment, whatever clients see of it.

A checker reads every committed batch of the metadata log, and of the partitions' logs, once from each node that knows
it as committed. It keeps the first version of each, and compares all others with it. So nobody can lose, or rewrite,
what was committed anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.cluster.metadata.names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
)
from hailbus_broker.cluster.metadata.reading import MetadataReader
from hailbus_broker.cluster.metadata.records import encode_record
from hailbus_broker.cluster.raft.control_records import read_changes
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.voters import VoterHistory, VoterSet
from hailbus_broker.coordinators.transaction.state import COMPLETE, PREPARED, State
from hailbus_broker.log import Isolation
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.records import iterate_batches
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.runtime.replica import HostedReplica, LeaderReplica
from hailbus_broker.runtime.shard_driver import DriverState
from hailbus_broker.testing.campaign.logs import READ_BYTES, CommittedLog, MetadataEnd, end_of_marker
from hailbus_broker.testing.campaign.recorder import COPY, LOOSE, MAIN
from hailbus_broker.testing.campaign.subject import OBSERVED
from hailbus_broker.testing.history import Watermark
from hailbus_broker.testing.simulation.process import CURRENT_PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hailbus_broker.cluster.metadata.image import PartitionState, TopicState
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.log import PartitionLog
    from hailbus_broker.records import LeaderEpoch, Offset
    from hailbus_broker.runtime.metadata_quorum import MetadataQuorum
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.simulation.cluster import ClusterWorld, SimulatedNode

MAX_OFFSET: Final = 2**63 - 1
COMPARED: Final = frozenset({MAIN, COPY})
"""Topics that are compared byte for byte. Others are compacted by each replica in its own time, or may lose records."""


class Seen(NamedTuple):
    """What was seen of a leader at the look before."""

    leader_epoch: int
    partition_epoch: int
    high_watermark: int
    log_end_offset: int
    is_under_min: bool


class ClusterInvariants:
    """Looks at the nodes of a cluster, again and again.

    Args:
        cluster: The nodes.
        recorder: Gets what must not happen, and what the history's checks judge.
        min_isr: `min.insync.replicas` of all topics but the loose one.
    """

    def __init__(self, cluster: ClusterWorld, recorder: Recorder, *, min_isr: int) -> None:
        self._cluster: Final = cluster
        self._recorder: Final = recorder
        self._min_isr: Final = min_isr
        self._metadata: Final = CommittedLog(CLUSTER_METADATA_TOPIC, recorder.fail)
        self._reader = MetadataReader()
        self.image = MetadataImage()
        """The committed metadata, as the first node that knew it had it."""
        self._voters: Final = VoterHistory(VoterSet([]))
        """The voters that committed records name."""
        self._epoch_leaders: Final[dict[int, int]] = {}
        self._votes: Final[dict[tuple[str, int], int]] = {}
        self._epochs: Final[dict[str, int]] = {}
        self._candidates: Final[dict[tuple[str, int], Offset]] = {}
        """What nodes knew as committed when they had voted for themselves in an epoch."""
        self._ends: Final[dict[str, MetadataEnd]] = {}
        self._high_watermarks: Final[dict[str, int]] = {}
        self._logs: Final[dict[tuple[str, int], CommittedLog]] = {}
        self._seen: Final[dict[tuple[str, str, int], Seen]] = {}
        self._observed: Final[dict[tuple[str, int], tuple[int, int, int]]] = {}
        self._new_directories: Final[dict[int, bytes]] = {}
        self._refilled: Final[set[tuple[int, bytes, int]]] = set()
        """Node, topic and partition of the replicas that were on a disk that is lost, until they are in sync again."""
        self._has_open_transaction = False
        self._has_prepared_transaction = False
        self._controllers: Final[set[int]] = set()

    # ------------------------------------------------------------------ what brokers log

    def heard(self, event: Mapping[str, Any]) -> None:
        """Take in an event of the broker that runs now."""
        process = CURRENT_PROCESS.get(None)
        name = "" if process is None else process.host.name
        note, fail = self._recorder.note, self._recorder.fail
        match event.get("event"):
            case "election_state_changed":
                self._voted(name, event["epoch"], event["voted_id"])
            case "quorum_broken":
                fail(f"{name}: {event['error']}")
            case "replica_truncated":
                note("truncation")
            case "truncated_below_high_watermark":
                note("truncation below the high watermark")
                if not str(event["partition"]).startswith(f"{LOOSE}-"):
                    fail(f"{name} truncates {event['partition']} to {event['offset']}, below {event['high_watermark']}")
            case "metadata_snapshot_installed":
                note("metadata snapshot fetched")
            case "broker_found_dead":
                note("dead broker found by a probe")
            case "isr_proposal_refused":
                note("ISR proposal refused")
            case _:
                pass

    def _voted(self, name: str, epoch: int, voted_id: int | None) -> None:
        if epoch < self._epochs.get(name, 0):
            self._recorder.fail(f"{name} went back from epoch {self._epochs[name]} to {epoch}")
        self._epochs[name] = epoch
        if voted_id is None:
            return
        known = self._votes.setdefault((name, epoch), voted_id)
        if known != voted_id:
            self._recorder.fail(f"{name} voted for {known} and for {voted_id} in epoch {epoch}")
        node = self._cluster.nodes.get(voted_id)
        if node is not None and node.name == name and node.is_up:
            self._candidates[name, epoch] = node.core.metadata.quorum.high_watermark

    def judge_vote(self, name: str, quorum: Quorum) -> None:
        """Judge whether a node knows which vote it has given in its epoch, above all after a restart."""
        known, voted = self._votes.get((name, quorum.epoch)), quorum.voted
        if known is not None and (voted is None or voted.node_id != known):
            self._recorder.fail(
                f"{name} voted for {known} in epoch {quorum.epoch}, and now it believes that its vote is {voted}"
            )

    def judge_commit(self, name: str, epoch: LeaderEpoch, log: PartitionLog, high_watermark: Offset) -> None:
        """Judge whether a leader commits records of its own epoch, and older ones together with them (Raft, 5.4.2).

        A majority that has a record of an older epoch is not enough: a later leader may replace it.
        """
        known = self._candidates.get((name, epoch))
        if known is None or high_watermark <= max(known, log.log_start_offset):
            return
        last = log.leader_epochs.epoch_at(high_watermark - 1)
        if last != epoch:
            self._recorder.fail(
                f"{name} leads epoch {epoch} and commits up to {high_watermark}, which ends with epoch {last}; "
                f"{known} was committed before"
            )

    def disk_lost(self, node: SimulatedNode) -> None:
        """Forget what a node had on its disk, and expect that others fill its new one."""
        self._epochs.pop(node.name, None)
        self._ends.pop(node.name, None)
        assert node.directory_id is not None
        self._new_directories[node.node_id] = node.directory_id.bytes
        for topic in self.image.topics_by_id.values():
            self._refilled.update(
                (node.node_id, topic.topic_id, state.index)
                for state in topic.partitions
                if node.node_id in state.replicas
            )

    def _skip_lost_disks(self) -> None:
        """Forget what may have happened in metadata that nobody has looked at.

        A broker that has registered with its new disk may have joined any ISR since.
        """
        for node_id, directory in list(self._new_directories.items()):
            if directory in map(bytes, self.image.brokers[node_id].log_dirs):
                del self._new_directories[node_id]
        self._refilled.difference_update([place for place in self._refilled if place[0] not in self._new_directories])

    # ------------------------------------------------------------------ looks

    def look(self) -> None:
        """Compare the nodes that run with each other, and with what was before."""
        running = [node for node in self._cluster.nodes.values() if node.is_up]
        self._look_at_all_metadata()
        self._judge_quorum(running)
        brokers = [node for node in running if node.is_broker]
        for node in brokers:
            for replica in node.broker.replicas.hosted():
                if isinstance(replica, LeaderReplica):
                    node.process.call(self._look_at_leader, node, replica)
                elif replica.log.high_watermark > replica.stored_offset:
                    self._recorder.fail(
                        f"{replica.name} on {node.name}: high watermark {replica.log.high_watermark}, "
                        f"stored up to {replica.stored_offset}"
                    )
        self._look_at_transactions(brokers)

    def _look_at_metadata(self, node: SimulatedNode) -> None:
        quorum = node.core.metadata.quorum
        if isinstance(quorum.raft.quorum.role, Leader):
            epoch = quorum.epoch
            if self._epoch_leaders.setdefault(epoch, node.node_id) != node.node_id:
                self._recorder.fail(f"{self._epoch_leaders[epoch]} and {node.node_id} lead epoch {epoch}")
            if node.core.metadata.is_active and epoch not in self._controllers:
                if self._controllers:
                    self._recorder.note("controller failover")
                self._controllers.add(epoch)
            self.judge_commit(node.name, epoch, quorum.log, quorum.high_watermark)
        elif node.core.metadata.is_active and quorum.failure is None and not quorum.has_effects_left:
            # The controller learns that its node has ceased to lead once that is on the disk.
            self._recorder.fail(f"{node.name} decides as the controller in epoch {quorum.epoch}, but does not lead it")
        self.judge_vote(node.name, quorum.raft.quorum)
        who, high = node.process.name, quorum.high_watermark
        last_high = self._high_watermarks.get(who, 0)
        if high < last_high:
            self._recorder.fail(f"{who}: the metadata's high watermark fell from {last_high} to {high}")
        self._high_watermarks[who] = high
        if self._ends.get(node.name, MetadataEnd()).is_gone(quorum.log):
            self._recorder.note("metadata truncated")
        self._ends[node.name] = MetadataEnd.of(quorum.log)
        if quorum.failure is not None:
            return
        if quorum.log.log_start_offset > self._metadata.end_offset:
            # Snapshots have taken the place of records that nobody has looked at.
            publisher = node.core.publisher
            self.image, self._reader = publisher.image.copy(), MetadataReader(publisher.end_offset)
            self._metadata.skip_to(publisher.end_offset)
            self._skip_lost_disks()
            self._voters.clear()
            self._recorder.note("checker skipped metadata")
        for batch in self._metadata.read(node, quorum.log, high):
            self._voters.learn(read_changes([batch]))
            for record in self._reader.read([batch]):
                self.apply(record)
        self.judge_voters(node.name, quorum.raft.quorum.history, high)

    def judge_voters(self, name: str, history: VoterHistory, high_watermark: Offset) -> None:
        """A node knows the voters that committed records name."""
        known, voters = self._voters.at(high_watermark)[1], history.at(high_watermark)[1]
        if known is not None and known != voters:
            self._recorder.fail(f"{name}: the voters up to {high_watermark} are {known}; it believes in {voters}")

    def _judge_quorum(self, running: list[SimulatedNode]) -> None:
        """A majority of the voters has synced what is committed, and leaders believe no more than what voters have."""
        quorums = {node.node_id: node.core.metadata.quorum for node in running if node.core.failure is None}
        for node_id, quorum in quorums.items():
            role = quorum.raft.quorum.role
            if not isinstance(role, Leader):
                continue
            for voter_id, progress in role.voters.items():
                other = quorums.get(voter_id)
                if other is None or voter_id == node_id or other.epoch != quorum.epoch:
                    continue
                end = other.log.synced_end_offset
                if progress.end_offset > end:
                    self._recorder.fail(
                        f"node {node_id} counts {progress.end_offset} of the metadata on node {voter_id}, "
                        f"which has synced {end}"
                    )
            # Voters decide from the append of their record. What is committed before it rests on the voters before.
            history, high = quorum.raft.quorum.history, quorum.high_watermark
            found = [
                (voters, self._ends_of(voters, role, quorums)) for voters in (history.current, history.at(high)[1])
            ]
            if not any(
                sum(end >= high for end in ends.values()) >= voters.majority for voters, ends in found if voters
            ):
                self._recorder.fail(
                    f"node {node_id} has committed the metadata up to {high}, synced are "
                    + " or ".join(str(ends) for voters, ends in found if voters)
                )

    @staticmethod
    def _ends_of(voters: VoterSet | None, role: Leader, quorums: Mapping[int, MetadataQuorum]) -> dict[int, Offset]:
        """Return what each voter has synced; of one that does not run, what it has told the leader."""
        ends = {}
        for voter in voters or ():
            quorum = quorums.get(voter.key.node_id)
            if quorum is not None:
                ends[voter.key.node_id] = quorum.log.synced_end_offset
                continue
            progress = role.voters.get(voter.key.node_id) or role.observers.get(voter.key)
            # It cannot be seen: a leader that has not heard of it since its election may know no more.
            ends[voter.key.node_id] = MAX_OFFSET if progress is None or progress.end_offset < 0 else progress.end_offset
        return ends

    def apply(self, record: Any) -> None:
        """Take in a committed record of the metadata, and judge the change of a partition or of a broker."""
        if not isinstance(record, PartitionChangeRecord):
            self.image.apply([record])
            if isinstance(record, PartitionRecord):
                self._judge_placement(record)
            if isinstance(record, BrokerRegistrationChangeRecord | RegisterBrokerRecord):
                self._judge_broker(record.broker_id)
            if isinstance(record, RegisterBrokerRecord):
                self._judge_new_directory(record)
            return
        topic = self.image.topics_by_id[bytes(record.topic_id)]
        before = topic.partitions[record.partition_id]
        self.image.apply([record])
        after = self.image.topics_by_id[topic.topic_id].partitions[record.partition_id]
        self._judge_change(topic, before, after)

    def _judge_broker(self, broker_id: int) -> None:
        """A broker that is fenced leads nothing: the same decision moves its leaderships, with earlier records."""
        if not self.image.brokers[broker_id].fenced:
            return
        for topic in self.image.topics_by_id.values():
            for partition in topic.partitions:
                if partition.leader == broker_id:
                    self._recorder.fail(f"{topic.name}-{partition.index} is led by the fenced broker {broker_id}")

    def _judge_new_directory(self, record: RegisterBrokerRecord) -> None:
        """A broker that registers with a new disk is neither in sync nor eligible: the same decision has seen to it.

        It may be the last known leader until it reports its directories. Until then it cannot lead.
        """
        if self._new_directories.get(record.broker_id) not in [bytes(directory) for directory in record.log_dirs]:
            return
        del self._new_directories[record.broker_id]
        self._recorder.note("broker registered with a new disk")
        for node_id, topic_id, index in sorted(self._refilled):
            topic = self.image.topics_by_id.get(topic_id)
            if node_id != record.broker_id or topic is None:
                continue
            state = topic.partitions[index]
            if node_id in state.isr or node_id in state.elr:
                self._recorder.fail(f"{topic.name}-{index}: {node_id} counts with an empty disk: {state}")

    def _judge_placement(self, created: PartitionRecord) -> None:
        """The replicas of a new partition are in as many racks as they can be; brokers that are fenced come last."""
        brokers = [self.image.brokers.get(node_id) for node_id in created.replicas]
        racks = [broker.rack for broker in brokers if broker is not None and broker.rack and not broker.fenced]
        if len(racks) < len(brokers):
            return
        active = {broker.rack or "" for broker in self.image.brokers.values() if broker.is_active}
        if len(set(racks)) < min(len(active), len(racks)):
            self._recorder.fail(f"a new partition is on {created.replicas} in the racks {racks} of {sorted(active)}")
        if len(set(racks)) > 1:
            self._recorder.note("replicas spread over racks")

    def _judge_change(self, topic: TopicState, before: PartitionState, after: PartitionState) -> None:
        fail, note = self._recorder.fail, self._recorder.note
        where = f"{topic.name}-{after.index}, epoch {after.leader_epoch}"
        if after.partition_epoch <= before.partition_epoch or after.leader_epoch < before.leader_epoch:
            fail(f"{where}: the epochs do not grow: {before} {after}")
        if not set(after.isr) <= set(after.replicas):
            fail(f"{where}: in-sync replicas {after.isr} of {after.replicas}")
        if after.leader != NO_LEADER and after.leader not in after.isr:
            fail(f"{where}: leader {after.leader} is not in sync: {after.isr}")
        minimum = self._min_isr_of(topic.name, len(after.replicas))
        if len(after.isr) == minimum < len(after.replicas):
            note("ISR at its minimum")
        if after.elr:
            note("eligible leaders kept")
        self._judge_reassignment(before, after, where)
        is_refilled = (after.leader, topic.topic_id, after.index) in self._refilled
        for node_id in set(after.isr) - set(before.isr):
            broker = self.image.brokers.get(node_id)
            if broker is not None and (broker.fenced or broker.in_controlled_shutdown):
                fail(f"{where}: {node_id} joins the ISR, though it is fenced or about to stop")
            if (node_id, topic.topic_id, after.index) in self._refilled:
                self._refilled.discard((node_id, topic.topic_id, after.index))
                note("replica of a lost disk in sync again")
        if after.leader in {before.leader, NO_LEADER}:
            return
        elected = self.image.brokers.get(after.leader)
        if elected is not None and elected.fenced:
            fail(f"{where}: the fenced broker {after.leader} became the leader")
        if after.leader_epoch == before.leader_epoch:
            fail(f"{where}: leader {after.leader} follows {before.leader} in the same epoch")
        note("partition leader changed")
        if topic.name == TRANSACTION_STATE_TOPIC and self._has_open_transaction:
            note("coordinator failover with an open transaction")
        if topic.name == TRANSACTION_STATE_TOPIC and self._has_prepared_transaction:
            note("coordinator failover between PREPARE and its markers")
        if topic.name == GROUP_METADATA_TOPIC:
            note("group coordinator failover")
        # The change that lets the last new replica join may end the reassignment, and with it the old leadership.
        has_moved = before.is_reassigning and not after.is_reassigning and set(after.replicas) <= set(after.isr)
        if after.leader in before.isr or has_moved:
            return
        if after.leader in before.elr:
            note("eligible leader elected")
        elif (after.leader,) == before.last_known_elr:
            note("last known leader elected")
            if is_refilled:
                fail(f"{where}: the last known leader {after.leader} was elected with an empty disk")
        elif topic.name == LOOSE:
            note("unclean election")
        else:
            fail(f"{where}: {after.leader} became the leader, in sync were {before.isr}, eligible {before.elr}")

    def _judge_reassignment(self, before: PartitionState, after: PartitionState, where: str) -> None:
        """Check that a reassignment completes only once all of its target replicas are in sync.

        One record may begin and complete a reassignment, if replicas only leave. A reassignment is cancelled by a
        request without replicas, or by one that names the original replicas in any order. Then the original
        replicas stay, so the controller does not wait for the ISR (as in Apache Kafka's PartitionReassignmentRevert).
        """
        if after.is_reassigning:
            if not before.is_reassigning:
                self._recorder.note("reassignment begun")
            return
        if set(after.replicas) != set(before.replicas) - set(before.adding_replicas):
            self._recorder.note("reassignment completed")
            if not set(after.replicas) <= set(after.isr):
                self._recorder.fail(f"{where}: moved to {after.replicas} while {after.isr} are in sync")
        elif before.is_reassigning:
            self._recorder.note("reassignment cancelled")

    def _min_isr_of(self, topic: str, replica_count: int) -> int:
        return 1 if topic == LOOSE else min(self._min_isr, replica_count)

    def _look_at_leader(self, node: SimulatedNode, replica: LeaderReplica) -> None:
        """Judge a leader, or one that believes that it is."""
        log, fail = replica.log, self._recorder.fail
        start, stable, high, end = log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset
        if not start <= stable <= high <= end:
            fail(f"{replica.name} on {node.name}: log start {start}, stable {stable}, committed {high}, end {end}")
        if high > log.synced_end_offset:
            fail(f"{replica.name} on {node.name}: high watermark {high}, synced up to {log.synced_end_offset}")
        topic = self.image.topics.get(replica.topic)
        if topic is None or topic.topic_id != replica.topic_id or replica.index >= len(topic.partitions):
            return
        state = topic.partitions[replica.index]
        self._judge_progress(node, replica, state)
        if replica.topic in COMPARED:
            known = self._log_of(replica.topic, replica.index)
            for _ in known.read(node, log, high):
                pass
        if replica.leader_epoch != state.leader_epoch or state.leader != node.node_id:
            return
        self._judge_members(replica, state)
        if replica.topic in OBSERVED and replica.knows_committed:
            self.observe(replica)

    def _log_of(self, topic: str, index: int) -> CommittedLog:
        found = self._logs.get((topic, index))
        if found is None:
            found = self._logs[topic, index] = CommittedLog(f"{topic}-{index}", self._recorder.fail)
        return found

    def _judge_progress(self, node: SimulatedNode, replica: LeaderReplica, state: PartitionState) -> None:
        """The high watermark must not move with too few in sync; count fenced leaders that write on."""
        log, followers = replica.log, replica.followers
        if followers is None:
            return
        is_under_min = not followers.has_min_isr
        now = Seen(
            replica.leader_epoch,
            followers.in_sync.partition_epoch,
            log.high_watermark,
            log.log_end_offset,
            is_under_min,
        )
        key = (node.process.name, replica.topic, replica.index)
        before = self._seen.get(key)
        self._seen[key] = now
        if before is None or before.leader_epoch != now.leader_epoch:
            return
        if now.high_watermark < before.high_watermark:
            self._recorder.fail(f"{replica.name} on {node.name}: the high watermark fell from {before} to {now}")
        if is_under_min and before.is_under_min and before.partition_epoch == now.partition_epoch:
            if now.high_watermark > before.high_watermark:
                self._recorder.fail(f"{replica.name} on {node.name}: committed with too few in sync, {before} {now}")
            self._recorder.note("ISR below its minimum")
        if now.log_end_offset > before.log_end_offset and now.leader_epoch < state.leader_epoch:
            self._recorder.note("fenced leader writes on")

    def _judge_members(self, replica: LeaderReplica, state: PartitionState) -> None:
        """Each replica that is in sync, or may lead later, has stored what the leader counts as committed."""
        followers = replica.followers
        if followers is not None and followers.in_sync.partition_epoch > state.partition_epoch:
            return  # the controller has told the leader what no node that runs knows as committed yet
        high = replica.log.high_watermark
        counted = {} if followers is None else followers.in_sync.followers
        for node_id in (*state.isr, *state.elr):
            node = self._cluster.nodes.get(node_id)
            if node is None or not node.is_up:
                continue
            other = node.broker.replicas.topics.get(replica.topic, [])
            member = other[replica.index] if replica.index < len(other) else None
            if not isinstance(member, HostedReplica):
                continue
            if node_id in counted and member.leader_epoch == replica.leader_epoch:
                believed = counted[node_id].end_offset
                if believed > member.stored_offset:
                    self._recorder.fail(
                        f"{replica.name}: its leader counts {believed} on {node.name}, which has stored "
                        f"{member.stored_offset}"
                    )
            if member.stored_offset < high:
                self._recorder.fail(
                    f"{replica.name}: {high} is committed in epoch {replica.leader_epoch}, in sync are {state.isr}, "
                    f"eligible {state.elr}, and {node.name} has stored {member.stored_offset}"
                )

    def observe(self, replica: LeaderReplica, *, is_ack: bool = False) -> None:
        """Note the offsets of a partition that its leader would tell a client."""
        log, place = replica.log, (replica.topic, replica.index)
        found = log.log_start_offset, log.last_stable_offset, log.high_watermark
        if self._observed.get(place) == found and not is_ack:
            return
        self._observed[place] = found
        event = self._recorder.event()
        self._recorder.watermarks.append(
            Watermark(
                place=place, asked_at=event, answered_at=event, log_start=found[0], last_stable=found[1], high=found[2]
            )
        )

    def acked(self, topic: str, partition: int) -> None:
        """The leader knows what was acknowledged a moment ago, and all that are in sync have it."""
        self._look_at_all_metadata()
        leader = self.leader_of(topic, partition)
        if leader is None:
            return
        self._judge_members(leader, self.image.topics[topic].partitions[partition])
        if topic in OBSERVED and leader.knows_committed:
            self.observe(leader, is_ack=True)

    def read(self, topic: str, partition: int, end_offset: int, is_committed: bool) -> None:
        """What a client has read is committed, whether a leader or a follower has returned it.

        Args:
            topic: What was read.
            partition: The same.
            end_offset: Behind the last batch that was read.
            is_committed: Whether only records of complete transactions were asked for.
        """
        self._look_at_all_metadata()
        leader = self.leader_of(topic, partition)
        if topic not in COMPARED or leader is None or not leader.knows_committed:
            return
        limit = leader.log.last_stable_offset if is_committed else leader.log.high_watermark
        if end_offset > limit:
            self._recorder.fail(f"{leader.name}: read up to {end_offset}, readable at its leader up to {limit}")

    def returned(self, topic: str, partition: int, follower: int) -> None:
        """Count readers that read from their leader again, because the follower that they read from fell behind."""
        state = self.image.topics[topic].partitions[partition]
        if follower in state.replicas and follower != state.leader and follower not in state.isr:
            self._recorder.note("reader of a follower that left the ISR returned to the leader")

    def ended(self, transactional_id: str, producer_id: int, written: Mapping[tuple[str, int], int]) -> None:
        """The markers of a transaction are committed before its coordinator counts it as complete.

        Args:
            transactional_id: Whose transaction it was; its producer was answered a moment ago.
            producer_id: The same.
            written: Offset of the transaction's last batch in each partition.
        """
        self._look_at_all_metadata()
        if not self._is_complete(transactional_id):
            return
        for (topic, index), offset in sorted(written.items()):
            leader = self.leader_of(topic, index)
            if topic not in COMPARED or leader is None or not leader.knows_committed:
                continue
            node = self._cluster.nodes[self.image.topics[topic].partitions[index].leader]
            end = node.process.call(end_of_marker, leader.log, producer_id, offset)
            if end is None or end > leader.log.high_watermark:
                self._recorder.fail(
                    f"{leader.name}: the transaction of {transactional_id} is complete, its marker after {offset} ends "
                    f"at {end}, and {leader.log.high_watermark} is committed"
                )
            self._recorder.note("markers of a complete transaction judged")

    def _is_complete(self, transactional_id: str) -> bool:
        """Whether the coordinator, if it can be asked now, counts the last transaction of an id as complete."""
        topic = self.image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return False
        index = partition_for(transactional_id, len(topic.partitions))
        partition = self.leader_of(topic.name, index)
        if partition is None:
            return False
        driver = self._cluster.nodes[topic.partitions[index].leader].broker.transactions.drivers.get(index)
        if driver is None or driver.partition is not partition or driver.state is not DriverState.ACTIVE:
            return False
        transaction = driver.shard.transactions.get(transactional_id)
        return transaction is not None and transaction.state in COMPLETE

    def _look_at_all_metadata(self) -> None:
        for node in self._cluster.nodes.values():
            if node.is_up:
                node.process.call(self._look_at_metadata, node)

    def leader_of(self, topic: str, partition: int) -> LeaderReplica | None:
        """Return the replica that leads a partition in its newest epoch, if it does already, and still runs."""
        found = self.image.topics.get(topic)
        if found is None:
            return None
        state = found.partitions[partition]
        node = self._cluster.nodes.get(state.leader)
        if node is None or not node.is_up:
            return None
        replica = node.broker.replicas.leader(topic, partition)
        is_leader = isinstance(replica, LeaderReplica) and replica.leader_epoch == state.leader_epoch
        return replica if isinstance(replica, LeaderReplica) and is_leader else None

    def _look_at_transactions(self, brokers: list[SimulatedNode]) -> None:
        states = {
            transaction.state
            for node in brokers
            for shard in node.broker.transactions.shards()
            for transaction in shard.transactions.values()
        }
        self._has_open_transaction = State.ONGOING in states
        self._has_prepared_transaction = bool(PREPARED & states)

    # ------------------------------------------------------------------ the end

    def differences(self) -> Iterator[str]:
        """Tell in what the nodes differ, all of which run, and have nothing to do any more."""
        nodes = list(self._cluster.nodes.values())
        if not all(node.is_up for node in nodes):
            yield f"of {len(nodes)} nodes run {[node.node_id for node in nodes if node.is_up]}"
            return
        ends = {node.core.publisher.applied_end_offset for node in nodes}
        if len(ends) > 1:
            yield f"the nodes have applied the metadata up to {sorted(ends)}"
            return
        images = [{bytes(encode_record(record)) for record in node.core.image.to_records()} for node in nodes]
        for node, image in zip(nodes, images, strict=True):
            if image != images[0]:
                yield (
                    f"the metadata of {node.name} differs from that of {nodes[0].name}: {sorted(image ^ images[0])[:3]}"
                )
        for topic in nodes[0].core.image.topics.values():
            for state in topic.partitions:
                yield from self._differences_of(topic, state)

    def _differences_of(self, topic: TopicState, state: PartitionState) -> Iterator[str]:
        name = f"{topic.name}-{state.index}"
        if set(state.isr) != set(state.replicas) or state.leader == NO_LEADER or state.is_reassigning:
            yield f"{name}: {state}"
            return
        contents = {}
        for node_id in state.replicas:
            node = self._cluster.nodes[node_id]
            replica = node.broker.replicas.topics[topic.name][state.index]
            if not isinstance(replica, HostedReplica):
                yield f"{name}: no log on {node.name}"
                return
            contents[node_id] = node.process.call(_content, replica, with_batches=topic.name in COMPARED | {LOOSE})
        leader = contents[state.leader]
        for node_id, found in contents.items():
            if found != leader:
                what = [f"{key}: {found[key]} and {leader[key]}"[:400] for key in found if found[key] != leader[key]]
                yield f"{name}: node {node_id} differs from its leader {state.leader}: {'; '.join(what)}"


def _content(replica: HostedReplica, *, with_batches: bool) -> dict[str, Any]:
    """Return what all replicas of a partition must have in common when nothing is under way."""
    log = replica.log
    found: dict[str, Any] = {"committed": log.high_watermark, "end": log.log_end_offset}
    if not with_batches:
        return found
    batches, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, READ_BYTES, isolation=Isolation.LOG_END).to_bytes()
        before = offset
        for batch in iterate_batches(data, whole=False):
            header = batch.header
            batches.append((header.base_offset, header.leader_epoch, header.crc))
            offset = header.next_offset
        if offset == before:
            break
    found["batches"] = batches
    # An epoch in which nothing was written may be known to its leader alone.
    written = {epoch for _, epoch, _ in batches}
    found["leader epochs"] = [entry for entry in log.leader_epochs.entries if entry[0] in written]
    return found
