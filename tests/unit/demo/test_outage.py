"""When the payment provider is away in a run with `--outage`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hailbus_demo import outage
from hailbus_demo.errors import RunFailedError
from hailbus_demo.options import Outage
from hailbus_demo.outage import BEGINS, ENDS, OutageOfProvider
from hailbus_demo.replay.http import Answer, UnreachableError


class Provider:
    """Stands for the provider's API: notes each fault that is set, and how much of the run was over."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.share = 0.0
        self.set: list[tuple[str, float]] = []

    def share_done(self) -> float:
        """Let the run advance by a twentieth each time somebody asks."""
        self.share = round(self.share + 0.05, 2)
        return self.share

    async def request(self, method: str, path: str, *, body: bytes, within_s: float) -> Answer:
        assert (method, path) == ("POST", "/admin/faults")
        assert within_s > 0
        self.set.append((json.loads(body)["outage"], self.share))
        return Answer(status=self.status, body=b"no")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = Provider()
    monkeypatch.setattr(outage, "HttpClient", lambda url, connections: provider)
    monkeypatch.setattr(outage, "LOOK_EVERY_S", 0.0)
    return provider


def disturber(provider: Provider, said: list[str]) -> OutageOfProvider:
    return OutageOfProvider(Outage.HANG, "http://provider", share_done=provider.share_done, say=said.append)


async def test_the_provider_is_away_for_a_third_of_the_run(provider: Provider) -> None:
    said: list[str] = []
    await disturber(provider, said).run()
    assert provider.set == [("hang", BEGINS), ("none", ENDS)]
    assert said == ["outage: the payment provider is away (hang)", "outage: the payment provider is back"]


async def test_the_provider_is_back_when_the_rides_are_over(provider: Provider) -> None:
    one = disturber(provider, [])
    one.hurry.set()
    await one.run()
    assert [fault for fault, _ in provider.set] == ["hang", "none"]


async def test_a_provider_that_refuses_ends_the_run(provider: Provider) -> None:
    provider.status = 422
    with pytest.raises(RunFailedError, match="refused the outage with 422"):
        await disturber(provider, []).run()
    assert len(provider.set) == 1, "what it refuses it would refuse again"


async def test_a_provider_that_starts_again_is_asked_until_it_answers(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = provider.request, 0

    async def request(*arguments: str, **more: Any) -> Answer:  # Any: body and patience
        nonlocal asked
        asked += 1
        if asked < 3:
            raise UnreachableError("refused")
        return await answer(*arguments, **more)

    monkeypatch.setattr(provider, "request", request)
    await disturber(provider, []).run()
    assert [fault for fault, _ in provider.set] == ["hang", "none"]
