"""The short form of the campaigns against clusters, every tenth seed twice, in processes with different hash seeds."""

from __future__ import annotations

import os

import pytest
from hailbus_devtools.simulate.main import ENOUGH_SEEDS, Campaign, run_campaign

SEEDS = 40
"""About a second and a half of CPU time each; 200 of them have to reach what `REQUIRED_IN_A_CLUSTER` lists."""


@pytest.mark.timeout(1_200)
def test_seeds_of_clusters_find_nothing() -> None:
    campaign = run_campaign(0, SEEDS, workers=os.cpu_count() or 1, nodes=3)
    assert campaign.failures == []
    assert campaign.differing == []
    assert campaign.seed_count == SEEDS
    for name in ("partition leader changed", "truncation", "controller failover", "ISR at its minimum"):
        assert campaign.notes[name], f"never reached: {name}"


def test_a_campaign_of_clusters_that_misses_what_matters_says_so() -> None:
    campaign = Campaign(seed_count=ENOUGH_SEEDS, node_count=3)
    assert "unclean election" in campaign.missing
    assert not campaign.is_clean
