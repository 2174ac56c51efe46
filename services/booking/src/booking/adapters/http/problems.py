"""RFC 9457 problem responses: every refusal and every mistake of a client has a code, a status and a sentence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from booking.domain import errors

MEDIA_TYPE: Final = "application/problem+json"


class FieldProblem(BaseModel):
    """One field that is wrong."""

    at: str = Field(description="Where, as in `body.pickup.lat`.")
    message: str


class Problem(BaseModel):
    """What went wrong, by RFC 9457."""

    type: str = Field(description="`/problems/<code>`; GET it for an explanation.")
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[FieldProblem] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of problem: its status, title and what to do about it."""

    status: int
    title: str
    advice: str


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "malformed": Kind(status=400, title="Malformed request", advice="Send what the OpenAPI document asks for."),
        "event-time-refused": Kind(
            status=400,
            title="Event-Time is refused",
            advice="This service runs by the wall clock: leave the header out, or start it with BOOKING_CLOCK=event.",
        ),
        "event-time-required": Kind(
            status=400,
            title="Event-Time is required",
            advice="The event clock has seen no event yet: send the header Event-Time.",
        ),
        "not-found": Kind(status=404, title="Not found", advice="Check the id and the path."),
        "method-not-allowed": Kind(status=405, title="Method not allowed", advice="Use a method of the Allow header."),
        "wrong-state": Kind(
            status=409, title="Not possible in this state", advice="GET the ride; its state says what can come next."
        ),
        "not-your-ride": Kind(
            status=409, title="Ride of another driver", advice="GET the ride; it may have been redispatched."
        ),
        "driver-busy": Kind(status=409, title="Driver is on a ride", advice="Complete or cancel the ride first."),
        "driver-offline": Kind(status=409, title="Driver is offline", advice="Go online first."),
        "quote-expired": Kind(status=409, title="Quote has expired", advice="Ask for a new quote."),
        "quote-taken": Kind(status=409, title="Quote was accepted before", advice="Ask for a new quote."),
        "too-large": Kind(status=413, title="Request body too large", advice="Send less at once."),
        "unsupported-media-type": Kind(
            status=415, title="Unsupported media type", advice="Send the body as application/json."
        ),
        "invalid": Kind(status=422, title="Invalid request", advice="Correct the fields named in `errors`."),
        "idempotency-key-reused": Kind(
            status=422,
            title="Idempotency-Key was used for another request",
            advice="Take a new key for a new request; repeat a request with the same path and body.",
        ),
        "internal": Kind(status=500, title="Our fault", advice="Repeat the request with the same key; tell us."),
        "unavailable": Kind(
            status=503, title="Not available now", advice="Repeat the request with the same key after Retry-After."
        ),
    }
)

_REFUSALS: Final[Mapping[type[errors.Refusal], str]] = MappingProxyType(
    {
        errors.NotFound: "not-found",
        errors.WrongState: "wrong-state",
        errors.NotYourRide: "not-your-ride",
        errors.DriverBusy: "driver-busy",
        errors.DriverOffline: "driver-offline",
        errors.QuoteExpired: "quote-expired",
        errors.QuoteTaken: "quote-taken",
    }
)


class ProblemError(Exception):
    """Raised in a route to answer with a problem."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


def problem_dict(
    code: str, detail: str, *, instance: str | None, fields: Sequence[FieldProblem] = ()
) -> dict[str, Any]:  # Any: JSON
    """Return a problem as a JSON object."""
    kind = KINDS[code]
    body: dict[str, Any] = {
        "type": f"/problems/{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
    }
    if instance is not None:
        body["instance"] = instance
    if fields:
        body["errors"] = [field.model_dump() for field in fields]
    return body


def problem_bytes(body: Mapping[str, Any]) -> bytes:
    """Return a problem as JSON. ASCII only, as what clients sent (a lone surrogate, say) may not be valid text."""
    return json.dumps(body, ensure_ascii=True).encode()


def problem_response(code: str, detail: str, *, instance: str | None, fields: Sequence[FieldProblem] = ()) -> Response:
    """Return a problem as a response."""
    headers = {"Retry-After": "1"} if code == "unavailable" else None
    body = problem_bytes(problem_dict(code, detail, instance=instance, fields=fields))
    return Response(body, status_code=KINDS[code].status, media_type=MEDIA_TYPE, headers=headers)


def refusal_code(refusal: Exception) -> str:
    """Return the problem code of a refusal."""
    return _REFUSALS[type(refusal)]  # type: ignore[index]  # a refusal without a code is our mistake, so KeyError it is


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:  # Any: OpenAPI
    """Return OpenAPI responses for problems, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = KINDS[code]
        entry = responses.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        if kind.title not in entry["description"]:
            entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
        entry["content"][MEDIA_TYPE]["examples"][code] = {
            "value": {"type": f"/problems/{code}", "title": kind.title, "status": kind.status, "detail": kind.advice}
        }
    return responses
