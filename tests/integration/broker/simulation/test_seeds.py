"""The short form of the campaigns: 200 seeds, every tenth of them twice, in processes with different hash seeds."""

from __future__ import annotations

import os

import pytest
from hailbus_devtools.simulate.main import Campaign, run_campaign

SEEDS = 200


@pytest.mark.timeout(1_200)
def test_two_hundred_seeds_find_nothing_and_reach_everything() -> None:
    campaign = run_campaign(0, SEEDS, workers=os.cpu_count() or 1)
    assert campaign.failures == []
    assert campaign.differing == []
    assert campaign.missing == []
    assert campaign.seed_count == SEEDS


def test_a_campaign_that_misses_what_matters_says_so() -> None:
    campaign = Campaign(seed_count=SEEDS)
    assert "torn write" in campaign.missing
    assert not campaign.is_clean
