"""A seed gives the same trace in every process, whatever its hash seed and its addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hailbus_broker.testing.simulation import World
from hailbus_broker.testing.simulation.patching import patched

from tests.integration.broker.simulation import cluster_program, program

ROOT = Path(__file__).parents[4]


def run(seed: int) -> tuple[str, int]:
    world = World(seed)
    count = world.run(program.main)
    return world.trace.digest, count


def run_apart(module: str, seed: int) -> tuple[str, int]:
    """Run a program in a process with another hash seed."""
    environment = {**os.environ, "PYTHONHASHSEED": str(1234 + seed)}
    command = [sys.executable, "-m", f"tests.integration.broker.simulation.{module}", str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    digest, count = done.stdout.splitlines()[-1].split()
    return digest, int(count)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_the_same_trace_in_another_process(seed: int) -> None:
    expected = run(seed)
    assert expected[1] > 100
    assert run(seed) == expected
    assert run_apart("program", seed) == expected


def test_a_seed_gives_the_same_trace_of_a_cluster_in_another_process() -> None:
    with patched():
        expected = cluster_program.run(1)
        assert expected[1] > 1_000
        assert cluster_program.run(1) == expected
    assert run_apart("cluster_program", 1) == expected


def test_each_seed_has_its_own_trace() -> None:
    with patched():
        assert len({run(seed)[0] for seed in range(4)}) == 4
