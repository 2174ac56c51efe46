"""A real broker inside a test: the engine of production, in milliseconds, with faults on demand and a clock to turn.

async with running_broker() as broker:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)

def test_a_consumer(kafka: ThreadedBroker):     # kafka = pytest.fixture around `ThreadedBroker`
    Consumer({"bootstrap.servers": kafka.bootstrap, ...})
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.clock import SystemClock
from hailbus_broker.runtime.disk import RealDisk, RealFile, failing
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.node import Node
from hailbus_broker.server.listener import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from types import TracebackType

    from hailbus_broker.server.request import Request

T = TypeVar("T")

TEST_SETTINGS: Final = {
    # Kafka lets a new group wait for 3 s: right for a fleet, a nuisance in a test.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""What a test broker has other than `hailbus-broker serve`; a test's own settings go before."""


class _UnsyncedFile(RealFile):
    __slots__ = ()

    def sync(self) -> None:
        """A test's data may be lost when the machine fails."""


class UnsyncedDisk(RealDisk):
    """The real disk without any fsync."""

    file_class = _UnsyncedFile

    def sync_directory(self, path: str) -> None:
        """Nothing to do."""

    def write_whole(self, path: str, data: bytes) -> None:
        """Without syncs."""
        from pathlib import Path

        with failing("cannot write", path):
            Path(path).write_bytes(data)


class VirtualClock:
    """A clock that a test can move forward; it also runs by itself."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._system.wall_ms() + self._ahead_ms

    def now_ms(self) -> int:
        """Milliseconds that never go back."""
        return self._system.now_ms() + self._ahead_ms

    def turn(self, ms: int) -> None:
        """Put the clock forward."""
        self._ahead_ms += ms


@dataclass(slots=True, kw_only=True)
class Fault:
    """What shall go wrong with requests of one API.

    Attributes:
        api: Which requests.
        times: How many of them; those after are served as ever.
        delay_s: How long each waits before it is served. Requests on other connections overtake it.
        error: The code that is answered instead of serving the request.
        drops_request: The connection is closed, and the request was not served.
        drops_answer: The request is served, and the connection is closed instead of the answer.
        client_id: Only requests of this client.
    """

    api: ApiKey
    times: int = 1
    delay_s: float = 0.0
    error: ErrorCode | None = None
    drops_request: bool = False
    drops_answer: bool = False
    client_id: str | None = None
    hit_count: int = field(default=0, init=False)


class RunningBroker:
    """A broker in this event loop.

    Attributes:
        bootstrap: HOST:PORT for clients.
        node: The broker itself.
        clock: Its clock.
    """

    def __init__(self, server: Server, clock: VirtualClock) -> None:
        self.server: Final = server
        self.node: Final = server.node
        self.clock: Final = clock
        self._faults: list[Fault] = []

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return self.server.bootstrap

    def fail(self, fault: Fault) -> Fault:
        """Let requests go wrong; the returned fault counts them in `hit_count`."""
        self._faults.append(fault)
        return fault

    def advance(self, ms: int) -> None:
        """Put the broker's clock forward, and let it do what has become due: sessions, transactions, retention."""
        self.clock.turn(ms)
        self.node.catch_up()

    def disturb(self, request: Request, serve: Callable[[Request], None]) -> bool:
        """Apply the first fault that fits; False if there is none."""
        for fault in self._faults:
            if fault.api != request.api_key or (fault.client_id is not None and fault.client_id != request.client_id):
                continue
            if fault.hit_count >= fault.times:
                continue
            fault.hit_count += 1
            if fault.drops_request:
                request.connection.close()
            elif fault.drops_answer:
                request.loses_answer = True
                serve(request)
            elif fault.delay_s:
                self.node.loop.call_later(fault.delay_s, self._delayed, fault, request, serve)
            elif fault.error is not None:
                request.respond_error(fault.error)
            return True
        return False

    @staticmethod
    def _delayed(fault: Fault, request: Request, serve: Callable[[Request], None]) -> None:
        if request.connection.is_closed:
            return
        if fault.error is not None:
            request.respond_error(fault.error)
        else:
            serve(request)


@asynccontextmanager
async def running_broker(
    settings: Mapping[str, str] | None = None, *, data_dir: str | None = None, seed: int | None = None
) -> AsyncIterator[RunningBroker]:
    """Run a broker in this event loop, on a free port.

    Args:
        settings: Options by Kafka's names, over `TEST_SETTINGS`.
        data_dir: Where to keep data; None takes a folder that is removed at the end.
        seed: For ids, so that they are the same in each run; None takes any.

    Raises:
        ApiError: A setting is unknown or does not fit.
    """
    folder = tempfile.mkdtemp(prefix="hailbus-broker-") if data_dir is None else data_dir
    config = BrokerConfig(
        {"listeners": "PLAINTEXT://127.0.0.1:0", **TEST_SETTINGS, **(settings or {}), "log.dirs": folder}
    )
    clock = VirtualClock()
    chance = random.SystemRandom() if seed is None else random.Random(seed)
    server = Server(Node(config, machine=Machine(clock=clock, random=chance, disk=UnsyncedDisk())))
    try:
        await server.start()
        broker = RunningBroker(server, clock)
        assert server.dispatcher is not None
        server.dispatcher.disturb = broker.disturb
        try:
            yield broker
        finally:
            await server.stop()
    finally:
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


class ThreadedBroker:
    """A broker in a thread of its own, for clients that block.

    with ThreadedBroker() as broker: ...

    Args:
        settings: See `running_broker`.
        data_dir: See `running_broker`.
        seed: See `running_broker`.
    """

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, data_dir: str | None = None, seed: int | None = None
    ) -> None:
        self._arguments: dict[str, Any] = {"settings": settings, "data_dir": data_dir, "seed": seed}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._broker: RunningBroker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="hailbus-broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with running_broker(**self._arguments) as broker:
                self._broker = broker
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ready.set()

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        assert self._broker is not None
        return self._broker.bootstrap

    def call(self, function: Callable[[RunningBroker], T]) -> T:
        """Run a function in the broker's thread: look at its state, `fail`, `advance`."""
        assert self._broker is not None
        broker = self._broker

        async def run() -> T:
            return function(broker)

        return self._wait(run())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def fail(self, fault: Fault) -> Fault:
        """See `RunningBroker.fail`."""
        return self.call(lambda broker: broker.fail(fault))

    def advance(self, ms: int) -> None:
        """See `RunningBroker.advance`."""
        self.call(lambda broker: broker.advance(ms))
