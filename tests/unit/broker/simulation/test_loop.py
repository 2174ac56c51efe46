"""The simulated event loop: virtual time, asyncio's order within a process, no way out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hailbus_broker.testing.simulation import DeadlockError, EscapedError, World
from hailbus_broker.testing.simulation.patching import patched


def test_time_is_virtual() -> None:
    async def main(world: World) -> float:
        await asyncio.sleep(86_400)
        return world.loop.time()

    assert World(1).run(main) == 86_400


def test_callbacks_of_a_process_run_in_the_order_of_asyncio() -> None:
    async def main(world: World) -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, seen.append, "second timer")
        loop.call_later(0.1, seen.append, "first timer")
        loop.call_soon(seen.append, "first")
        loop.call_soon(seen.append, "second")
        loop.call_soon(seen.append, "never").cancel()
        loop.call_later(0.1, seen.append, "never").cancel()
        await world.sleep(1)
        return seen

    for seed in range(5):
        assert World(seed).run(main) == ["first", "second", "first timer", "second timer"]


def test_processes_that_are_ready_at_once_run_in_an_order_that_the_seed_decides() -> None:
    async def main(world: World) -> str:
        seen: list[str] = []

        async def note(name: str) -> None:
            seen.append(name)

        for name in "abcd":
            world.process(name).start(note(name))
        await world.sleep(1)
        return "".join(seen)

    with patched():
        orders = {seed: World(seed).run(main) for seed in range(30)}
    assert len(set(orders.values())) > 10
    assert {"".join(sorted(order)) for order in orders.values()} == {"abcd"}


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    async def main(world: World) -> None:
        world.process("client").start(stuck(), name="poll")
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError) as caught:
        World(1).run(main)
    assert "client: poll in test_a_deadlock_names_the_tasks_that_wait.<locals>.stuck at " in str(caught.value)
    assert "main: main in " in str(caught.value)


def test_a_program_that_waits_for_its_clock_to_move_sees_it_move() -> None:
    async def main(world: World) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 0.01
        while loop.time() < deadline_s:  # noqa: ASYNC110 - what some programs do
            await asyncio.sleep(0)
        while not loop.time() > deadline_s:
            await asyncio.wait([loop.create_future()], timeout=max(0, deadline_s - loop.time()))
        assert loop.time() < 0.02
        await world.sleep(1)

    World(1).run(main)


def test_the_sets_that_programs_keep_tasks_in_have_one_order() -> None:
    async def main(world: World) -> list[str]:
        async def work(number: int) -> int:
            await world.sleep(number % 7)
            return number

        tasks = {asyncio.create_task(work(number), name=str(number)) for number in range(50)}
        futures = {asyncio.get_running_loop().create_future() for _ in range(50)}
        gathered: set[asyncio.Future[list[int]]] = {asyncio.gather(*tasks), asyncio.gather(*[work(1), work(2)])}
        await asyncio.wait(tasks)
        await asyncio.wait(gathered)
        order = [task.get_name() for task in tasks] + [str(hash(future)) for future in futures]
        return order + [str(hash(future)) for future in gathered]

    assert World(1).run(main) == World(1).run(main)


def test_the_functions_of_threads_run_later_and_as_a_whole() -> None:
    async def main(world: World) -> tuple[float, int]:
        def work(number: int) -> int:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            return number

        found = await asyncio.get_running_loop().run_in_executor(None, work, 7)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return world.loop.time(), found

    took_s, found = World(1).run(main)
    assert 0 < took_s < 0.1
    assert found == 7


@pytest.mark.parametrize(
    "name",
    [
        *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
        *("sendfile", "start_tls", "getnameinfo", "sock_sendfile", "sock_recv", "sock_recv_into", "sock_recvfrom"),
        *("sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "subprocess_shell"),
        *("subprocess_exec", "create_unix_connection", "create_unix_server", "connect_accepted_socket"),
        *("create_datagram_endpoint", "connect_read_pipe", "connect_write_pipe"),
    ],
)
def test_what_leaves_the_simulation_is_refused(name: str) -> None:
    async def main(_world: World) -> None:
        method: Callable[..., Any] = getattr(asyncio.get_running_loop(), name)

        async def call() -> None:
            result = method(1, 2)
            if inspect.isawaitable(result):
                await result

        with pytest.raises(EscapedError, match=f"loop.{name} would leave the simulation"):
            await call()

    World(1).run(main)


def test_every_method_of_a_loop_is_simulated_or_refused() -> None:
    from hailbus_broker.testing.simulation.loop import SimulatedLoop

    methods = {name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("__")}
    missing = {name for name in methods if getattr(SimulatedLoop, name) is getattr(asyncio.AbstractEventLoop, name)}
    assert missing == set()


def test_errors_of_callbacks_reach_the_handler_of_their_process() -> None:
    async def main(world: World) -> list[str]:
        seen: list[str] = []

        def failing() -> None:
            raise ValueError("broken")

        async def process() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: seen.append(str(context["exception"])))
            loop.call_soon(failing)

        world.process("service").start(process())
        await world.sleep(1)
        assert world.loop.unhandled == []
        asyncio.get_running_loop().call_soon(failing)
        await world.sleep(1)
        seen.extend(str(context["exception"]) for context in world.loop.unhandled)
        return seen

    assert World(1).run(main) == ["broken", "broken"]


def test_a_loop_that_has_ended_takes_no_callbacks() -> None:
    async def main(_world: World) -> None:
        return

    world = World(1)
    world.run(main)
    assert world.loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        world.loop.run_forever()


def test_a_simulation_does_not_start_within_another_loop() -> None:
    async def simulated(_world: World) -> None:
        return

    async def main() -> None:
        World(1).run(simulated)

    with pytest.raises(RuntimeError, match="another event loop runs"):
        asyncio.run(main())


def test_asynchronous_generators_are_closed_by_their_process() -> None:
    async def main(world: World) -> list[str]:
        seen: list[str] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
            finally:
                seen.append(asyncio.current_task().get_name() if asyncio.current_task() else "?")  # type: ignore[union-attr]  # checked

        async def process() -> None:
            async for _ in numbers():
                break

        world.process("reader").start(process())
        await world.sleep(1)
        return seen

    assert World(1).run(main) == ["reader-task-2"]


def test_a_loop_closes_generators_that_nobody_reads_any_more() -> None:
    async def main(_world: World) -> list[int]:
        seen: list[int] = []

        async def numbers(name: int) -> AsyncIterator[int]:
            try:
                yield name
            finally:
                seen.append(name)

        begun = [numbers(name) for name in range(20)]
        for generator in begun:
            await anext(generator)
        await asyncio.get_running_loop().shutdown_asyncgens()
        return seen

    assert World(1).run(main) == list(range(20))
