"""Simulated processes: killed without a `finally`, stopped and continued, released without touching the world."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from weakref import ref

from hailbus_broker.testing.simulation import World


def test_a_killed_process_runs_nothing_more() -> None:
    seen: list[str] = []

    async def generate() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            seen.append("generator")

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("child")

    async def process() -> None:
        task = asyncio.create_task(child())
        asyncio.get_running_loop().call_later(5, seen.append, "timer")
        try:
            async for number in generate():
                seen.append(f"alive {number}")  # noqa: PERF401 - each when it comes
        finally:
            seen.append("process")
            task.cancel()

    async def main(world: World) -> list[str]:
        victim = world.process("victim")
        victim.start(process())
        await world.sleep(2.5)
        victim.kill()
        gc.collect()
        await world.sleep(10)
        victim.start(child())
        await world.sleep(10)
        return list(seen)

    assert World(1).run(main) == ["alive 1", "alive 1"]


def test_what_a_dead_process_does_while_it_is_released_reaches_nothing() -> None:
    reached: list[str] = []

    async def serve(world: World) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append((await reader.read()).decode())
            writer.close()

        await asyncio.start_server(handle, "server", 80)
        await world.sleep(3600)

    async def process(world: World) -> None:
        _, writer = await asyncio.open_connection("server", 80)
        try:
            await asyncio.Event().wait()
        finally:
            writer.write(b"last words")
            asyncio.get_running_loop().call_soon(reached.append, "callback")
            asyncio.create_task(world.sleep(0))  # noqa: RUF006 - it never runs
            await asyncio.sleep(0)
            reached.append("awaited")

    async def main(world: World) -> int:
        world.process("server").start(serve(world))
        await world.sleep(0.1)
        victim = world.process("victim")
        victim.start(process(world))
        await world.sleep(1)
        victim.kill()
        await world.sleep(1)
        return world.trace.line_count

    world = World(1)
    gc.collect()  # what earlier tests have left
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = world.run(main)
        gc.collect()
    assert reached == [""]  # the server saw the end of the connection that the kernel sent, and no word
    assert [line.split()[3] for line in world.trace.lines[lines:]] == ["killed", "killed"]


def test_a_task_of_another_process_sees_the_end_of_what_it_awaits() -> None:
    async def work(world: World) -> str:
        await world.sleep(1)
        return "done"

    async def main(world: World) -> tuple[str, bool]:
        worker = world.process("worker")
        result = await worker.start(work(world))
        lost = worker.start(work(world))
        await world.sleep(0.5)
        worker.kill()
        await world.sleep(5)
        return result, lost.done()

    assert World(1).run(main) == ("done", False)


def test_a_paused_process_continues_where_it_stopped() -> None:
    async def main(world: World) -> list[float]:
        seen: list[float] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                seen.append(world.loop.time())

        process = world.process("clock")
        process.start(tick())
        await world.sleep(2.5)
        process.pause()
        await world.sleep(10)
        process.resume()
        await world.sleep(1.2)
        return seen

    assert World(1).run(main) == [1, 2, 12.5, 13.5]


def test_a_blocked_process_does_nothing_for_a_while() -> None:
    async def main(world: World) -> float:
        process = world.process("reader")

        async def read() -> float:
            process.block(3)
            await asyncio.sleep(0)
            return world.loop.time()

        return await process.start(read())

    assert World(1).run(main) == 3


def test_lives_of_a_process_have_their_own_names_and_randomness() -> None:
    async def main(world: World) -> list[tuple[str, float]]:
        lives = [world.process("broker"), world.process("broker"), world.process("other", host="broker")]
        assert {life.host.name for life in lives} == {"broker"}
        return [(life.name, life.rng.random()) for life in lives]

    found = World(1).run(main)
    assert [name for name, _ in found] == ["broker", "broker.2", "other"]
    assert len({number for _, number in found}) == 3


def test_a_world_leaves_no_garbage() -> None:
    class Client(asyncio.Protocol):
        def __init__(self) -> None:
            self.others = [self]  # a cycle of references, as programs have them

    found: list[ref[Client]] = []

    async def process() -> None:
        _, client = await asyncio.get_running_loop().create_connection(Client, "main", 80)
        assert isinstance(client, Client)
        found.append(ref(client))
        await asyncio.Event().wait()

    async def main(world: World) -> None:
        await asyncio.get_running_loop().create_server(Client, "main", 80)
        for number in range(3):
            world.process(f"client-{number}").start(process())
        await world.sleep(1)
        world.host("client-1").processes[0].kill()
        await world.sleep(1)

    world = World(1)
    world.run(main)
    assert len(found) == 3
    assert [client() for client in found] == [None, None, None]
    alive = ref(world)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        del world
        assert alive() is None  # without a collection
    finally:
        if was_enabled:
            gc.enable()
