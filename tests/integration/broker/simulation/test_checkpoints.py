"""Checkpoints at intervals, as `log.flush.offset.checkpoint.interval.ms` says, in virtual time."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer
from hailbus_broker.testing.simulation import SimulatedBroker, simulated, simulated_broker

SETTING = "log.flush.offset.checkpoint.interval.ms"


def recovery_point(broker: SimulatedBroker) -> int:
    """Return the recovery point of the partition rides-0 that is on the disk."""
    (path,) = [path for path in broker.disk.paths() if path.endswith("recovery-point-offset-checkpoint")]
    data = broker.disk.read_bytes(path)
    assert data is not None
    points = [line.split() for line in data.decode().splitlines()[2:]]
    (found,) = [int(offset) for topic, partition, offset in points if (topic, partition) == ("rides", "0")]
    return found


@pytest.mark.parametrize(("settings", "interval_s"), [({}, 60), ({SETTING: "3000"}, 3)])
@simulated(seeds=[1])
async def test_recovery_points_are_written_at_the_interval(settings: dict[str, str], interval_s: float) -> None:
    async with simulated_broker(settings, seed=1) as simulation:
        async with AIOKafkaProducer(bootstrap_servers=simulation.bootstrap) as producer:
            await producer.send_and_wait("rides", b"a record")
        await simulation.advance(interval_s - 1.5)
        assert not any("recovery-point" in path for path in simulation.broker.disk.paths())
        await simulation.advance(1.5)
        assert recovery_point(simulation.broker) == 1
