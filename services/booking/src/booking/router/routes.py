"""Which region a request is for, as far as the request itself says: by its pickup or position, or the id in it.

| Request | Goes to |
|---|---|
| `POST /quotes`, `POST /drivers/{id}/online` and `/location` | the region of the place in the body |
| `POST /rides` | the region in the quote's id |
| `/quotes/{id}`, `/rides/{id}` and below | the region in the id |
| `/drivers/{id}`, `POST /drivers/{id}/offline` | the region of the rest; a 421 names the driver's |
| `POST /driver-updates` | each update to its own region |
| `POST /clock` | every region |
| anything else, such as `GET /rides` and `/docs` | any region |

A region checks what it is sent, so a wrong guess costs a 421 and one more request. A request that makes no sense goes
to the region of the rest, which refuses it in the words of booking.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ride_events import cell

from booking.domain.region import Region, Regions

Update = Mapping[str, Any]  # Any: JSON that a client sent


@dataclass(frozen=True, slots=True)
class ToOne:
    """One region does it."""

    region: Region


@dataclass(frozen=True, slots=True)
class ToAll:
    """Every region does it."""


@dataclass(frozen=True, slots=True)
class ToAny:
    """Any region can answer."""


@dataclass(frozen=True, slots=True)
class ToOwners:
    """Each update is for the region that owns what it is about."""

    updates: Sequence[Update]


Route = ToOne | ToAll | ToAny | ToOwners


def route(method: str, path: str, body: bytes, regions: Regions) -> Route:
    """Return who is to do a request."""
    match method, path.strip("/").split("/"):
        case "POST", ["clock"]:
            return ToAll()
        case "POST", ["driver-updates"]:
            updates = _updates(body)
            return ToOne(regions.rest) if updates is None else ToOwners(updates)
        case "POST", ["quotes"]:
            return ToOne(region_of_place(_member(body, "pickup"), regions))
        case "POST", ["drivers", _, "online" | "location"]:
            return ToOne(region_of_place(_member(body, "position"), regions))
        case "POST", ["rides"]:
            return ToOne(_region_of_id(_member(body, "quote_id"), regions))
        case _, ["quotes" | "rides", key, *_]:
            return ToOne(regions.of_id(key))
        case _, ["drivers", _, *_]:
            return ToOne(regions.rest)
        case _:
            return ToAny()


def region_of_update(update: Update, regions: Regions) -> Region:
    """Return the region of one of many updates: by its ride, else by its position."""
    if "ride_id" in update:
        return _region_of_id(update["ride_id"], regions)
    return region_of_place(update.get("position"), regions)


def knows_owner(update: Update) -> bool:
    """Return whether the update itself says who owns it. Where a driver is online, it does not say."""
    return "ride_id" in update or update.get("kind") == "online"


def region_of_place(place: Any, regions: Regions) -> Region:  # Any: JSON that a client sent
    """Return the owner of a place."""
    match place:
        case {"lat": float() | int() as lat, "lng": float() | int() as lng} if -90 <= lat <= 90 and -180 <= lng <= 180:
            return regions.of_cell(cell(lat, lng))
        case _:
            return regions.rest


def _region_of_id(key: Any, regions: Regions) -> Region:  # Any: JSON that a client sent
    return regions.of_id(key) if isinstance(key, str) else regions.rest


def _json(body: bytes) -> Any:  # Any: JSON that a client sent
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _member(body: bytes, name: str) -> Any:  # Any: JSON that a client sent
    content = _json(body)
    return content.get(name) if isinstance(content, dict) else None


def _updates(body: bytes) -> Sequence[Update] | None:
    """Return the updates of a body, None where it is not of the expected shape."""
    match _json(body):
        case {"updates": [_, *_] as updates} if all(
            isinstance(update, dict) and isinstance(update.get("driver_id"), str) for update in updates
        ):
            return list(updates)
        case _:
            return None


__all__ = ["Route", "ToAll", "ToAny", "ToOne", "ToOwners", "Update", "knows_owner", "region_of_update", "route"]
