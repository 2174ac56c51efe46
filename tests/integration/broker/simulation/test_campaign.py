"""Campaigns of drawn scenarios: a scenario is printed, replayed and shrunk, and what goes wrong is reported."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hailbus_broker.client import RefusedError
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.campaign import Nodes, PlannedClient, PlannedFault, Scenario, draw, run_scenario, shrink
from hailbus_broker.testing.campaign.context import Context, Stop
from hailbus_broker.testing.campaign.groups import Membership, find_coordinator
from hailbus_broker.testing.campaign.probes import Prober
from hailbus_broker.testing.campaign.producers import TransactionalSession
from hailbus_broker.testing.campaign.recorder import MAIN, Recorder, TransactionOp
from hailbus_broker.testing.campaign.writers import create_topic
from hailbus_broker.testing.simulation import World
from hailbus_broker.testing.simulation.broker import SimulatedBroker
from hailbus_broker.testing.simulation.patching import patched

NAMES = {"PlannedClient": PlannedClient, "PlannedFault": PlannedFault, "Scenario": Scenario}


@pytest.mark.parametrize("seed", range(3))
def test_a_scenario_prints_as_python(seed: int) -> None:
    scenario = draw(seed)
    assert eval(scenario.to_python(), NAMES) == scenario  # noqa: S307 - what the scenario itself has printed
    assert draw(seed + 1) != scenario


def test_a_scenario_leaves_one_trace() -> None:
    scenario = draw(0)
    with patched():
        first, second = run_scenario(scenario), run_scenario(scenario)
    assert first.problems == {}
    assert first.digest == second.digest
    assert run_scenario(replace(scenario, seed=1_000)).digest != first.digest


def test_a_node_that_a_fault_ends_as_it_starts_is_no_finding() -> None:
    first = PlannedFault(
        at_s=0.71, kind="crash in a write", duration_s=7.43, amount=1, path="quorum-state", is_power_cut=False, node="1"
    )
    second = replace(first, at_s=8.96, duration_s=1.79, amount=2, path="__cluster_metadata")
    scenario = Scenario(
        seed=389,
        duration_s=13.9,
        clients=(PlannedClient(name="producer", kind="idempotent producer", rate=1.0),),
        faults=(first, second),
        nodes=Nodes(roles=("controller", "broker"), factor=1, min_isr=1),
    )
    with patched():
        assert run_scenario(scenario).problems == {}


@pytest.mark.parametrize("roles", [("broker,controller",) * 3, ("controller",) * 3 + ("broker",)])
def test_a_voter_is_removed_and_added_again_also_after_the_heal(roles: tuple[str, ...]) -> None:
    changes = [
        PlannedFault(at_s=at_s, kind="voter change", duration_s=duration_s, node="active controller")
        for at_s, duration_s in ((0.5, 0.5), (5.0, 30.0))
    ]
    scenario = Scenario(
        seed=1,
        duration_s=8.0,
        clients=(PlannedClient(name="producer", kind="idempotent producer", rate=1.0),),
        faults=tuple(changes),
        nodes=Nodes(roles=roles, factor=1, min_isr=1, has_dynamic_voters=True),
    )
    with patched():
        outcome = run_scenario(scenario)
    assert outcome.problems == {}
    assert outcome.notes["active controller removed from the voters"] == 2
    assert outcome.notes["voter added again"] == 2


def test_shrinking_removes_what_the_failure_does_not_need() -> None:
    scenario = draw(4)
    needed = scenario.clients[0].name
    fault = next(fault for fault in scenario.faults if not fault.client)

    def fails(candidate: Scenario) -> bool:
        return needed in {client.name for client in candidate.clients} and fault in candidate.faults

    smallest = shrink(scenario, fails)
    assert [client.name for client in smallest.clients] == [needed]
    assert smallest.faults == (fault,)
    assert smallest.duration_s <= scenario.duration_s


def test_shrinking_tries_other_seeds() -> None:
    scenario = draw(4)
    needed = scenario.clients[3].name
    seeds: set[int] = set()

    def fails(candidate: Scenario) -> bool:
        seeds.add(candidate.seed // 1_000_000 % 5)
        is_right = candidate.seed // 1_000_000 % 5 == (len(candidate.clients) + len(candidate.faults)) % 5
        return is_right and needed in {client.name for client in candidate.clients}

    smallest = shrink(scenario, fails, max_runs=2_000)
    assert [client.name for client in smallest.clients] == [needed]
    assert smallest.faults == ()
    assert len(seeds) == 5


def test_a_client_that_comes_to_an_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(draw(0), faults=())

    async def broken(_: object) -> None:
        raise ValueError("a defect of the client")

    monkeypatch.setattr("hailbus_broker.testing.campaign.readers.ListReader.run", broken)
    (found, *_) = run_scenario(scenario).problems["failures"]
    assert "a defect of the client" in found


def context_of(world: World, broker: SimulatedBroker) -> Context:
    """What a client of a campaign is given, for one that the test itself drives."""
    return Context(
        name="client",
        life=0,
        rate=1.0,
        bootstrap=broker.bootstrap,
        partition_count=1,
        rng=world.rng("client"),
        recorder=Recorder(world.note),
        stop=Stop(),
        process=world.main,
    )


def test_a_late_end_of_a_transaction_comes_over_the_older_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of it holds also where its first connection was lost, and made again after the second one."""

    async def main(world: World) -> list[str]:
        broker = SimulatedBroker(world, {}, name="broker")
        await broker.start()
        context = context_of(world, broker)
        client = context.client()
        await create_topic(client, MAIN, 1, {})
        prober = Prober(context)
        prober._name = "late"
        await prober._client.connect()
        await prober._other.connect()
        write = prober._write

        async def write_and_reconnect(session: TransactionalSession) -> TransactionOp:
            op = await write(session)
            if session.client is prober._client:
                session.client.close()
            return op

        monkeypatch.setattr(prober, "_write", write_and_reconnect)
        await prober._end_late()
        return context.recorder.failures

    assert World(1).run(main) == []


def test_a_member_keeps_its_session_while_a_slow_disk_delays_its_assignment() -> None:
    async def main(world: World) -> tuple[float, int]:
        settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500"}
        broker = SimulatedBroker(world, settings, name="broker")
        await broker.start()
        context = context_of(world, broker)
        client = context.client(timeout_s=20.0)
        await find_coordinator(context, client, "g")
        member = Membership(context, client, "g")
        with pytest.raises(RefusedError, match="MEMBER_ID_REQUIRED"):
            await member.join()
        began_s = world.loop.now_s
        broker.disk.sync_s = (1.0, 1.0)
        await member.join()
        broker.disk.sync_s = (0.001, 0.002)
        took_s = world.loop.now_s - began_s
        await asyncio.sleep(2.0)
        return took_s, await member.heartbeat()

    took_s, code = World(1).run(main)
    assert took_s > 2.5  # its session timeout
    assert code == ErrorCode.NONE
