"""Fetches the records of partitions that other brokers lead, and stores them: one task for each of these brokers.

The decisions are in `cluster.replication.fetcher`. A task sends a fetch, writes what it brings to the logs, waits until
that is on the disk, and only then sends the next one, whose offsets acknowledge it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.replication.fetcher import (
    Diverged,
    Fetched,
    Fetcher,
    FetcherSettings,
    OutOfRange,
    Refused,
    truncation_offset,
)
from hailbus_broker.log import LogError, SwapRunningError, UnexpectedAppendOffsetError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordsError, iterate_batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.cluster.replication.fetcher import Action
    from hailbus_broker.protocol.schema import Message, Uuid
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.replica import FollowerReplica

    Key: TypeAlias = tuple[Uuid, int]

log: Any = get_logger()

RESPONSE_TIMEOUT_S: Final = 30.0
"""How long a leader may take beyond `replica.fetch.wait.max.ms`: `replica.socket.timeout.ms` of Apache Kafka."""
UNREACHABLE_PAUSE_S: Final = 0.1
"""Before a leader that does not answer is asked again."""

_PASSING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Refusals that end when both brokers have the same metadata."""

_LATEST: Final = -1
_EARLIEST: Final = -2


class Asks(Protocol):
    """Sends requests to other nodes, as `Peers` does."""

    async def ask(self, endpoint: Endpoint, key: ApiKey, message: Message, *, timeout_s: float | None = None) -> Any:
        """Send a request and wait for its response.

        Raises:
            UnreachableError: No response came.
        """
        ...

    def drop(self, endpoint: Endpoint) -> None:
        """Close the connection to a node; what waits there fails."""
        ...


class ReplicaFetchers:
    """All fetchers of a node, by the broker that leads.

    Args:
        node_id: Of this node.
        config: Its settings.
        peers: Sends the fetches, over connections that nothing else uses.
        endpoint_of: Returns where a broker listens for others; None if that is not known.
        broker_epoch: Returns the epoch of this node's registration.
        clock: Measures pauses.
        truncate: Cuts a replica's log, so that it lasts before the log takes more records.
        checkpoint: Makes log start offsets last; takes the node offline if that fails.
        spawn: Runs the fetchers in the background.
    """

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        peers: Asks,
        endpoint_of: Callable[[int], Endpoint | None],
        broker_epoch: Callable[[], int],
        clock: Clock,
        truncate: Callable[[FollowerReplica, int], Awaitable[None]],
        checkpoint: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self.node_id: Final = node_id
        self.peers: Final = peers
        self.endpoint_of: Final = endpoint_of
        self.broker_epoch: Final = broker_epoch
        self.clock: Final = clock
        self.truncate: Final = truncate
        self.checkpoint: Final = checkpoint
        self._config: Final = config
        self._spawn: Final = spawn
        self._by_leader: Final[dict[int, LeaderFetcher]] = {}

    def follow(self, replica: FollowerReplica) -> None:
        """Begin to fetch for a replica from its leader, if it has one."""
        if replica.leader_id < 0:
            return
        fetcher = self._by_leader.get(replica.leader_id)
        if fetcher is None:
            fetcher = self._by_leader[replica.leader_id] = LeaderFetcher(self, replica.leader_id, self._settings())
            self._spawn(fetcher.run(), f"fetcher-{replica.leader_id}")
        fetcher.add(replica)

    def leave(self, replica: FollowerReplica) -> None:
        """Stop to fetch for a replica."""
        fetcher = self._by_leader.get(replica.leader_id)
        if fetcher is not None:
            fetcher.remove(replica)

    def _settings(self) -> FetcherSettings:
        config = self._config
        return FetcherSettings(
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.max.bytes"],
            response_max_bytes=config["replica.fetch.response.max.bytes"],
            wait_max_ms=config["replica.fetch.wait.max.ms"],
            backoff_ms=config["replica.fetch.backoff.ms"],
        )


