"""One ride's records for people: what was on the wire, in the order in which it was written."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from dashboard.domain.timeline import Record

Json = dict[str, Any]  # Any: JSON
_PATIENCE_S: Final = 1.0


def record_view(record: Record) -> Json:
    """Return a record as JSON: place, times, headers and payload."""
    headers = [[name, value.decode(errors="replace")] for name, value in record.headers]
    attributes = dict(headers)
    try:
        payload = json.loads(record.value) if record.value is not None else None
    except ValueError:
        payload = record.value.decode(errors="replace") if record.value is not None else None
    return {
        "type": attributes.get("ce_type", ""),
        "id": attributes.get("ce_id", ""),
        "source": attributes.get("ce_source", ""),
        "event_time": attributes.get("ce_time", ""),
        "written_ms": record.timestamp,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": record.key.decode(errors="replace") if record.key is not None else None,
        "headers": headers,
        "payload": payload,
    }


def ride_view(ride_id: str, records: Sequence[Record], booking: Json | None) -> Json:
    """Return a ride's records, and what booking itself says of it."""
    return {"ride_id": ride_id, "events": [record_view(record) for record in records], "booking": booking}


class BookingApi:
    """Asks booking for its own view of a ride.

    Args:
        url: Where booking is.
        token: An operator's bearer token, None where booking wants none.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def says(self, ride_id: str) -> Json:
        """Return booking's own view of a ride, {"error": …} when it does not answer in a second."""
        url = f"{self._url}/rides/{quote(ride_id, safe='')}"
        # The scheme is checked by the settings.
        return await asyncio.to_thread(_fetch, Request(url, headers=self._headers))  # noqa: S310


def _fetch(request: Request) -> Json:
    try:
        with urlopen(request, timeout=_PATIENCE_S) as response:  # noqa: S310 as above
            found = json.load(response)
    except HTTPError as error:
        return {"error": f"booking answers {error.code}"}
    except (URLError, OSError, ValueError) as error:
        return {"error": f"booking does not answer: {getattr(error, 'reason', error)}"}
    if not isinstance(found, dict):
        return {"error": "booking answers with something else than a ride"}
    return {name: found.get(name) for name in ("state", "seq", "driver_id", "payment", "fare", "paid", "owed")}


__all__ = ["BookingApi", "record_view", "ride_view"]
