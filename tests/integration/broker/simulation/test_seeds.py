"""The short form of the campaigns: 200 seeds, every tenth of them twice, in processes with different hash seeds."""

from __future__ import annotations

import os

import pytest
from hailbus_devtools.simulate.main import Campaign, measure_speed, run_campaign

SEEDS = 200


@pytest.mark.campaign
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


def test_the_speed_is_measured_at_twenty_produce_requests_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hailbus_devtools.simulate.main.SPEED_RUNS", 1)
    assert measure_speed()
    speed, rate = capsys.readouterr().out.splitlines()
    assert "simulated seconds per second of CPU time" in speed
    assert 19.5 < float(rate.split()[0]) < 21
