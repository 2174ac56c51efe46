"""A controller probes the brokers whose connection has closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.cluster.metadata.brokers import ListenerEndpoint
from hailbus_broker.log import StorageError
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.clock import SystemClock
from hailbus_broker.runtime.controller_role import ControllerRole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

BROKER, EPOCH = 2, 17


class Core:
    """As much of a node as the role of a controller asks for, and a listener in place of the broker."""

    def __init__(self, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = SystemClock()
        self.node_id, self.broker_epoch, self.failure = 1, 16, None
        self.metadata = SimpleNamespace(is_active=True, next_offset=40, write=lambda _: None)
        endpoint = ListenerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=port)
        broker = SimpleNamespace(node_id=BROKER, broker_epoch=EPOCH, fenced=False, endpoints=(endpoint,))
        self.controller = SimpleNamespace(
            image=SimpleNamespace(brokers={BROKER: broker}), fence=self._fence, deadline_ms=lambda: None
        )
        self.fenced = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def _fence(self, broker_id: int, broker_epoch: int, *, next_offset: int) -> list[Any]:
        assert (broker_id, broker_epoch, next_offset) == (BROKER, EPOCH, 40)
        self.fenced.set()
        return []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def until(self, condition: Callable[[], bool], role: ControllerRole) -> None:
        async with asyncio.timeout(20):
            while not condition():
                role._tick()
                await asyncio.sleep(0.005)


class Listener:
    """Accepts connections, and counts them."""

    def __init__(self) -> None:
        self.accepted = 0

    async def start(self) -> int:
        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted += 1
            writer.close()

        self._server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    found = Listener()
    yield found
    found.close()


async def test_a_listener_that_is_still_open_at_the_first_probe_is_probed_again(listener: Listener) -> None:
    core = Core(await listener.start())
    role = ControllerRole(core)  # type: ignore[arg-type]  # see Core
    role._was_active = True
    role.heard("connection", BROKER, EPOCH)
    role.connection_lost("connection")
    await core.until(lambda: listener.accepted > 0, role)
    assert not core.fenced.is_set()
    listener.close()
    await core.until(core.fenced.is_set, role)


async def test_a_broker_that_is_heard_of_again_is_not_probed_any_more(listener: Listener) -> None:
    core = Core(await listener.start())
    role = ControllerRole(core)  # type: ignore[arg-type]  # see Core
    await core.until(lambda: listener.accepted > 1, role)  # it has become active, and knows of nobody
    role.heard("connection", BROKER, EPOCH)
    listener.close()
    for _ in range(50):
        role._tick()
        await asyncio.sleep(0)
    assert not role._suspects
    assert not core.fenced.is_set()


@pytest.mark.parametrize(
    "error",
    [ApiError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller."), StorageError("the disk fails")],
)
async def test_work_that_is_due_ends_quietly_when_it_cannot_be_written(listener: Listener, error: Exception) -> None:
    core = Core(await listener.start())
    asked: list[int] = []

    def tick(*, next_offset: int, now_ms: int) -> list[Any]:
        asked.append(now_ms)
        return ["a record"]

    def refuse(records: list[Any]) -> None:
        if records:  # before this controller knows: the new epoch is still on its way to the disk
            raise error

    core.controller.deadline_ms, core.controller.tick = lambda: 0, tick
    core.metadata.write = refuse
    role = ControllerRole(core)  # type: ignore[arg-type]  # see Core
    role._was_active = True
    role._tick()
    assert len(asked) == 1
