"""The shards of a coordinator's topic that this node serves: those whose partitions it leads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.runtime.shard_driver import DriverState, ShardDriver

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.replica_manager import ReplicaManager
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

DriverT = TypeVar("DriverT", bound=ShardDriver[Any])  # each coordinator has its own kind of shard


class Spawn(Protocol):
    """Runs something beside the requests until it ends or the node stops."""

    def __call__(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorPorts:
    """What the coordinators use of their node.

    Attributes:
        replicas: Of this node.
        clock: Where time comes from.
        threads: Where partitions are read.
        spawn: Runs loads in the background.
        is_standalone: Whether no other node has metadata that this one does not have yet.
    """

    replicas: ReplicaManager
    clock: Clock
    threads: Threads
    spawn: Spawn
    is_standalone: bool


class Coordinator(Generic[DriverT]):
    """Follows the leadership of its topic's partitions: loads a shard when this node begins to lead, unloads it after.

    Args:
        topic: The topic whose partitions hold the shards.
        make: Makes the driver of a partition that this node leads.
        ports: Of the node.

    Attributes:
        drivers: By the index of their partition.
        partition_count: Of the topic; 0 before it exists. It decides which partition a key belongs to.
    """

    def __init__(self, topic: str, make: Callable[[LeaderReplica], DriverT], ports: CoordinatorPorts) -> None:
        self._topic: Final = topic
        self._make: Final = make
        self._replicas: Final = ports.replicas
        self._clock: Final = ports.clock
        self._threads: Final = ports.threads
        self._spawn: Final = ports.spawn
        self._is_standalone: Final = ports.is_standalone
        self.drivers: Final[dict[int, DriverT]] = {}
        self.partition_count = 0

    # ------------------------------------------------------------------ leadership

    async def start(self, image: MetadataImage) -> None:
        """Load the partitions that this node leads, and wait until they are loaded."""
        for task in self._follow(image):
            await task

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """See `metadata_publisher.Subscriber`. The replica manager has acted on the change already."""
        del delta
        if self._topic in self._replicas.touched_topics:
            self._follow(image)

    def _follow(self, image: MetadataImage) -> list[asyncio.Task[None]]:
        topic = image.topics.get(self._topic)
        self.partition_count = 0 if topic is None else len(topic.partitions)
        replicas = self._replicas.topics.get(self._topic, [])
        led = {replica.index: replica for replica in replicas if isinstance(replica, LeaderReplica)}
        for index, driver in list(self.drivers.items()):
            replica = led.get(index)
            if replica is not driver.partition:
                del self.drivers[index]
                driver.unload()
                log.info("coordinator_unloaded", partition=driver.partition.name, leader_epoch=driver.leader_epoch)
            elif replica.leader_epoch != driver.leader_epoch:
                driver.renew(replica.leader_epoch)
        started = []
        for index, replica in sorted(led.items()):
            if index not in self.drivers:
                driver = self.drivers[index] = self._make(replica)
                started.append(self._spawn(self._load(driver), f"load-{replica.name}"))
        return started

    async def _load(self, driver: DriverT) -> None:
        try:
            await driver.load(self._threads)
        except Exception:
            log.exception("coordinator_load_failed", partition=driver.partition.name)
            driver.close()

    # ------------------------------------------------------------------ look-ups

    def driver(self, key: str) -> DriverT | ErrorCode:
        """Return the driver of a group or a transactional id, or the error code for clients that ask for it."""
        if not self.partition_count:
            return ErrorCode.NOT_COORDINATOR
        driver = self.drivers.get(partition_for(key, self.partition_count))
        if driver is None:
            return ErrorCode.NOT_COORDINATOR
        return driver.refusal or driver

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to coordinate, as the topic does not exist; another node may know of it sooner."""
        return self._is_standalone and not self.partition_count

    def active(self) -> Iterator[DriverT]:
        """All drivers that may decide something, by the index of their partition."""
        return (driver for _, driver in sorted(self.drivers.items()) if driver.state is DriverState.ACTIVE)

    @property
    def is_loading(self) -> bool:
        """Whether a partition is still being loaded."""
        return any(driver.state is DriverState.LOADING for driver in self.drivers.values())

    # ------------------------------------------------------------------ time

    def run_due(self) -> None:
        """Let all shards do what is due."""
        for driver in self.active():
            driver.run_due()

    def close(self) -> None:
        """Stop all timers."""
        for driver in self.drivers.values():
            driver.close()


def partition_for(key: str, count: int) -> int:
    """Return the partition of a coordinator's topic that a name belongs to: Java's string hash, as Kafka has it."""
    data = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return (value & 0x7FFFFFFF) % count
