"""Campaigns: drawn scenarios of clients and faults against a simulated broker, and checks of what was promised.

outcome = run_scenario(draw(seed=7))
assert not outcome.problems
outcome = run_scenario(draw_cluster(seed=7, node_count=3))
"""

from hailbus_broker.testing.campaign.run import Outcome, run_scenario
from hailbus_broker.testing.campaign.scenario import (
    Nodes,
    PlannedClient,
    PlannedFault,
    Scenario,
    draw,
    draw_cluster,
    draw_scenario,
    has_guests,
)
from hailbus_broker.testing.campaign.shrinking import shrink

__all__ = [
    "Nodes",
    "Outcome",
    "PlannedClient",
    "PlannedFault",
    "Scenario",
    "draw",
    "draw_cluster",
    "draw_scenario",
    "has_guests",
    "run_scenario",
    "shrink",
]
