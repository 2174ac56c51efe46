"""Makes a failing scenario smaller for as long as it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.testing.campaign.scenario import Scenario

_SHORTER = (0.5, 0.75)
_MIN_DURATION_S = 2.0


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, max_runs: int = 150) -> Scenario:
    """Remove faults, then clients, then time, one at a time, as long as the scenario fails.

    Args:
        scenario: One that fails.
        fails: Runs a scenario. It should accept only the failure that is looked for.
        max_runs: How many scenarios to try at most.

    Returns:
        The smallest one that was found; each further step makes it pass, unless `max_runs` were used up.
    """
    runs = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(scenario):
            if runs >= max_runs:
                return scenario
            runs += 1
            if fails(candidate):
                scenario, is_smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for fault in scenario.faults:
        yield scenario.without_fault(fault)
    for client in scenario.clients:
        yield scenario.without_client(client.name)
    last_s = max((fault.at_s for fault in scenario.faults), default=0.0)
    for share in _SHORTER:
        duration_s = round(max(scenario.duration_s * share, last_s + 1), 1)
        if _MIN_DURATION_S <= duration_s < scenario.duration_s:
            yield replace(scenario, duration_s=duration_s)
    if scenario.partition_count > 1:
        yield replace(scenario, partition_count=1)
