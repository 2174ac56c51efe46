"""`hailbus-broker format`: make a data directory before the first start, to choose whose it is."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING
from uuid import UUID

from hailbus_broker import config
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, encode_snapshot
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.voters import DYNAMIC_VOTERS, Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.log import LogDirectory, MetaProperties, StorageError, decode_uuid, draw_uuid, encode_uuid
from hailbus_broker.log.log_directory import META_PROPERTIES, METADATA_LOG
from hailbus_broker.runtime.addresses import parse_names, parse_voters
from hailbus_broker.runtime.clock import SystemClock
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
from hailbus_broker.runtime.roles import node_id_of, node_roles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hailbus_broker.cluster.options import BrokerConfig


def format_directory(
    *,
    file_text: str | None,
    environment: Mapping[str, str],
    settings: Sequence[str],
    flags: Mapping[str, str],
    cluster_id: str | None,
    ignores_formatted: bool,
    is_alone: bool = False,
    initial_controllers: str | None = None,
) -> int:
    """Write meta.properties into the data directory, and who votes, if that is given.

    Args:
        file_text: Of a properties file.
        environment: Of the process.
        settings: NAME=VALUE each.
        flags: Settings that have flags of their own.
        cluster_id: None for a new one.
        ignores_formatted: Whether a formatted directory is left as it is.
        is_alone: Whether this controller is the only voter of a new quorum.
        initial_controllers: All voters of a new quorum, ID@HOST:PORT:DIRECTORY each.

    Raises:
        StartError: The directory is formatted already, or what is given makes no sense.
    """
    options = config.load(file_text=file_text, environment=environment, settings=settings, flags=flags)
    path, disk = options["log.dirs"], RealDisk()
    if disk.exists(f"{path}/{META_PROPERTIES}"):
        if ignores_formatted:
            sys.stdout.write(f"{path} is formatted already.\n")
            return 0
        raise StartError(
            f"{path} is formatted already; --ignore-formatted accepts that, another --data-dir is a new one"
        )
    rng = random.SystemRandom()
    if cluster_id is None:
        cluster_id = encode_uuid(draw_uuid(rng))
    elif not _is_uuid(cluster_id):
        raise StartError(f"--cluster-id {cluster_id} is not 22 characters of base64; without it a new one is made")
    node_id = node_id_of(options)
    directory_id = draw_uuid(rng)
    voters = None
    if is_alone or initial_controllers is not None:
        own = _own_endpoints(options, "--standalone" if is_alone else "--initial-controllers")
        if initial_controllers is None:
            voters = VoterSet([Voter(ReplicaKey(node_id, directory_id.bytes), own)])
        else:
            voters, directory_id = _initial_voters(initial_controllers, node_id, own[0].listener)
    meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    try:
        if voters is not None:
            # Before meta.properties, which make the directory a formatted one.
            _write_voters(disk, path, voters)
        LogDirectory.open(disk, path, new_meta=meta)
    except StorageError as error:
        raise StartError(f"cannot format {path}: {error}") from error
    sys.stdout.write(f"cluster_id={cluster_id}\nnode_id={node_id}\ndata_dir={path}\n")
    if voters is not None:
        sys.stdout.write(f"directory_id={encode_uuid(directory_id)}\n")
    return 0


def _own_endpoints(options: BrokerConfig, flag: str) -> tuple[Endpoint, ...]:
    """Return where this node's controller listens.

    Raises:
        StartError: The node is no controller, or the settings name the voters.
    """
    roles = node_roles(options)
    if roles.is_standalone or not roles.is_controller:
        raise StartError(f"{flag} is for a controller: add controller to process.roles, by --config or --set")
    if roles.quorum.voters:
        raise StartError(
            f"{flag} writes the voters into the log, and controller.quorum.voters names them, too: set "
            "controller.quorum.bootstrap.servers in its place"
        )
    return roles.quorum.endpoints


def _initial_voters(text: str, node_id: int, listener: str) -> tuple[VoterSet, UUID]:
    """Return the voters that a list names, and the directory id of this node.

    Raises:
        StartError: The list is malformed, or does not name this node.
    """
    voters: dict[int, Voter] = {}
    for item in parse_names(text):
        address, _, directory = item.rpartition(":")
        malformed = f"{item!r} is not ID@HOST:PORT:DIRECTORY"
        if not address:
            raise StartError(f"--initial-controllers: {malformed}")
        (voter,) = parse_voters(address, listener, "--initial-controllers", malformed)
        if not _is_uuid(directory):
            raise StartError(f"--initial-controllers: {directory!r} is no directory id, 22 characters of base64")
        if voter.key.node_id in voters:
            raise StartError(f"--initial-controllers names node {voter.key.node_id} twice")
        key = ReplicaKey(voter.key.node_id, decode_uuid(directory).bytes)
        voters[key.node_id] = Voter(key, voter.endpoints)
    own = voters.get(node_id)
    if own is None or own.key.directory_id is None:
        raise StartError(f"--initial-controllers does not name node {node_id}, which is to be formatted")
    return VoterSet(voters.values()), UUID(bytes=own.key.directory_id)


def _write_voters(disk: RealDisk, path: str, voters: VoterSet) -> None:
    """Write the snapshot with which the metadata log of a new quorum begins, as Apache Kafka does."""
    now_ms = SystemClock().wall_ms()
    quorum = control_records.quorum_state(DYNAMIC_VOTERS, voters)
    data = encode_snapshot([], timestamp=now_ms, now_ms=now_ms, quorum=quorum)
    directory = f"{path}/{METADATA_LOG}"
    disk.make_directory(directory)
    MetadataSnapshots(disk, directory).write(SnapshotId(0, 0), data)


def _is_uuid(text: str) -> bool:
    try:
        return encode_uuid(decode_uuid(text)) == text
    except ValueError:
        return False
