"""The short form of the campaigns against clusters: 200 seeds, every tenth of them twice, with different hash seeds."""

from __future__ import annotations

import os

import pytest
from hailbus_devtools.simulate.main import ENOUGH_SEEDS, Campaign, run_campaign

SEEDS = ENOUGH_SEEDS


@pytest.mark.campaign
@pytest.mark.timeout(1_200)
def test_two_hundred_seeds_of_clusters_find_nothing_and_reach_everything() -> None:
    campaign = run_campaign(0, SEEDS, workers=os.cpu_count() or 1, nodes=3)
    assert campaign.failures == []
    assert campaign.differing == []
    assert campaign.missing == []
    assert campaign.seed_count == SEEDS


def test_a_campaign_of_clusters_that_misses_what_matters_says_so() -> None:
    campaign = Campaign(seed_count=SEEDS, node_count=3)
    assert "unclean election" in campaign.missing
    assert not campaign.is_clean
