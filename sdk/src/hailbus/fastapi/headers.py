"""Headers that requests of event-driven services share: the idempotency key, and the event time of a replay."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Header

from hailbus.clock import ServiceClock
from hailbus.fastapi.problems import ProblemError

__all__ = ["EventTime", "IdempotencyKey", "in_range", "moment_of"]

IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[A-Za-z0-9._:/-]{1,128}$",
        description="The same key and body get the same answer again; ids are derived from it.",
    ),
]
EventTime = Annotated[
    str | None,
    Header(
        alias="Event-Time",
        description="ISO 8601 with zone; only where the service runs by the event clock.",
        json_schema_extra={"format": "date-time"},
    ),
]
FIRST_MOMENT = datetime(1970, 1, 2, tzinfo=UTC)
LAST_MOMENT = datetime(2100, 1, 1, tzinfo=UTC)
REFUSED = "this service runs by the wall clock: leave event times out, or start it with the event clock"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)\Z", re.ASCII)


def moment_of(event_time: str | None, clock: ServiceClock) -> datetime | None:
    """The moment that the header `Event-Time` gives, in UTC; None without the header.

    Raises:
        ProblemError: It is no time (`malformed`), or the service runs by the wall clock (`event-time-refused`).
    """
    if event_time is None:
        return None
    try:
        if not _TIME.match(event_time):
            raise ValueError
        moment = datetime.fromisoformat(event_time).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        if clock.name == "wall":
            raise ProblemError("event-time-refused", REFUSED) from error
        raise ProblemError(
            "malformed", "the header Event-Time is no ISO 8601 time with a zone, as in 2014-05-01T08:00:00Z"
        ) from error
    return in_range(moment, clock)


def in_range(moment: datetime, clock: ServiceClock) -> datetime:
    """An event time that came in a body, in UTC. Errors as for `moment_of`."""
    if clock.name == "wall":
        raise ProblemError("event-time-refused", REFUSED)
    if not FIRST_MOMENT <= moment <= LAST_MOMENT:
        raise ProblemError("malformed", "event times are between 1970 and 2100")
    return moment.astimezone(UTC)
