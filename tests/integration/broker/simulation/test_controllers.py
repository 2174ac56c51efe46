"""Three controllers keep one metadata log: elections, failover, replication, snapshots, with network and disks."""

from __future__ import annotations

import asyncio

import pytest
from hailbus_broker.protocol.errors import ApiError
from hailbus_broker.testing.simulation import simulated
from hailbus_broker.testing.simulation.loop import SimulatedLoop

from tests.integration.broker.simulation.controllers import Controllers, until


def controllers(settings: dict[str, str] | None = None) -> Controllers:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return Controllers(loop.world, 3, settings)


def now_s() -> float:
    return asyncio.get_running_loop().time()


@simulated(seeds=range(5))
async def test_all_have_what_the_leader_has_decided() -> None:
    quorum = controllers()
    await quorum.start()
    active = await quorum.until_one_is_active()
    for number in range(10):
        await active.set_group_config(f"g{number}", "50000")
    await quorum.until_all_have({f"g{number}": "50000" for number in range(10)})
    assert {one.core.metadata.quorum.leader_id for one in quorum.all} == {active.node_id}


@simulated(seeds=range(5))
async def test_a_leader_that_was_killed_is_replaced_at_once() -> None:
    quorum = controllers()
    await quorum.start()
    first = await quorum.until_one_is_active()
    await first.set_group_config("before", "50000")
    killed_s = now_s()
    first.kill()
    second = await quorum.until_one_is_active()
    assert second is not first
    # Its port refuses connections: nobody waits for a timeout, the shortest of which is two seconds.
    assert now_s() - killed_s < 1.5
    await second.set_group_config("after", "50000")
    await first.start()
    await quorum.until_all_have({"before": "50000", "after": "50000"})


@simulated(seeds=range(5))
async def test_a_leader_without_power_is_replaced_and_comes_back() -> None:
    quorum = controllers()
    await quorum.start()
    expected = {}
    for number in range(4):
        active = await quorum.until_one_is_active()
        await quorum.write(f"g{number}", "50000")
        expected[f"g{number}"] = "50000"
        active.kill(power_cut=True)
        await quorum.write(f"during{number}", "50000")
        expected[f"during{number}"] = "50000"
        await active.start()
        await quorum.until_all_have(expected)


@simulated(seeds=range(5))
async def test_a_leader_that_stops_in_order_hands_over() -> None:
    quorum = controllers()
    await quorum.start()
    first = await quorum.until_one_is_active()
    stopped_s = now_s()
    await first.stop()
    second = await quorum.until_one_is_active()
    assert second is not first
    assert now_s() - stopped_s < 1.0
    await second.set_group_config("after", "50000")


@simulated(seeds=range(5))
async def test_what_a_cut_off_leader_has_decided_is_undone() -> None:
    quorum = controllers()
    await quorum.start()
    first = await quorum.until_one_is_active()
    await first.set_group_config("before", "50000")
    others = [one for one in quorum.all if one is not first]
    for other in others:
        quorum.world.network.cut(first.name, other.name)
    lost = asyncio.ensure_future(first.set_group_config("lost", "50000"))
    second = await quorum.until_one_is_active(among=others)
    await second.set_group_config("kept", "50000")
    with pytest.raises(ApiError, match="controller"):
        await lost
    assert "lost" not in first.groups()
    quorum.world.network.heal_all()
    await quorum.until_all_have({"before": "50000", "kept": "50000"})


@simulated(seeds=range(5))
async def test_a_controller_that_is_far_behind_gets_a_snapshot() -> None:
    quorum = controllers({"metadata.log.max.record.bytes.between.snapshots": "5000"})
    await quorum.start()
    active = await quorum.until_one_is_active()
    late = next(one for one in quorum.all if one is not active)
    late.kill()
    expected = {}
    for number in range(120):
        await quorum.write(f"g{number}", str(50_000 + number))
        expected[f"g{number}"] = str(50_000 + number)
    await until(lambda: active.core.metadata.quorum.log.log_start_offset > 0)
    await late.start()
    await quorum.until_all_have(expected)
    assert late.core.metadata.quorum.log.log_start_offset > 0
    await quorum.write("after", "50000")
    await quorum.until_all_have(expected | {"after": "50000"})
    # What it got lasts.
    late.kill(power_cut=True)
    await late.start()
    await quorum.until_all_have(expected | {"after": "50000"})


@simulated(seeds=range(3))
async def test_a_majority_decides_without_the_third() -> None:
    quorum = controllers()
    for one in quorum.all[:2]:
        await one.start()
    await quorum.write("two", "50000")
    quorum.all[0].kill()
    await asyncio.sleep(10)
    assert not any(one.is_active for one in quorum.all), "one of three decides nothing"
    await quorum.all[2].start()
    await quorum.write("two again", "50000")
    await quorum.until_all_have({"two": "50000", "two again": "50000"})
