"""Places and ids as events say them."""

import uuid

from ride_events import LatLng

from bike.domain.hire import Place

NAMESPACE = uuid.UUID("0e8a4a1c-9a60-5e57-8f0e-3c9f3b1b6d21")


def derived_id(*parts: object) -> str:
    """Return the uuid5 of the parts: the same parts give the same id, before and after a crash."""
    return str(uuid.uuid5(NAMESPACE, "/".join(str(part) for part in parts)))


def lat_lng(place: Place) -> LatLng:
    """Return a place as events say it."""
    return LatLng(lat=place.lat, lng=place.lng)
