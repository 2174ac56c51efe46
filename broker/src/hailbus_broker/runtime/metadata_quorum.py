"""A replica of the metadata log on this node: carries out, in order, what the quorum's state machine wants."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.metadata.image import CLUSTER_METADATA_TOPIC
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
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    MAX_FETCH_BYTES,
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Request,
    SupportedVersionsRequest,
    UpdateVoterRequest,
    VoteRequest,
)
from hailbus_broker.cluster.raft.quorum import RaftError
from hailbus_broker.cluster.raft.roles import Follower
from hailbus_broker.log import Isolation, LogError, Origin, StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.group_sync import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.raft import Raft
    from hailbus_broker.cluster.raft.replicated_log import ReplicatedLog
    from hailbus_broker.cluster.raft.voters import Endpoint, VoterSet
    from hailbus_broker.log import PartitionLog, PendingSync
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import LeaderEpoch, Offset
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.group_sync import GroupSync
    from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
    from hailbus_broker.runtime.peers import Address, Peers
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

RETRY_S: Final = 0.1
"""Pause before a sync or a write is tried again for which there was no file descriptor."""
API_KEYS: Final[Mapping[type[Request], ApiKey]] = {
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    FetchRequest: ApiKey.FETCH,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
    AddVoterRequest: ApiKey.ADD_RAFT_VOTER,
    RemoveVoterRequest: ApiKey.REMOVE_RAFT_VOTER,
    UpdateVoterRequest: ApiKey.UPDATE_RAFT_VOTER,
    SupportedVersionsRequest: ApiKey.API_VERSIONS,
}


def _wire() -> ModuleType:
    """Return the module that knows the protocol's messages; a node that is alone never loads them."""
    from hailbus_broker.cluster.raft import wire

    return wire


class _Caller(NamedTuple):
    """A request of another node, and how it is answered."""

    request: Request
    respond: Callable[[Message], object]


class QuorumListener(Protocol):
    """What acts on the quorum's decisions."""

    def committed(self, high_watermark: Offset) -> None:
        """Everything below an offset is committed."""
        ...

    def loaded(self, snapshot: SnapshotId) -> None:
        """The log was replaced by a snapshot, which is on the disk."""
        ...

    def leads(self, epoch: LeaderEpoch, from_offset: Offset) -> None:
        """This node leads; see `Leads`."""
        ...

    def follows(self, leader_id: int | None) -> None:
        """Another node leads, or nobody is known to."""
        ...


