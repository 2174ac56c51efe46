"""A program of streams, timeouts, locks, queues, threads and random choices, in a world with faults.

As a command it prints the hash of its trace: `python -m tests.integration.broker.simulation.program SEED`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import sys
import time
import uuid
from contextlib import suppress

from hailbus_broker.testing.simulation import World


async def serve() -> None:
    lock = asyncio.Lock()
    served: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            while line := await reader.readline():
                async with lock:
                    await asyncio.sleep(random.random() / 100)
                checked = await asyncio.to_thread(lambda: len({line, uuid.uuid4()}))
                writer.write(b"%s %d\n" % (line.strip(), checked))
                await writer.drain()
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        served.add(task)
        task.add_done_callback(served.discard)

    server = await asyncio.start_server(accepted, port=80)
    await server.serve_forever()


async def talk(results: asyncio.Queue[str]) -> None:
    while True:
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("server", 80)
            try:
                for number in range(random.randint(1, 20)):
                    sent = f"{number} {uuid.uuid4()} {time.time()} {dt.datetime.now(dt.UTC)}\n"
                    writer.write(sent.encode())
                    async with asyncio.timeout(1):
                        answer = await reader.readline()
                    if not answer:
                        break
                    await results.put(answer.decode())
                    await asyncio.sleep(random.random() / 3)
            finally:
                writer.close()
        except OSError as error:
            await results.put(type(error).__name__)
            await asyncio.sleep(random.expovariate(5))


async def collect(results: asyncio.Queue[str], seen: list[str]) -> None:
    while True:
        waiting = {asyncio.create_task(results.get()) for _ in range(4)}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=0.5)
        for task in waiting - done:
            task.cancel()
        seen.extend(task.result() for task in done)  # the order of a set


async def main(world: World) -> int:
    """Run servers and clients for half a minute, with a fault every few seconds."""
    rng = world.rng("faults")
    seen: list[str] = []
    results: asyncio.Queue[str] = asyncio.Queue(maxsize=8)
    server = world.process("server")
    server.start(serve())
    clients = [world.process(f"client-{number}") for number in range(3)]
    for client in clients:
        client.start(talk(results))
    asyncio.create_task(collect(results, seen))  # noqa: RUF006 - the task of this function, which waits below
    for _ in range(8):
        await world.sleep(rng.uniform(1, 7))
        name = rng.choice(clients).name
        match rng.randrange(5):
            case 0:
                server.kill()
                server = world.process("server")
                server.start(serve())
            case 1:
                world.network.cut(name, "server", is_one_way=rng.random() < 0.5)
            case 2:
                world.network.heal_all()
            case 3:
                world.network.reset(name, "server")
            case _:
                world.network.power_off(world.host("server"))
                await world.sleep(1)
                server = world.process("server")
                server.start(serve())
    world.loop.record("main", str(hash(tuple(line.count("0") for line in seen))))
    return len(seen)


if __name__ == "__main__":
    simulation = World(int(sys.argv[1]))
    count = simulation.run(main)
    print(simulation.trace.digest, count)
