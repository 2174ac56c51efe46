"""Campaigns: drawn scenarios of clients and faults against a simulated broker, and checks of what was promised.

outcome = run_scenario(draw(seed=7))
assert not outcome.problems
"""

from hailbus_broker.testing.campaign.run import Outcome, run_scenario
from hailbus_broker.testing.campaign.scenario import PlannedClient, PlannedFault, Scenario, draw, has_guests
from hailbus_broker.testing.campaign.shrinking import shrink

__all__ = ["Outcome", "PlannedClient", "PlannedFault", "Scenario", "draw", "has_guests", "run_scenario", "shrink"]