class LeaderFetcher:
    """Fetches what one broker leads.

    Args:
        parent: What all fetchers of the node share.
        leader_id: The broker.
        settings: Of the fetches.
    """

    def __init__(self, parent: ReplicaFetchers, leader_id: int, settings: FetcherSettings) -> None:
        self._parent: Final = parent
        self._leader_id: Final = leader_id
        self._fetcher: Final = Fetcher(parent.node_id, settings)
        self._timeout_s: Final = settings.wait_max_ms / 1_000 + RESPONSE_TIMEOUT_S
        self._replicas: Final[dict[Key, FollowerReplica]] = {}
        self._refusals: Final[dict[Key, ErrorCode]] = {}
        """What was logged for a partition that the leader refuses; the next fetch that it answers ends it."""
        self._has_changed: Final = asyncio.Event()
        self._asked: Endpoint | None = None
        """Where a request is under way."""

    def add(self, replica: FollowerReplica) -> None:
        """Fetch for a replica, beginning with the next request."""
        key = (replica.topic_id, replica.index)
        self._replicas[key] = replica
        partition_log = replica.log
        self._fetcher.add(
            key,
            leader_epoch=replica.leader_epoch,
            offset=partition_log.log_end_offset,
            last_fetched_epoch=partition_log.leader_epochs.latest,
            log_start_offset=partition_log.log_start_offset,
        )
        if replica.stored_offset < partition_log.log_end_offset:
            # Its offset would acknowledge what is not on the disk: the log had another role, or a sync is under way.
            replica.flush()
            self._fetcher.pause(key, now_ms=self._parent.clock.now_ms())
        self._has_changed.set()
        if self._asked is not None:
            # The leader may keep the request until `replica.fetch.wait.max.ms` is over. Producers that wait for all
            # in-sync replicas of the new partition would wait as long.
            self._parent.peers.drop(self._asked)
            self._asked = None

    def remove(self, replica: FollowerReplica) -> None:
        """Do not fetch for a replica any more."""
        key = (replica.topic_id, replica.index)
        if self._replicas.get(key) is replica:
            del self._replicas[key]
            self._fetcher.remove(key)
            self._refusals.pop(key, None)

    async def run(self) -> None:
        """Fetch for as long as the node runs."""
        clock = self._parent.clock
        while True:
            self._has_changed.clear()
            request = self._next_request()
            if request is None:
                resumes_at_ms = self._fetcher.resumes_at_ms()
                wait_s = None if resumes_at_ms is None else max(0, resumes_at_ms - clock.now_ms()) / 1_000
                await self._wait(wait_s)
                continue
            endpoint = self._parent.endpoint_of(self._leader_id)
            try:
                if endpoint is None:
                    raise UnreachableError(f"the address of broker {self._leader_id} is not known")
                self._asked = endpoint
                response = await self._parent.peers.ask(endpoint, ApiKey.FETCH, request, timeout_s=self._timeout_s)
            except UnreachableError as error:
                log.debug("leader_unreachable", leader_id=self._leader_id, error=str(error))
                self._fetcher.failed()
                await self._wait(UNREACHABLE_PAUSE_S)
                continue
            finally:
                self._asked = None
            await self._act(self._fetcher.received(response, now_ms=clock.now_ms()))

    def _next_request(self) -> Any:
        now_ms = self._parent.clock.now_ms()
        for key, replica in self._replicas.items():
            if replica.stored_offset < replica.log.log_end_offset:
                self._fetcher.pause(key, now_ms=now_ms)
        return self._fetcher.request(broker_epoch=self._parent.broker_epoch(), now_ms=now_ms)

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until there are other partitions, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_changed.wait()
        except TimeoutError:
            pass

    async def _act(self, actions: list[Action]) -> None:
        """Carry out what a response asks for; return when all that it brought is stored."""
        fetched: dict[Key, FollowerReplica] = {}
        written: dict[Key, FollowerReplica] = {}
        for action in actions:
            replica = self._replicas.get(action.key)
            if replica is None:
                continue  # another role began while this response was worked on
            try:
                match action:
                    case Fetched():
                        fetched[action.key] = replica
                        self._refusals.pop(action.key, None)
                        if self._store(replica, action):
                            written[action.key] = replica
                    case Diverged():
                        await self._truncate(replica, action)
                    case OutOfRange():
                        await self._reset(replica)
                    case Refused(code=code):
                        self._refused(replica, action.key, code)
            except SwapRunningError:
                self._pause(action.key)  # compaction renames the log's files: it has ended soon
            except (LogError, RecordsError) as error:
                if self._replicas.get(action.key) is replica:
                    pause_ms = self._pause(action.key)
                    log.error("replica_not_written", partition=replica.name, error=str(error), pause_ms=pause_ms)
        if written:
            await self._stored(written)
            for key, replica in written.items():
                self._moved(key, replica)
        await self._follow_log_starts(fetched)

    async def _follow_log_starts(self, fetched: dict[Key, FollowerReplica]) -> None:
        """Begin logs where the leader's begin. The next fetch tells the leader, so a crash must not undo it."""
        changed = {key: replica for key, replica in fetched.items() if self._is_ours(key, replica)}
        changed = {key: replica for key, replica in changed.items() if replica.follow_log_start()}
        if changed:
            await self._parent.checkpoint()
            for key, replica in changed.items():
                self._moved(key, replica)

    def _is_ours(self, key: Key, replica: FollowerReplica) -> bool:
        return self._replicas.get(key) is replica

    def _refused(self, replica: FollowerReplica, key: Key, code: ErrorCode) -> None:
        """Log a refusal: once until the leader answers again, unless it passes by itself."""
        where = {"partition": replica.name, "leader_id": self._leader_id, "error": code.name}
        if code in _PASSING:
            log.debug("fetch_refused", **where)
        elif self._refusals.get(key) is not code:
            self._refusals[key] = code
            log.warning("fetch_refused", **where)

    def _pause(self, key: Key) -> int:
        return self._fetcher.pause(key, now_ms=self._parent.clock.now_ms())

    def _moved(self, key: Key, replica: FollowerReplica, *, is_done: bool = True) -> None:
        if self._replicas.get(key) is replica and replica.error is None:
            self._fetcher.moved(
                key,
                offset=replica.log.log_end_offset,
                last_fetched_epoch=replica.log.leader_epochs.latest,
                log_start_offset=replica.log.log_start_offset,
                is_done=is_done,
            )

    # ------------------------------------------------------------------ records

    def _store(self, replica: FollowerReplica, fetched: Fetched) -> bool:
        """Write records to the log, and take over how far the leader is.

        Returns:
            Whether there were records.
        """
        now_ms = self._parent.clock.wall_ms()
        records = whole_batches(fetched.records)
        for part in in_segments(records, replica.log.config.segment_bytes):
            try:
                replica.append(part, now_ms=now_ms)
            except UnexpectedAppendOffsetError:
                first, partition_log = next(iterate_batches(part)).header, replica.log
                is_empty = partition_log.log_start_offset == partition_log.log_end_offset
                if not is_empty or first.next_offset <= partition_log.log_end_offset:
                    raise
                # The leader's log starts within a batch, and so would this one, which is empty.
                partition_log.restart_at(first.base_offset, now_ms=now_ms)
                replica.append(part, now_ms=now_ms)
        replica.commit(fetched.high_watermark)
        replica.leader_log_start_offset = fetched.log_start_offset
        return bool(records)

    async def _stored(self, written: dict[Key, FollowerReplica]) -> None:
        """Wait until replicas have stored what was appended to them, or never will."""
        done = asyncio.get_running_loop().create_future()
        left = len(written)

        def finish(_: Exception | None) -> None:
            nonlocal left
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        for replica in written.values():
            replica.when_stored(finish)
        await done

    # ------------------------------------------------------------------ truncation

    async def _truncate(self, replica: FollowerReplica, diverged: Diverged) -> None:
        """Drop what the leader does not have."""
        partition_log = replica.log
        before, high_watermark = partition_log.log_end_offset, partition_log.high_watermark
        offset = truncation_offset(
            partition_log.end_offset_for_epoch(diverged.epoch), (diverged.epoch, diverged.end_offset), before
        )
        await self._parent.truncate(replica, offset)
        if offset < high_watermark:
            log.warning(
                "truncated_below_high_watermark",
                partition=replica.name,
                offset=offset,
                high_watermark=high_watermark,
                reason="the leader was elected although it may miss committed records",
            )
        if offset < before:
            log.info("replica_truncated", partition=replica.name, offset=offset, log_end_offset=before)
        self._moved(diverged.key, replica)

    async def _reset(self, replica: FollowerReplica) -> None:
        """The leader's log does not have the end of this one: cut this one, or begin it where the leader's starts."""
        key = (replica.topic_id, replica.index)
        try:
            end_offset = await self._list_offset(replica, _LATEST)
            start_offset = await self._list_offset(replica, _EARLIEST)
        except UnreachableError as error:
            pause_ms = self._pause(key)
            log.info("leader_offsets_unknown", partition=replica.name, error=str(error), pause_ms=pause_ms)
            return
        if self._replicas.get(key) is not replica:
            return
        before = replica.log.log_end_offset
        if end_offset < before:
            await self._parent.truncate(replica, end_offset)
        elif start_offset > before:
            replica.log.restart_at(start_offset, now_ms=self._parent.clock.wall_ms())
            await self._parent.truncate(replica, start_offset)  # for its checkpoint
        else:
            self._pause(key)  # the leader's log has grown since
        log.warning(
            "replica_reset",
            partition=replica.name,
            log_end_offset=before,
            leader_log_start_offset=start_offset,
            leader_log_end_offset=end_offset,
            new_log_end_offset=replica.log.log_end_offset,
        )
        self._moved(key, replica, is_done=False)

    async def _list_offset(self, replica: FollowerReplica, timestamp: int) -> int:
        """Ask the leader where its log starts or ends.

        Raises:
            UnreachableError: It does not say.
        """
        endpoint = self._parent.endpoint_of(self._leader_id)
        if endpoint is None:
            raise UnreachableError(f"the address of broker {self._leader_id} is not known")
        asked = ListOffsetsPartition(
            partition_index=replica.index, current_leader_epoch=replica.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._parent.node_id, topics=[ListOffsetsTopic(name=replica.topic, partitions=[asked])]
        )
        response = await self._parent.peers.ask(endpoint, ApiKey.LIST_OFFSETS, request, timeout_s=RESPONSE_TIMEOUT_S)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise UnreachableError(f"the leader refuses: {ErrorCode(answer.error_code).name}")
        return int(answer.offset)


def whole_batches(records: bytes | memoryview) -> memoryview:
    """Return the records up to the last batch that is whole: a leader may cut an answer anywhere."""
    data = memoryview(records)
    end = 0
    for batch in iterate_batches(data, whole=False):
        end += batch.size_bytes
    return data[:end]


def in_segments(records: memoryview, segment_bytes: int) -> Iterator[memoryview]:
    """Divide batches into runs that fit into a segment each; a batch that does not is a run by itself."""
    start = end = 0
    for batch in iterate_batches(records):
        if end > start and end + batch.size_bytes - start > segment_bytes:
            yield records[start:end]
            start = end
        end += batch.size_bytes
    if end > start:
        yield records[start:end]
