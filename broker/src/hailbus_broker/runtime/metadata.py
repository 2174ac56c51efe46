"""Opens what a node has of the cluster's metadata: snapshot, log, its replica of the quorum, the committed image."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.election_state import FILE_NAME, ElectionState, ElectionStateError
from hailbus_broker.cluster.raft.quorum import Quorum
from hailbus_broker.cluster.raft.raft import Raft
from hailbus_broker.cluster.raft.replicated_log import ReplicatedLog
from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, VoterHistory, VoterSet
from hailbus_broker.log import LogConfig
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import CorruptBatchError
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.metadata_log import MetadataLog
from hailbus_broker.runtime.metadata_publisher import MetadataPublisher
from hailbus_broker.runtime.metadata_quorum import MetadataQuorum
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
from hailbus_broker.runtime.peers import SOFTWARE_VERSION, Peers
from hailbus_broker.runtime.replay import read_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hailbus_broker.cluster.controller import Controller
    from hailbus_broker.log import StorageError
    from hailbus_broker.runtime.data_directory import DataDirectory
    from hailbus_broker.runtime.group_sync import GroupSync
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """What the configuration says about the quorum.

    Attributes:
        voters: Who votes, until the log says otherwise.
        endpoints: Where this node's controller listens.
        bootstrap: Where a node that knows no voter asks for the leader.
        timing: Timeouts.
        request_timeout_ms: Of requests between nodes.
    """

    voters: VoterSet
    endpoints: tuple[Endpoint, ...] = ()
    bootstrap: tuple[Endpoint, ...] = ()
    timing: RaftSettings = field(default_factory=RaftSettings)
    request_timeout_ms: int = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The parts, connected; `quorum.start(log)` begins.

    Attributes:
        publisher: Of the committed image: so far that of the newest snapshot.
        peers: Connections to other nodes.
    """

    log: MetadataLog
    quorum: MetadataQuorum
    publisher: MetadataPublisher
    peers: Peers

    async def close(self) -> None:
        """Take no part any more, and publish nothing."""
        await self.log.close()
        await self.quorum.close()
        await self.peers.close()


def open_metadata(
    settings: QuorumSettings,
    *,
    node_id: int,
    data: DataDirectory,
    machine: Machine,
    sync: GroupSync,
    threads: Threads,
    controller_of: Callable[[MetadataImage], Controller],
    report: Callable[[StorageError], None],
    stop: Callable[[Exception], None],
    bootstrap: Mapping[str, int] | None = None,
) -> Metadata:
    """Open what the data directory has.

    Args:
        settings: About the quorum.
        node_id: Of this node.
        data: Where the log is.
        machine: What the node runs on.
        sync: Brings the log to the disk, together with others.
        threads: Where files are read and written.
        controller_of: Makes the controller, from an image that it may change.
        report: Told when the machine failed.
        stop: Called with a reason when the node must not go on.
        bootstrap: Levels of features that a new cluster begins with; None if somebody else writes them.

    Raises:
        StartError: Something is damaged, or missing.
    """
    clock = machine.clock
    snapshots = MetadataSnapshots(machine.disk, data.metadata_path)
    newest = snapshots.newest()
    image = MetadataImage()
    history = VoterHistory(settings.voters)
    start_offset = 0
    if newest is not None:
        image.apply(snapshots.read(newest))
        image.version = start_offset = newest.end_offset
        history.learn(snapshots.changes(newest))
    log = data.open_metadata(LogConfig(retention_ms=-1), log_start_offset=start_offset, now_ms=clock.wall_ms())
    try:
        history.learn(control_records.read_changes(read_batches(log)))
    except (CorruptBatchError, ProtocolError) as error:
        raise StartError(f"cannot read the cluster's metadata: {error}; restore the file from a backup") from error
    replicated = ReplicatedLog(log, newest, wall_ms=clock.wall_ms)
    state_path = f"{data.metadata_path}/{FILE_NAME}"
    quorum = Quorum(
        replica=ReplicaKey(node_id, data.directory_id),
        cluster_id=data.cluster_id,
        log=replicated,
        state=_election_state(machine.disk.read_bytes(state_path), state_path),
        history=history,
        settings=settings.timing,
        chance=machine.random,
        endpoints=settings.endpoints,
        high_watermark=start_offset,
        now_ms=clock.now_ms(),
    )
    peers = Peers(
        f"node-{node_id}",
        software_version=SOFTWARE_VERSION,
        timeout_s=settings.request_timeout_ms / 1_000,
    )
    driver = MetadataQuorum(
        Raft(quorum, bootstrap=settings.bootstrap),
        replicated,
        snapshots,
        peers,
        save_election_state=partial(machine.disk.write_whole, state_path),
        sync=sync,
        threads=threads,
        clock=clock,
        request_timeout_s=settings.request_timeout_ms / 1_000,
        report=report,
        stop=stop,
    )
    peers.when_refused = driver.refused
    publisher = MetadataPublisher(image, start_offset, threads)
    metadata_log = MetadataLog(
        driver,
        controller_of(image.copy()),
        publisher,
        snapshots,
        clock=clock,
        threads=threads,
        stop=stop,
        bootstrap=bootstrap,
    )
    return Metadata(log=metadata_log, quorum=driver, publisher=publisher, peers=peers)


def _election_state(content: bytes | None, path: str) -> ElectionState:
    """Read what the replica must not forget.

    Raises:
        StartError: It is damaged.
    """
    if content is None:
        return ElectionState()
    try:
        return ElectionState.decode(content)
    except ElectionStateError as error:
        raise StartError(f"{path}: {error}; restore the file from a backup") from error
