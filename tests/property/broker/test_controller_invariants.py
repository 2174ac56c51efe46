"""Whatever brokers do: leaders are in sync and alive, epochs never go back, nobody eligible is forgotten."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.property.broker.cluster_world import BROKERS, NO_LEADER, World

STEPS = 120


def run(seed: int, *, has_elr: bool) -> World:
    world = World(seed, has_elr=has_elr)
    for _ in range(STEPS):
        world.step()
    return world


@pytest.mark.parametrize("has_elr", [False, True])
@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_invariants_hold_after_each_step(seed: int, *, has_elr: bool) -> None:
    note(f"seed {seed}")
    run(seed, has_elr=has_elr)


@pytest.mark.parametrize("has_elr", [False, True])
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_partitions_are_led_again_when_all_brokers_are_back(seed: int, *, has_elr: bool) -> None:
    note(f"seed {seed}")
    world = run(seed, has_elr=has_elr)
    world.now_ms += 60_000
    for broker_id in BROKERS:
        broker = world.image.brokers.get(broker_id)
        previous = -1 if broker is None else broker.broker_epoch
        decision = world.controller.register(
            world.request(broker_id, previous=previous), cluster_id="c", next_offset=world.offset, now_ms=world.now_ms
        )
        world.write(decision.records, "register clean" if broker is not None else "register unclean")
        world.heartbeat(broker_id)
    for key, state in world.partitions().items():
        if state.isr or state.elr:
            assert state.leader != NO_LEADER, (key, state)


def test_the_runs_see_what_they_are_about() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100):
        seen += run(seed, has_elr=seed % 2 == 0).seen
    for what in (
        "leader lost",
        "elected from ISR",
        "elected from ELR",
        "elected as last known",
        "elected unclean",
        "isr 0",
        "isr 107",
        "isr 74",
        "reassignment 0",
        "election 0",
    ):
        assert seen[what], (what, seen)
