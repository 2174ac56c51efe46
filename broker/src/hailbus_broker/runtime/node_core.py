"""What the roles of a node share: its data directory, its threads and tasks, and its replica of the metadata."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hailbus_broker.cluster.controller import Controller
from hailbus_broker.cluster.features import SUPPORTED
from hailbus_broker.cluster.metadata.image import ResourceType
from hailbus_broker.log import StorageError, TailCache
from hailbus_broker.log.log_directory import NO_BROKER_EPOCH
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.data_directory import DataDirectory
from hailbus_broker.runtime.errors import StartError, TaskFailedError
from hailbus_broker.runtime.group_sync import LANES, GroupSync
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.metadata import Metadata, QuorumSettings, open_metadata
from hailbus_broker.runtime.roles import node_id_of, node_roles

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.controller_channel import OwnController
    from hailbus_broker.runtime.controller_role import ControllerRole

log: Any = get_logger()

T = TypeVar("T")

TAIL_CACHE_BYTES: Final = 32 * 1024 * 1024
WORK_THREADS: Final = 6
"""For what waits for the disk and is not a sync: reads of cold segments, checkpoints, compaction, removals."""
WARNING_INTERVAL_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address that this node listens on, and the one that it advertises to clients."""

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int


class NodeCore:
    """The part of a node that stands before its roles, as broker or controller, and after them.

    Args:
        config: The node's settings.
        machine: What it runs on; None is the process's own.

    Attributes:
        roles: What the node is in its cluster.
        listeners: Where clients of the node connect.
        controller_listeners: Where a controller listens that is a broker, too.
        failure: Why the data directory is offline: nothing is written to it before the next start.
        reason_to_stop: Why the node must not go on; `when_unfit` is called then.
        when_offline: Called with the failure.
        own_controller: Serves the requests of this node to its own controller.
        check_room: Called with records before they are written; raises an ApiError if this node has no room for them.
        controller_role: What the node does as a controller; None for one that is none, and for a cluster of one.
        broker_epoch: Of the node as a broker of a cluster; -1 for none.
    """

    def __init__(self, config: BrokerConfig, *, machine: Machine | None = None) -> None:
        self.config: Final = config
        self.machine: Final = machine or Machine()
        self.clock: Final = self.machine.clock
        self.disk: Final = self.machine.disk
        self.rng: Final = self.machine.random
        self.roles: Final = node_roles(config)
        self.node_id: Final[int] = node_id_of(config)
        self.listeners: Final[list[Listener]] = []
        self.controller_listeners: Final[list[Listener]] = []
        self.failure: StorageError | None = None
        self.reason_to_stop: Exception | None = None
        self.when_unfit: Callable[[], object] = lambda: None
        self.when_offline: Callable[[StorageError], object] = lambda _: None
        self.own_controller: OwnController | None = None
        self.check_room: Callable[[Sequence[Message]], object] = lambda _: None
        self.controller_role: ControllerRole | None = None
        self.broker_epoch = NO_BROKER_EPOCH
        self._background: Final[dict[asyncio.Task[Any], None]] = {}
        self._parts: Metadata | None = None
        self.controller: Controller
        self._is_stopping = False
        self._last_warning_ms: int | None = None

    # ------------------------------------------------------------------ start and stop

    def open(self) -> None:
        """Take the data directory, and start threads.

        Raises:
            StartError: The directory cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        self.threads = self.machine.start_threads(WORK_THREADS, "work")
        self.sync = GroupSync(self.loop, self.machine.start_threads(LANES, "sync"))
        self.tail_cache = TailCache(TAIL_CACHE_BYTES)
        self.data = DataDirectory(
            self.disk,
            self.config["log.dirs"],
            node_id=self.node_id,
            rng=self.rng,
            tail_cache=self.tail_cache,
            is_of_cluster=not self.roles.is_standalone,
        )
        self.cluster_id = self.data.cluster_id

    def join_quorum(self, settings: QuorumSettings) -> None:
        """Take part in the quorum of the metadata.

        Raises:
            StartError: The metadata is damaged.
        """

        def controller_of(image: MetadataImage) -> Controller:
            self.controller = Controller(
                image, self.config, node_id=self.node_id, directory_id=self.data.directory_id, chance=self.rng
            )
            return self.controller

        self._parts = parts = open_metadata(
            settings,
            node_id=self.node_id,
            data=self.data,
            machine=self.machine,
            sync=self.sync,
            threads=self.threads,
            controller_of=controller_of,
            report=self.take_offline,
            stop=self.become_unfit,
            bootstrap=None if self.roles.is_standalone else {name: last for name, (_, last) in SUPPORTED.items()},
        )
        self.metadata, self.publisher = parts.log, parts.publisher
        self.spawn_vital(self.publisher.run(), "metadata-publisher")
        parts.quorum.start(self.metadata)
        snapshot_interval_ms = self.config["metadata.log.max.snapshot.interval.ms"]
        if snapshot_interval_ms:
            self.every(snapshot_interval_ms, self._snapshot_at_interval)

    async def until_active(self) -> None:
        """Wait until this node's controller decides.

        Raises:
            StartError: The metadata cannot be read or written.
        """
        try:
            await self.metadata.until_active()
        except (StorageError, RecordsError, ProtocolError) as error:
            raise metadata_error(error) from error

    async def stop(self, *, is_clean: bool = True) -> None:
        """Close the metadata and give the data directory back.

        Args:
            is_clean: Whether the logs are synced and closed, too, and the directory is marked as cleanly left.
        """
        await self.end_background()
        if is_clean:
            await self.sync.drain()
        if self._parts is not None:
            await self._parts.close()
        self.sync.close()
        self.threads.close()
        if not is_clean:
            self.data.release()
            return
        for error in self.data.close(
            self.metadata.quorum.log,
            now_ms=self.clock.wall_ms(),
            failure=self.failure,
            broker_epoch=self.broker_epoch,
        ):
            log.error("log_not_closed", error=str(error))

    async def end_background(self) -> None:
        """End what runs beside the requests."""
        self._is_stopping = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    # ------------------------------------------------------------------ failures

    def take_offline(self, error: StorageError) -> None:
        """The machine failed: nothing is written to the data directory any more, until the next start looks at it.

        As in Apache Kafka one failure takes the whole directory: what the system does after one is unknown, and a
        retried sync may report success for pages that are lost.

        A node of a cluster then stops, as Apache Kafka does without another directory. Its metadata log is in the
        directory, too, so it would not learn who leads its partitions now, and clients would wait for records that
        others have. A single broker continues to serve: everything that was committed can still be read.
        """
        if error.is_out_of_descriptors:
            self.data.release_closed_segments()
            self.warn_of_descriptors(str(error))
            return
        if self.failure is not None or self._is_stopping:
            return
        self.failure = error
        log.error(
            "log_directory_offline",
            path=self.data.path,
            error=str(error),
            effect="writes are rejected" if self.roles.is_standalone else "this node stops",
            advice="nothing is lost that was acknowledged: make room or mend the disk, then restart the broker",
        )
        self.metadata.refuse(error)
        self.when_offline(error)
        if not self.roles.is_standalone and self.reason_to_stop is None:
            self.reason_to_stop = error
            self.when_unfit()

    def become_unfit(self, error: Exception) -> None:
        """Stop as soon as possible: what this node would do on from here, others would have to undo."""
        if self.reason_to_stop is None:
            self.reason_to_stop = error
            if isinstance(error, StartError | TaskFailedError):
                log.critical("node_unfit", error=str(error), exc_info=error.__cause__)
            else:
                advice = "keep its data directory, and restore it from a backup"
                log.critical("node_unfit", error=str(error), advice=advice)
            self.when_unfit()

    def warn_of_descriptors(self, reason: str) -> None:
        """Log that something was refused or put off because too many files are open; once in a while."""
        now_ms = self.clock.now_ms()
        if self._last_warning_ms is None or now_ms - self._last_warning_ms >= WARNING_INTERVAL_MS:
            self._last_warning_ms = now_ms
            log.warning(
                "too_many_open_files",
                reason=reason,
                limit=self.machine.descriptors.limit,
                advice="raise the limit of open files (ulimit -n), or have fewer partitions or connections",
            )

    # ------------------------------------------------------------------ tasks

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something beside the requests until it ends or the node stops."""
        task = self.loop.create_task(coroutine, name=name)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task

    def spawn_vital(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something as `spawn` does; should it fail, the node stops, since it would serve on without it."""
        task = self.spawn(coroutine, name)
        task.add_done_callback(self._vital_ended)
        return task

    def _vital_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or (cause := task.exception()) is None:
            return
        error = TaskFailedError(f"the task {task.get_name()} has failed: {cause!r}; start the node again")
        error.__cause__ = cause
        self.become_unfit(error)

    def is_running(self, name: str) -> bool:
        """Whether a task with a name runs."""
        return any(task.get_name() == name for task in self._background)

    def every(self, interval_ms: int, work: Callable[[], object]) -> None:
        """Do something at intervals, until the node stops."""
        name = getattr(work, "__name__", repr(work))

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    work()
                except Exception:
                    log.exception("periodic_work_failed", work=name)

        self.spawn(repeat(), name)

    # ------------------------------------------------------------------ metadata

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.publisher.image

    def write_metadata(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append the controller's records; see `MetadataLog.write`.

        Raises:
            StorageError: The machine failed, or did before; nothing has changed then.
            ApiError: NOT_CONTROLLER, or there is no room for new partitions; nothing has changed.
        """
        if records:
            self._check_records(records)
        return self.metadata.write(records)

    async def decide_in_thread(
        self, decide: Callable[[Controller], tuple[T, Sequence[Message]]]
    ) -> tuple[T, asyncio.Future[None]]:
        """Make a large decision in a thread, and append its records; see `MetadataLog.decide_in_thread`.

        Raises:
            StorageError: As `write_metadata`.
            ApiError: As `write_metadata`; or what `decide` raises.
        """
        return await self.metadata.decide_in_thread(decide, self._check_records)

    def _check_records(self, records: Sequence[Message]) -> None:
        if self.failure is not None:
            raise StorageError(f"the log directory is offline: {self.failure}")
        self.check_room(records)

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Act on changed settings of brokers, and on a log that has grown; see `metadata_publisher.Subscriber`."""
        if any(kind == ResourceType.BROKER for kind, _ in delta.configs):
            self.refresh_config(image)
        limit = self.config["metadata.log.max.record.bytes.between.snapshots"]
        if self.metadata.quorum.log.size_bytes() > limit:
            self._start_snapshot()

    def _snapshot_at_interval(self) -> None:
        """Write a snapshot if records were committed since the last one, where the log starts now."""
        if self.publisher.end_offset > self.metadata.quorum.log.log_start_offset:
            self._start_snapshot()

    def _start_snapshot(self) -> None:
        if self.failure is None and not self.is_running("metadata-snapshot"):
            self.spawn(self._snapshot_metadata(), "metadata-snapshot")

    def refresh_config(self, image: MetadataImage) -> None:
        """Take the settings over that the cluster has for all brokers, and for this one."""
        cluster_wide = image.configs(ResourceType.BROKER, "")
        own = image.configs(ResourceType.BROKER, str(self.node_id))
        self.config.refresh({**cluster_wide, **own})

    async def _snapshot_metadata(self) -> None:
        try:
            await self.metadata.snapshot()
        except StorageError as error:
            self.take_offline(error)


def metadata_error(error: Exception) -> StartError:
    """Return what a start says when the metadata could not be read or written."""
    if isinstance(error, StorageError):
        return StartError(f"cannot write the cluster's metadata: {error}")
    if isinstance(error, RecordsError):
        return StartError(f"cannot read the cluster's metadata: {error}; restore the file from a backup")
    return StartError(f"cannot read the cluster's metadata: {error}")
