"""Makes a failing scenario smaller for as long as it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hailbus_broker.testing.campaign.scenario import Scenario

_SHORTER: Final = (0.5, 0.75)
_MIN_DURATION_S: Final = 2.0
_OTHER_SEEDS: Final = 1_000_000
"""The other seeds that a smaller scenario is tried with are so far away from each other."""


def shrink(
    scenario: Scenario, fails: Callable[[Scenario], bool], *, max_runs: int = 300, seed_count: int = 5
) -> Scenario:
    """Remove faults, then clients, then time, as long as the scenario fails: many at once, then one at a time.

    A seed decides every delay, so a smaller scenario is another run, and may need another seed to fail. Each one is
    tried with several.

    Args:
        scenario: One that fails.
        fails: Runs a scenario. It should accept only the failure that is looked for.
        max_runs: How many scenarios to try at most.
        seed_count: How many seeds to try each smaller scenario with.

    Returns:
        The smallest one that was found. Without any further part it passes with all of these seeds, unless `max_runs`
        were used up.
    """
    runs = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(scenario):
            for number in range(seed_count):
                if runs >= max_runs:
                    return scenario
                runs += 1
                tried = replace(candidate, seed=scenario.seed + number * _OTHER_SEEDS)
                if fails(tried):
                    scenario, is_smaller = tried, True
                    break
            if is_smaller:
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for part in _parts(scenario.faults):
        yield replace(scenario, faults=tuple(fault for fault in scenario.faults if fault not in part))
    for part in _parts(scenario.clients):
        names = {client.name for client in part}
        yield replace(
            scenario,
            clients=tuple(client for client in scenario.clients if client.name not in names),
            faults=tuple(fault for fault in scenario.faults if fault.client not in names),
        )
    last_s = max((fault.at_s for fault in scenario.faults), default=0.0)
    for share in _SHORTER:
        duration_s = round(max(scenario.duration_s * share, last_s + 1), 1)
        if _MIN_DURATION_S <= duration_s < scenario.duration_s:
            yield replace(scenario, duration_s=duration_s)
    if scenario.partition_count > 1:
        yield replace(scenario, partition_count=1)


def _parts(whole: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Halves, quarters and so on, down to single elements."""
    size = len(whole)
    while size > 1:
        size = (size + 1) // 2
        for start in range(0, len(whole), size):
            yield whole[start : start + size]
    if len(whole) == 1:
        yield whole
