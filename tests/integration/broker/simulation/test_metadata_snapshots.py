"""Snapshots of the metadata at intervals, as `metadata.log.max.snapshot.interval.ms` says, in virtual time."""

from __future__ import annotations

import pytest
from hailbus_broker.testing.simulation import SimulatedBroker, simulated, simulated_broker

SETTING = "metadata.log.max.snapshot.interval.ms"


def snapshots(broker: SimulatedBroker) -> list[str]:
    return [path for path in broker.disk.paths() if path.endswith(".checkpoint") and "__cluster_metadata" in path]


@pytest.mark.parametrize(
    ("settings", "interval_s"), [({}, 3_600), ({SETTING: "30000"}, 30)], ids=["by default", "as set"]
)
@simulated(seeds=[1])
async def test_committed_metadata_is_in_a_snapshot_after_the_interval(
    settings: dict[str, str], interval_s: float
) -> None:
    quiet = {"metadata.max.idle.interval.ms": "0"}
    async with simulated_broker({**quiet, **settings}, seed=1) as simulation:
        await simulation.advance(interval_s - 3)
        assert snapshots(simulation.broker) == []
        await simulation.advance(3)
        (first,) = snapshots(simulation.broker)
        await simulation.advance(interval_s)
        assert snapshots(simulation.broker) == [first], "nothing was committed since"


@simulated(seeds=[1])
async def test_there_is_no_interval_if_it_is_0() -> None:
    async with simulated_broker({SETTING: "0"}, seed=1) as simulation:
        await simulation.advance(8_000)
        assert snapshots(simulation.broker) == []
