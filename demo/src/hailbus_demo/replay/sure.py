"""Requests that are made until they are answered: the same key, the same body, through crashes of the service."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hailbus_demo.replay.http import Answer, HttpClient, UnreachableError
from hailbus_demo.replay.tokens import OPERATOR, By, Tokens

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0


class GaveUpError(Exception):
    """A service did not answer until the deadline; the message names it and its last words."""


class NotAcceptedError(GaveUpError):
    """The service does not accept our token."""


@dataclass(slots=True)
class Traffic:
    """What was sent and how it went. `latencies_ms` keeps the last 10,000 answers."""

    sent: int = 0
    retried: int = 0
    refused: int = 0
    replayed: int = 0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))

    def percentile_ms(self, share: float) -> float:
        """Return the latency that this share of the last answers stayed within."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class SureClient:
    """Posts to one service until it answers with something below 500 but 429, or `deadline_s` has passed.

    Safe to repeat: each POST carries an `Idempotency-Key`, and the service answers the second with the first's answer.
    With `tokens`, each request says whom it is from; reads are an operator's.
    """

    def __init__(
        self, http: HttpClient, *, name: str, deadline_s: float, tokens: Tokens | None = None, seed: int = 0
    ) -> None:
        self.http = http
        self.tokens = tokens
        self.name = name
        self.deadline_s = deadline_s
        self.traffic = Traffic()
        self._random = Random(seed)

    async def get(self, path: str) -> Any:  # Any: JSON
        """Return the JSON of a GET that must succeed."""
        answer = await self._until_answered("GET", path, None, self._authorization(OPERATOR))
        if answer.status != 200:
            raise GaveUpError(f"{self.name} answered GET {path} with {answer.status}: {_excerpt(answer.body)}")
        return json.loads(answer.body)

    async def post(
        self, path: str, body: Any, *, key: str, event_time: str | None = None, by: By = OPERATOR
    ) -> tuple[int, Any]:  # Any: JSON
        """Post JSON; return status and JSON of the answer, which may be a refusal (400–499)."""
        headers = {"Idempotency-Key": key, **self._authorization(by)}
        if event_time is not None:
            headers["Event-Time"] = event_time
        content = json.dumps(body, separators=(",", ":")).encode()
        answer = await self._until_answered("POST", path, content, headers)
        if answer.status >= 400:
            self.traffic.refused += 1
        try:
            return answer.status, json.loads(answer.body) if answer.body else None
        except ValueError:
            return answer.status, {"detail": _excerpt(answer.body)}

    def _authorization(self, by: By) -> dict[str, str]:
        return {} if self.tokens is None else {"Authorization": f"Bearer {self.tokens.of(by)}"}

    async def _until_answered(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        began = time.monotonic()
        wait_s = FIRST_WAIT_S
        self.traffic.sent += 1
        while True:
            asked = time.monotonic()
            try:
                answer = await self.http.request(method, path, body=body, headers=headers)
                if answer.status == 401:
                    raise NotAcceptedError(f"{self.name} does not accept our token: {_excerpt(answer.body)}")
                if answer.status < 500 and answer.status != 429:
                    self.traffic.latencies_ms.append((time.monotonic() - asked) * 1000)
                    return answer
                trouble = f"status {answer.status}: {_excerpt(answer.body)}"
                wait_s = max(wait_s, min(answer.retry_after_s, LONGEST_WAIT_S))
            except UnreachableError as error:
                trouble = str(error)
            if time.monotonic() - began > self.deadline_s:
                raise GaveUpError(
                    f"{self.name} did not do {method} {path} within {self.deadline_s:g} s ({trouble}): look at its log"
                )
            self.traffic.retried += 1
            await asyncio.sleep(wait_s * (0.5 + self._random.random()))
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)


def _excerpt(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace")
