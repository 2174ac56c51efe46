"""Which events the service reads, and what it keeps of them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol, cast, runtime_checkable

from hailbus import ConfigurationError, Delivery, Event, event_info
from ride_events import CATALOGUE, LatLng
from ride_events.rides import RideCancelled, RidePooled, RideRequested, RideUnmatched

from recommender.app.facts import Closed, Fact, Journey, Opened
from recommender.domain.spots import BLOCK_RESOLUTION, SPOT_RESOLUTION
from recommender.domain.trips import wall_seconds
from recommender.zoning import zone_id_at

_SOURCE_FIELDS: Final = ("rider_id", "pickup", "dropoff", "started_at")
_POOL_EVENTS: Final[tuple[type[Event], ...]] = (RideRequested, RidePooled, RideCancelled, RideUnmatched)


@runtime_checkable
class CompletedJourney(Protocol):
    """The fields that an event must have to be learned from, of any publisher."""

    rider_id: str
    pickup: LatLng
    dropoff: LatLng
    started_at: datetime


def source_events(types: Sequence[str]) -> tuple[type[Event], ...]:
    """Return the event classes of the types to learn from, all versions.

    Raises:
        ConfigurationError: A type is unknown or does not tell of a journey.
    """
    found: list[type[Event]] = []
    for name in types:
        classes = [cls for cls in CATALOGUE if event_info(cls).type == name]
        if not classes:
            raise ConfigurationError(f"RECOMMENDER_SOURCES: there is no event type {name!r}; try 'ride.completed'")
        for cls in classes:
            missing = [field for field in _SOURCE_FIELDS if field not in cls.model_fields]
            if missing:
                raise ConfigurationError(
                    f"RECOMMENDER_SOURCES: nothing can be learned from {name!r}, as it has no {', '.join(missing)}"
                )
        found.extend(classes)
    if not found:
        raise ConfigurationError("RECOMMENDER_SOURCES is empty: name at least one event type, as 'ride.completed'")
    return tuple(found)


def handled_events(sources: Sequence[type[Event]]) -> tuple[type[Event], ...]:
    """Return all event classes that the service reads: its sources, and those that open and close rides."""
    return tuple(dict.fromkeys((*sources, *_POOL_EVENTS)))


def facts_of(delivery: Delivery[Event]) -> tuple[Fact, ...]:
    """Return what an event tells. An event of `handled_events` that is no request or end is a journey."""
    event = delivery.event
    if isinstance(event, RideRequested):
        return (
            Opened(
                ride_id=event.ride_id,
                rider_id=event.rider_id,
                pickup_cell=event.pickup.cell(BLOCK_RESOLUTION),
                pickup_zone=zone_id_at(event.pickup.lat, event.pickup.lng),
                dropoff_cell=event.dropoff.cell(BLOCK_RESOLUTION),
                dropoff_zone=zone_id_at(event.dropoff.lat, event.dropoff.lng),
                requested_s=wall_seconds(delivery.ctx.envelope.time),
            ),
        )
    if isinstance(event, (RidePooled, RideCancelled, RideUnmatched)):
        return (Closed(ride_id=event.ride_id),)
    journey = cast("CompletedJourney", event)  # `source_events` has looked at its fields
    learned = Journey(
        rider_id=journey.rider_id,
        pickup_cell=journey.pickup.cell(SPOT_RESOLUTION),
        pickup_zone=zone_id_at(journey.pickup.lat, journey.pickup.lng),
        dropoff_cell=journey.dropoff.cell(BLOCK_RESOLUTION),
        dropoff_zone=zone_id_at(journey.dropoff.lat, journey.dropoff.lng),
        started_s=wall_seconds(journey.started_at),
    )
    ride_id = getattr(event, "ride_id", None)
    return (learned, Closed(ride_id=ride_id)) if isinstance(ride_id, str) else (learned,)


__all__ = ["facts_of", "handled_events", "source_events"]
