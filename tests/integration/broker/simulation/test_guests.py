"""Campaigns with unmodified clients of other packages: aiokafka, and services of the SDK on simulated stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hailbus_broker.testing.campaign import draw, has_guests, run_scenario
from hailbus_broker.testing.campaign.scenario import AIOKAFKA_AT, SERVICES_AT
from hailbus_devtools.simulate.guests.pinned import ENVIRONMENT, run_pinned

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("seed", [AIOKAFKA_AT, SERVICES_AT])
def test_a_seed_with_guests_leaves_the_same_trace_in_every_process(seed: int) -> None:
    scenario = replace(draw(seed), duration_s=4.0)
    first, second = run_pinned(scenario), run_pinned(scenario)
    assert first["problems"] == {}
    assert first == second
    assert sum(count for name, count in first["notes"].items() if name.startswith(("aiokafka: ", "outbox "))) > 0


def test_a_scenario_with_guests_wants_somebody_who_makes_them() -> None:
    assert has_guests(draw(SERVICES_AT))
    assert not has_guests(draw(0))
    with pytest.raises(ValueError, match="give make_guests"):
        run_scenario(draw(SERVICES_AT))


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("forget the inbox", "not_applied_once"),
        ("mark without sending", "unpublished"),
        ("leave offsets out", "inexact_copies of a service"),
    ],
)
def test_a_fault_of_the_sdk_is_found(fault: str, found: str) -> None:
    command = [sys.executable, "-m", "tests.integration.broker.simulation.sabotaged_services", fault]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert found in json.loads(done.stdout)
