"""Answers that were stored under their idempotency key, as responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.responses import Response

from hailbus.fastapi.problems import PROBLEM_JSON

if TYPE_CHECKING:
    from hailbus.idempotency import Answer

__all__ = ["reply_to"]


def reply_to(answer: Answer) -> Response:
    """Send a stored answer; one that was given before says so in the header `Idempotent-Replay`."""
    return Response(
        answer.body,
        status_code=answer.status,
        media_type="application/json" if answer.status < 400 else PROBLEM_JSON,
        headers={"Idempotent-Replay": "true"} if answer.replayed else None,
    )
