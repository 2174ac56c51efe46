"""aiokafka against the broker, in a world with a kill, a power cut and a cut of the network.

As a command it prints the hash of its trace and what was seen: `python -m … SEED`.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from hailbus_broker.testing.simulation import BrokerWorld, World, pin_hash_seed, simulated_broker

RECORDS = 60


async def produce(bootstrap: str) -> list[int]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        offsets = []
        for number in range(RECORDS):
            sent = await producer.send_and_wait("rides", b"%d" % number)
            offsets.append(sent.offset)
            await asyncio.sleep(0.05)
        return offsets


async def consume(bootstrap: str, group: str) -> list[int]:
    async with AIOKafkaConsumer(
        "rides", bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        seen: list[int] = []
        while RECORDS - 1 not in seen:
            record = await consumer.getone()
            seen.append(int(record.value))
        return seen


async def disturb(simulation: BrokerWorld) -> None:
    rng = simulation.world.rng("faults")
    await simulation.advance(rng.uniform(0.5, 1.5))
    simulation.kill()
    await simulation.advance(rng.uniform(0, 1))
    await simulation.restart()
    await simulation.advance(rng.uniform(0.1, 1))
    simulation.cut("producer", is_one_way=rng.random() < 0.5)
    await simulation.advance(rng.uniform(0, 3))
    simulation.heal()
    simulation.broker.disk.crash_at_step = simulation.broker.disk.step_count + rng.randrange(20)
    await simulation.advance(2)
    simulation.broker.disk.crash_at_step = None
    await simulation.restart()


async def main(world: World) -> tuple[list[int], list[int]]:
    """Return the offsets that were acknowledged, and the values that were read."""
    async with simulated_broker() as simulation:
        consuming = world.process("consumer").start(consume(simulation.bootstrap, "readers"))
        producing = world.process("producer").start(produce(simulation.bootstrap))
        await disturb(simulation)
        with suppress(TimeoutError):
            async with asyncio.timeout(600):
                return await producing, await consuming
        raise AssertionError("producer and consumer made no progress after the last fault")


if __name__ == "__main__":
    pin_hash_seed()
    simulated_world = World(int(sys.argv[1]))
    found = simulated_world.run(main)
    print(simulated_world.trace.digest, found)
