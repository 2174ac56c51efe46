"""RFC 9457 problem responses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from bike.domain import errors

MEDIA_TYPE: Final = "application/problem+json"


class FieldProblem(BaseModel):
    """One field that is wrong."""

    at: str = Field(description="Where, as in `body.place.lat`.")
    message: str


class Problem(BaseModel):
    """What went wrong, by RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[FieldProblem] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of problem: its status and title."""

    status: int
    title: str


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "malformed": Kind(status=400, title="Malformed request"),
        "event-time-refused": Kind(status=400, title="Event-Time is refused"),
        "event-time-required": Kind(status=400, title="Event-Time is required"),
        "not-found": Kind(status=404, title="Not found"),
        "method-not-allowed": Kind(status=405, title="Method not allowed"),
        "bike-taken": Kind(status=409, title="Bike is taken"),
        "wrong-state": Kind(status=409, title="Not possible in this state"),
        "too-large": Kind(status=413, title="Request body too large"),
        "unsupported-media-type": Kind(status=415, title="Unsupported media type"),
        "invalid": Kind(status=422, title="Invalid request"),
        "idempotency-key-reused": Kind(status=422, title="Idempotency-Key was used for another request"),
        "internal": Kind(status=500, title="Our fault"),
        "unavailable": Kind(status=503, title="Not available now"),
    }
)
_REFUSALS: Final[Mapping[type[Exception], str]] = MappingProxyType(
    {errors.NotFound: "not-found", errors.BikeTaken: "bike-taken", errors.WrongState: "wrong-state"}
)


class ProblemError(Exception):
    """Raised in a route to answer with a problem."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


def refusal_code(refusal: Exception) -> str:
    """Return the problem code of a refusal."""
    return _REFUSALS[type(refusal)]


def problem_body(code: str, detail: str, *, instance: str | None, fields: Sequence[FieldProblem] = ()) -> bytes:
    """Return a problem as JSON. ASCII only, as what clients sent (a lone surrogate, say) may not be valid text."""
    kind = KINDS[code]
    body: dict[str, Any] = {  # Any: JSON
        "type": f"/problems/{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
    }
    if instance is not None:
        body["instance"] = instance
    if fields:
        body["errors"] = [field.model_dump() for field in fields]
    return json.dumps(body, ensure_ascii=True).encode()


def problem_response(code: str, detail: str, *, instance: str | None, fields: Sequence[FieldProblem] = ()) -> Response:
    """Return a problem as a response."""
    return Response(
        problem_body(code, detail, instance=instance, fields=fields),
        status_code=KINDS[code].status,
        media_type=MEDIA_TYPE,
        headers={"Retry-After": "1"} if code == "unavailable" else None,
    )


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:  # Any: OpenAPI
    """Return OpenAPI responses for problems, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = KINDS[code]
        entry = responses.setdefault(
            kind.status,
            {"description": kind.title, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}},
        )
        if kind.title not in entry["description"]:
            entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
    return responses