class MetadataQuorum:
    """The replica of this node. It must be started once, by `start`.

    Args:
        raft: Decides.
        log: The replica's log.
        snapshots: On the disk.
        peers: The other nodes.
        save_election_state: Writes the file `quorum-state` so that it lasts, in a thread.
        sync: Brings the log to the disk, together with others.
        threads: Where files are read and written.
        clock: Time.
        request_timeout_s: Of requests to the other voters.
        report: Told when the machine failed: this replica takes no part in the quorum any more.
        stop: Called with a reason when the quorum's promises do not hold any more.

    Attributes:
        lane: Of the group sync.
        failure: Why the replica takes no part any more.
        is_of_other_cluster: Whether the node that was asked last belongs to another cluster.
    """

    name: Final = f"{CLUSTER_METADATA_TOPIC}-0"
    lane: Final = sum(name.encode()) % LANES

    def __init__(
        self,
        raft: Raft,
        log: ReplicatedLog,
        snapshots: MetadataSnapshots,
        peers: Peers,
        *,
        save_election_state: Callable[[bytes], None],
        sync: GroupSync,
        threads: Threads,
        clock: Clock,
        request_timeout_s: float,
        report: Callable[[StorageError], None],
        stop: Callable[[Exception], None],
    ) -> None:
        self.raft: Final = raft
        self.replicated: Final = log
        self._snapshots: Final = snapshots
        self._peers: Final = peers
        self._save_election_state: Final = save_election_state
        self._sync: Final = sync
        self._threads: Final = threads
        self._clock: Final = clock
        self._request_timeout_s: Final = request_timeout_s
        self._report: Final = report
        self._stop: Final = stop
        self._loop: Final = asyncio.get_running_loop()
        self._effects: Final[deque[Effect]] = deque()
        self._is_waiting = False
        self._is_carrying_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._tasks: Final[dict[asyncio.Task[None], None]] = {}
        self._sync_waiters: Final[list[asyncio.Future[None]]] = []
        self._is_closed = False
        self._listener: QuorumListener
        self.failure: Exception | None = None
        self.is_of_other_cluster = False

    # ------------------------------------------------------------------ what others ask

    @property
    def log(self) -> PartitionLog:
        """The log of `__cluster_metadata`."""
        return self.replicated.log

    @property
    def leader_id(self) -> int | None:
        """The node that leads, as far as this one knows."""
        return self.raft.quorum.leader_id

    @property
    def leader_endpoint(self) -> Endpoint | None:
        """Where the leader listens; None if this node leads, or knows no leader."""
        role = self.raft.quorum.role
        return role.endpoint if isinstance(role, Follower) else None

    @property
    def voters(self) -> VoterSet:
        """The voters as this replica's log, or the configuration, has them."""
        return self.raft.quorum.history.current

    @property
    def epoch(self) -> LeaderEpoch:
        """The newest epoch that this replica knows of."""
        return self.raft.quorum.epoch

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.failure is None and isinstance(self.raft.quorum.role, Leader)

    @property
    def high_watermark(self) -> Offset:
        """Everything below it is committed."""
        return self.raft.quorum.high_watermark

    # ------------------------------------------------------------------ input

    def start(self, listener: QuorumListener) -> None:
        """Begin to take part; the listener acts on what is decided."""
        self._listener = listener
        self._carry_out()

    def append(self, batch: bytearray) -> Offset:
        """Append a batch of the controller; this node leads.

        Returns:
            The log's end after it.

        Raises:
            ApiError: NOT_CONTROLLER: this node does not lead.
            StorageError: The machine failed, or did before.
        """
        if self.failure is not None:
            raise StorageError(f"the metadata log takes no records: {self.failure}", path=self.name)
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")
        try:
            result = self.log.append(
                batch, now_ms=self._clock.wall_ms(), leader_epoch=self.epoch, origin=Origin.COORDINATOR
            )
        except StorageError as error:
            self._failed(error)
            raise
        self._input(lambda: self.raft.appended(self._clock.now_ms()))
        return result.last_offset + 1

    def receive(self, message: Message, respond: Callable[[Message], object]) -> None:
        """Take in a request of another node, and respond to it sooner or later.

        Raises:
            ApiError: It is about something else than the metadata partition alone, or this replica has failed.
        """
        request = _wire().decode_request(message)
        if self.failure is not None or self._is_closed:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"This replica takes no part any more: {self.failure}")
        self._input(lambda: self.raft.request(request, _Caller(request, respond), self._clock.now_ms()))

    def upgrade_kraft_version(self, level: int, *, is_only_checked: bool = False) -> None:
        """Append a level of `kraft.version`, and the voters with it; this node leads.

        Raises:
            ApiError: INVALID_UPDATE_VERSION, with the reason; NOT_CONTROLLER: this node does not lead.
            StorageError: The machine failed, or did before.
        """
        if self.failure is not None:
            raise StorageError(f"the metadata log takes no records: {self.failure}", path=self.name)
        now_ms = self._clock.now_ms()
        self._input(lambda: self.raft.upgrade_kraft_version(level, now_ms, is_only_checked=is_only_checked))

    def refused(self, address: Address) -> None:
        """A connection to an address was lost, and nobody listens there any more."""
        role = self.raft.quorum.role
        if isinstance(role, Follower) and (role.endpoint.host, role.endpoint.port) == address:
            self._input(lambda: self.raft.leader_refuses_connections(role.leader_id, self._clock.now_ms()))

    def resign(self) -> None:
        """Lead no more: this node is about to stop."""
        self._input(lambda: self.raft.resign(self._clock.now_ms()))

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        """A snapshot is on the disk, from which a replica that is far behind can go on."""
        self.replicated.latest_snapshot = snapshot
        self.raft.quorum.history.forget_before(snapshot.end_offset)

    def refuse(self, error: StorageError) -> None:
        """The data directory is offline: take no part any more."""
        if self.failure is None:
            self.failure = error
            self._effects.clear()
            self._cancel_timer()
            self._tell_synced(error)

    async def sync(self) -> None:
        """Wait until everything that was written is on the disk, at this moment.

        Raises:
            Exception: Why it will never be.
        """
        while self.log.is_dirty or not self.raft.quorum.is_on_disk:
            if self.failure is not None:
                raise self.failure
            done = self._loop.create_future()
            self._sync_waiters.append(done)
            self._sync.mark(self)
            await done

    @property
    def has_effects_left(self) -> bool:
        """Whether something that the state machine has decided is still to be done."""
        return self._is_waiting or bool(self._effects)

    async def close(self) -> None:
        """Take no part any more."""
        self._is_closed = True
        self._cancel_timer()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _input(self, step: Callable[[], None]) -> None:
        """Give the state machine something, and do what it wants then."""
        if self.failure is not None or self._is_closed:
            return
        try:
            step()
        except StorageError as error:
            self._failed(error)
        except RaftError as error:
            log.critical("quorum_broken", error=str(error), advice="two nodes have decided otherwise: keep all data")
            self.failure = error
            self._effects.clear()
            self._stop(error)
        else:
            self._carry_out()

    def _failed(self, error: StorageError) -> None:
        self._report(error)
        if not error.is_out_of_descriptors:
            self.refuse(error)

    # ------------------------------------------------------------------ effects

    def _carry_out(self) -> None:
        self._effects.extend(self.raft.take_effects())
        if self._is_carrying_out:
            return  # an effect has led to another input
        self._is_carrying_out = True
        try:
            while self._effects and not self._is_waiting and self.failure is None:
                self._do(self._effects.popleft())
        finally:
            self._is_carrying_out = False
        if self.failure is not None:
            return
        if self.log.is_dirty:
            self._sync.mark(self)
        self._wait_for_deadline()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Persist():
                history, state = self.raft.quorum.history, effect.state
                content = state.encode(history.kraft_version, history.current.ids)
                voted_id = None if state.voted is None else state.voted.node_id
                fields = {"epoch": state.epoch, "leader_id": state.leader_id, "voted_id": voted_id}
                # Only what is on disk binds the node after a crash.
                self._wait_for(
                    partial(self._save_election_state, content), partial(log.debug, "election_state_changed", **fields)
                )
            case Send():
                self._spawn(self._ask(effect), "quorum-request")
            case Reply():
                self._reply(effect)
            case Committed():
                self.log.advance_high_watermark(effect.high_watermark)
                self._listener.committed(effect.high_watermark)
            case InstallSnapshot():
                self._is_waiting = True
                self._spawn(self._install(effect), "quorum-snapshot")
            case Leads():
                self._listener.leads(effect.epoch, effect.from_offset)
            case Follows():
                self._listener.follows(effect.leader_id)

    def _wait_for(self, work: Callable[[], None], then: Callable[[], object]) -> None:
        """Let a thread do something, and do the next thing when that is done, before anything else happens."""
        self._is_waiting = True

        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, StorageError) and error.is_out_of_descriptors:
                self._report(error)
                self._loop.call_later(RETRY_S, self._threads.submit, work, done)
                return
            self._is_waiting = False
            if isinstance(error, StorageError):
                self._failed(error)
            elif error is not None:
                raise error
            else:
                then()
                if self.failure is None and not self._is_closed:
                    self._carry_out()

        self._threads.submit(work, done)

    def _spawn(self, coroutine: Any, name: str) -> None:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _ask(self, effect: Send) -> None:
        key, wire = API_KEYS[type(effect.request)], _wire()
        try:
            is_about_versions = isinstance(effect.request, SupportedVersionsRequest)
            request = self._peers.hello() if is_about_versions else wire.encode_request(effect.request)
            message = await self._peers.ask(effect.endpoint, key, request, timeout_s=self._request_timeout_s)
            response = wire.decode_response(message)
        except (UnreachableError, ApiError) as error:
            log.debug("quorum_request_failed", api=key.name, to=effect.to, error=str(error))
            self._input(lambda: self.raft.failed(effect.number, self._clock.now_ms()))
        else:
            self.is_of_other_cluster = response.request_error is ErrorCode.INCONSISTENT_CLUSTER_ID
            self._input(lambda: self.raft.response(effect.number, response, self._clock.now_ms()))

    # ------------------------------------------------------------------ replies

    def _reply(self, effect: Reply) -> None:
        caller, response = effect.token, effect.response
        assert isinstance(caller, _Caller)
        request, respond = caller
        if isinstance(response, FetchResponse) and response.records_from is not None:
            self._spawn(self._send_records(request, response, response.records_from, respond), "quorum-fetch")
        elif isinstance(response, FetchSnapshotResponse) and response.error is ErrorCode.NONE:
            self._spawn(self._send_snapshot(request, response, respond), "quorum-fetch-snapshot")
        else:
            respond(_wire().encode_response(request, response))

    async def _send_records(
        self, request: Request, response: FetchResponse, offset: Offset, respond: Callable[[Message], object]
    ) -> None:
        """Answer a fetch with records; they are this leader's only as long as it leads the epoch."""
        data = b""
        error = ErrorCode.NONE
        try:
            found = self.log.read(offset, MAX_FETCH_BYTES, isolation=Isolation.LOG_END)
            data = found.to_bytes() if found.file_slice is None else await self._threads.run(found.to_bytes)
        except LogError as raised:
            error = ErrorCode[raised.error_name]
        if not self.is_leader or self.epoch != response.leadership.leader_epoch:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is not ErrorCode.NONE:
            refusal = FetchResponse(leadership=self.raft.quorum.leadership, error=error)
            respond(_wire().encode_response(request, refusal))
            return
        respond(_wire().encode_response(request, replace(response, records=data)))

    async def _send_snapshot(
        self, request: Request, response: FetchSnapshotResponse, respond: Callable[[Message], object]
    ) -> None:
        snapshot, position = response.snapshot, response.position
        read = partial(self._snapshots.read_part, snapshot, position, MAX_FETCH_BYTES)
        try:
            size, data = await self._threads.run(read)
        except StorageError as error:
            log.warning("snapshot_not_read", snapshot=snapshot.file_name, error=str(error))
            size, data = -1, b""
        if size < 0:
            answer = replace(response, error=ErrorCode.SNAPSHOT_NOT_FOUND)
        elif not 0 <= position < size:
            answer = replace(response, error=ErrorCode.POSITION_OUT_OF_RANGE)
        else:
            answer = replace(response, size=size, data=data)
        respond(_wire().encode_response(request, answer))

    # ------------------------------------------------------------------ snapshots of the leader

    async def _install(self, effect: InstallSnapshot) -> None:
        """Replace the log by a snapshot: first the snapshot is on the disk, then the log begins anew behind it."""
        snapshot = effect.snapshot
        try:
            changes = await self._threads.run(partial(self._snapshots.install, snapshot, effect.data))
            self.log.restart_at(snapshot.end_offset, now_ms=self._clock.wall_ms())
        except (RecordsError, ProtocolError) as error:
            log.error("metadata_snapshot_refused", snapshot=snapshot.file_name, error=str(error))
            self._is_waiting = False
            self._input(lambda: self.raft.snapshot_refused(self._clock.now_ms()))
            return
        except StorageError as error:
            self._is_waiting = False
            self._failed(error)
            return
        self.replicated.latest_snapshot = snapshot
        self._is_waiting = False
        log.info("metadata_snapshot_installed", snapshot=snapshot.file_name, bytes=len(effect.data))
        self.log.advance_high_watermark(snapshot.end_offset)
        self._listener.loaded(snapshot)
        self._input(lambda: self.raft.snapshot_installed(snapshot, changes, self._clock.now_ms()))

    # ------------------------------------------------------------------ syncs and time

    def synced(self, pending: PendingSync | None, error: StorageError | None = None) -> None:
        """A sync has ended; see `GroupSync`."""
        if pending is not None:
            if error is not None and error.is_out_of_descriptors:
                self.log.retry_sync(pending)
                self._report(error)
                self._sync.call_later(RETRY_S, lambda: self._sync.mark(self))
                return
            try:
                self.log.finish_sync(pending, error)
            except StorageError as failure:
                self._failed(failure)
                return
        self._tell_synced(None)
        self._input(lambda: self.raft.synced(self._clock.now_ms()))

    def _tell_synced(self, error: Exception | None) -> None:
        waiters, self._sync_waiters[:] = list(self._sync_waiters), []
        for done in waiters:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _wait_for_deadline(self) -> None:
        deadline_ms = self.raft.deadline_ms()
        if deadline_ms is None:
            self._cancel_timer()
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # it comes early, and is set again then
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._clock.now_ms(), 1) / 1000
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self._input(lambda: self.raft.tick(self._clock.now_ms()))
