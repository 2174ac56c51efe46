"""The city as the service knows it: all models, fed by facts, asked by requests."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, assert_never

import h3

from recommender.app.facts import Closed, Fact, Journey, Opened
from recommender.domain.destinations import DestinationModel, RankedDestination, Reason
from recommender.domain.pooling import OpenRide, OpenRides, PooledMatch
from recommender.domain.spots import BLOCK_RESOLUTION, SPOT_RESOLUTION, PickupSpots, RankedSpot
from recommender.domain.trips import Trip, wall_seconds
from recommender.zoning import Place, area_of, city_areas, place_of, zone_id_at

MODEL: Final = "back-off-3"
"""Name of the model in answers and events; grows when its answers change."""

Kind = Literal["destination", "pooled_ride", "pickup_spot"]
_POOL_DESTINATIONS: Final = 3
_WALK_FACTOR: Final = 1.3  # streets are that much longer than the straight line


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Who wants to go when from where, and perhaps whereto. Places in WGS-84 degrees."""

    rider_id: str
    at: datetime
    lat: float
    lng: float
    to_lat: float | None = None
    to_lng: float | None = None
    destinations: int = 5
    simulated: bool = False

    @property
    def destination_cell(self) -> str | None:
        """The res-8 cell of the destination, where one is given."""
        if self.to_lat is None or self.to_lng is None:
            return None
        return str(h3.latlng_to_cell(self.to_lat, self.to_lng, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One recommendation of an answer. `rank` counts from 1 per kind; `metres` is a walk."""

    option_id: str
    kind: Kind
    rank: int
    score: float
    code: str
    reason: str
    cell: str
    lat: float
    lng: float
    name: str | None = None
    zone_id: int | None = None
    ride_id: str | None = None
    metres: int | None = None


class City:
    """All models of the service in memory. Rebuilt from the stored facts at every start, in their order."""

    def __init__(self) -> None:
        self._areas = city_areas()
        self._destinations = DestinationModel(self._areas)
        self._spots = PickupSpots()
        self._open_rides = OpenRides()
        self._stops: dict[int, Counter[str]] = {}  # drop-offs per area and res-9 cell; bounded by the city's cells
        self._favourite: dict[int, str] = {}
        self._area_of_stop: dict[str, int] = {}  # of the centres of the cells in `_stops`
        self._places: dict[int, Place] = {}

    @property
    def journeys(self) -> int:
        """How many journeys the models have learned."""
        return self._destinations.trips

    @property
    def open_rides(self) -> int:
        """How many rides could be shared now."""
        return len(self._open_rides)

    def apply(self, fact: Fact) -> None:
        """Learn one fact."""
        match fact:
            case Journey():
                self._learn(fact)
            case Opened():
                self._open_rides.open(
                    OpenRide(
                        ride_id=fact.ride_id,
                        rider_id=fact.rider_id,
                        origin=area_of(self._areas, fact.pickup_zone, fact.pickup_cell),
                        destination=area_of(self._areas, fact.dropoff_zone, fact.dropoff_cell),
                        requested_s=fact.requested_s,
                    )
                )
            case Closed():
                self._open_rides.close(fact.ride_id)
            case _:
                assert_never(fact)

    def _learn(self, journey: Journey) -> None:
        destination = area_of(self._areas, journey.dropoff_zone, journey.dropoff_cell)
        trip = Trip(
            origin=area_of(self._areas, journey.pickup_zone, journey.pickup_cell),
            destination=destination,
            started_s=journey.started_s,
            rider_id=journey.rider_id,
        )
        self._destinations.observe(trip)
        self._spots.observe(journey.pickup_cell, journey.started_s)
        stop = journey.dropoff_cell
        if stop not in self._area_of_stop:
            self._area_of_stop[stop] = self._area_at(*h3.cell_to_latlng(stop))
        if self._area_of_stop[stop] != destination:
            return  # a rider who is sent to the centre of this cell would arrive in another zone
        stops = self._stops.setdefault(destination, Counter())
        stops[stop] += 1
        best = self._favourite.get(destination)
        if best is None or stops[stop] > stops[best]:
            self._favourite[destination] = stop

    def recommend(self, request: Request) -> tuple[Option, ...]:
        """Return the options for a request: destinations, rides to share, and spots to be picked up at, best first."""
        at_s = wall_seconds(request.at)
        here = h3.latlng_to_cell(request.lat, request.lng, SPOT_RESOLUTION)
        block = h3.cell_to_parent(here, BLOCK_RESOLUTION)
        origin = self._area_at(request.lat, request.lng)
        ranked = self._destinations.rank(origin, at_s, rider_id=request.rider_id, limit=max(request.destinations, 3))
        if request.to_lat is not None and request.to_lng is not None:
            wanted = [self._area_at(request.to_lat, request.to_lng)]
        else:
            wanted = [choice.area for choice in ranked[:_POOL_DESTINATIONS]]
        matches: dict[str, PooledMatch] = {}
        for destination in wanted if self._open_rides else ():
            for match in self._open_rides.matches(origin, destination, at_s, rider_id=request.rider_id):
                matches.setdefault(match.ride.ride_id, match)
        options = [
            self._destination(rank, origin, choice)
            for rank, choice in enumerate(ranked[: request.destinations], start=1)
        ]
        options += [self._pooled(rank, match) for rank, match in enumerate(list(matches.values())[:3], start=1)]
        options += [
            _spot(rank, spot, here, request) for rank, spot in enumerate(self._spots.rank(block, at_s), start=1)
        ]
        return tuple(options)

    def _area_at(self, lat: float, lng: float) -> int:
        return area_of(self._areas, zone_id_at(lat, lng), h3.latlng_to_cell(lat, lng, BLOCK_RESOLUTION))

    def _place(self, area: int) -> Place:
        place = self._places.get(area)
        if place is None:
            place = self._places[area] = place_of(self._areas, area)
        return place

    def _destination(self, rank: int, origin: int, choice: RankedDestination) -> Option:
        place = self._place(choice.area)
        cell = self._favourite.get(choice.area)
        lat, lng = (place.lat, place.lng) if cell is None else h3.cell_to_latlng(cell)
        return Option(
            option_id=f"destination-{rank}",
            kind="destination",
            rank=rank,
            score=round(choice.share, 5),
            code=choice.reason.value,
            reason=_SENTENCES[choice.reason].format(origin=self._place(origin).name, share=choice.share),
            cell=cell or place.cell,
            lat=lat,
            lng=lng,
            name=place.name,
            zone_id=place.zone_id,
        )

    def _pooled(self, rank: int, match: PooledMatch) -> Option:
        ride = match.ride
        end = self._place(ride.destination)
        minutes = round(match.apart_s / 60)
        when = "just now" if minutes == 0 else f"{minutes} min apart"
        return Option(
            option_id=f"pooled_ride-{rank}",
            kind="pooled_ride",
            rank=rank,
            score=round(1 / (1 + match.apart_s / 300), 5),
            code="same_route",
            reason=f"another rider goes the same way, {when}",
            cell=end.cell,
            lat=end.lat,
            lng=end.lng,
            name=end.name,
            zone_id=end.zone_id,
            ride_id=ride.ride_id,
        )


def _spot(rank: int, spot: RankedSpot, here: str, request: Request) -> Option:
    lat, lng = h3.cell_to_latlng(spot.cell)
    if spot.cell == here:
        code, metres, reason = (
            "already_here",
            0,
            f"you stand at it: {spot.share:.0%} of this block's pickups at this time",
        )
    else:
        metres = round(_WALK_FACTOR * h3.great_circle_distance((request.lat, request.lng), (lat, lng), unit="m"))
        code, reason = "usual_spot", f"{spot.share:.0%} of this block's pickups at this time, {metres} m to walk"
    return Option(
        option_id=f"pickup_spot-{rank}",
        kind="pickup_spot",
        rank=rank,
        score=round(spot.share, 5),
        code=code,
        reason=reason,
        cell=spot.cell,
        lat=lat,
        lng=lng,
        metres=metres,
    )


_SENTENCES: Final = {
    Reason.RIDER_AT_THIS_HOUR: "you usually go here at this hour",
    Reason.RIDER_FROM_HERE: "you have gone here from here before",
    Reason.RIDER_BEFORE: "you have been here before",
    Reason.USUAL_AT_THIS_HOUR: "usual at this hour from {origin}: {share:.0%} of rides",
    Reason.USUAL_FROM_HERE: "usual from {origin}: {share:.0%} of rides",
    Reason.USUAL_AROUND_HERE: "usual around {origin}",
    Reason.NEAR_AND_POPULAR: "near and popular",
}

__all__ = ["MODEL", "City", "Kind", "Option", "Request"]
