"""Runs one scenario with guests in a process with a fixed hash seed, because client libraries iterate over sets."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.testing.campaign import PlannedClient, PlannedFault, Scenario, run_scenario

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT: Final[Mapping[str, str]] = {
    "PYTHONHASHSEED": "0",
    "AIOKAFKA_NO_EXTENSIONS": "1",  # aiokafka's C extensions ask the C library for the time
}
NAMES: Final = {"PlannedClient": PlannedClient, "PlannedFault": PlannedFault, "Scenario": Scenario}


def problems_of(scenario: Scenario) -> dict[str, list[str]]:
    """Run a scenario in a process of its own, and return what the checks found."""
    found: dict[str, list[str]] = run_pinned(scenario)["problems"]
    return found


def run_pinned(scenario: Scenario) -> dict[str, Any]:
    """Run a scenario in a process of its own; return `problems`, `notes` and the `digest` of its trace.

    Raises:
        subprocess.CalledProcessError: The process died.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, **ENVIRONMENT},
        input=scenario.to_python(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Run the scenario that stands on standard input, as Python."""
    from hailbus_devtools.simulate.guests import Guests

    logging.disable()
    scenario = eval(sys.stdin.read(), NAMES)  # noqa: S307 - what `to_python` has written
    outcome = run_scenario(scenario, make_guests=Guests)
    print(json.dumps({"problems": outcome.problems, "notes": outcome.notes, "digest": outcome.digest}))


if __name__ == "__main__":
    main()
