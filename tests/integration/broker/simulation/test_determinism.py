"""A seed gives the same trace in every process, whatever its hash seed and its addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hailbus_broker.testing.simulation import World
from hailbus_broker.testing.simulation.patching import patched

from tests.integration.broker.simulation import program

ROOT = Path(__file__).parents[4]


def run(seed: int) -> tuple[str, int]:
    world = World(seed)
    count = world.run(program.main)
    return world.trace.digest, count


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_the_same_trace_in_another_process(seed: int) -> None:
    expected = run(seed)
    assert expected[1] > 100
    assert run(seed) == expected
    environment = {**os.environ, "PYTHONHASHSEED": str(1234 + seed)}
    command = [sys.executable, "-m", "tests.integration.broker.simulation.program", str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    digest, count = done.stdout.split()
    assert (digest, int(count)) == expected


def test_each_seed_has_its_own_trace() -> None:
    with patched():
        assert len({run(seed)[0] for seed in range(4)}) == 4
