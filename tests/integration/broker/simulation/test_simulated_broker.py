"""The broker itself in a simulated world, with aiokafka as its client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from hailbus_broker.testing.simulation import SimulationError, World, simulated, simulated_broker

from tests.integration.broker.simulation import kafka_program

ROOT = Path(__file__).parents[4]


def run_as_command(seed: int) -> str:
    command = [sys.executable, "-m", "tests.integration.broker.simulation.kafka_program", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_seed_gives_one_trace_with_a_foreign_client() -> None:
    first, second = run_as_command(3), run_as_command(3)
    assert first == second


@pytest.mark.parametrize("seed", range(6))
def test_no_acknowledged_record_is_lost_and_none_is_written_twice(seed: int) -> None:
    offsets, seen = World(seed).run(kafka_program.main)
    assert offsets == list(range(kafka_program.RECORDS))
    assert sorted(set(seen)) == list(range(kafka_program.RECORDS))


@simulated(seeds=range(3))
async def test_a_test_drives_a_broker() -> None:
    async with simulated_broker(seed=7) as simulation:
        assert simulation.world.seed == 7
        async with AIOKafkaProducer(bootstrap_servers=simulation.bootstrap) as producer:
            await producer.send_and_wait("rides", b"before")
            simulation.kill(power_cut=True)
            await simulation.advance(1)
            await simulation.restart()
            await producer.send_and_wait("rides", b"after the restart")
            simulation.cut()
            sending = asyncio.create_task(producer.send_and_wait("rides", b"after the cut"))
            await simulation.advance(10)
            assert not sending.done()
            simulation.heal()
            await sending
        async with AIOKafkaConsumer(
            "rides", bootstrap_servers=simulation.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            values = [(await consumer.getone()).value for _ in range(3)]
        assert values == [b"before", b"after the restart", b"after the cut"]
        with pytest.raises(SimulationError, match="runs with seed 7 already"):
            simulation.world.reseed(8)


def test_the_seed_of_a_failure_is_told() -> None:
    @simulated(seeds=[4, 5])
    async def failing() -> None:
        async with simulated_broker() as simulation:
            assert simulation.world.seed != 5

    with pytest.raises(AssertionError) as caught:
        failing()
    assert caught.value.__notes__ == ["in a simulated world with seed 5"]


async def test_a_real_event_loop_is_refused() -> None:
    with pytest.raises(SimulationError, match="put @simulated above the test"):
        async with simulated_broker():
            pass
