"""The service on the bus: learns in batches, publishes what was served and chosen."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from hailbus import Batch, Bus, DeliveryError, Event, HailbusError, Publisher, Receipt, Service
from ride_events import CATALOGUE, LatLng
from ride_events.recommendations import RankedOption, RecommendationChosen, RecommendationServed

from recommender.app.city import MODEL
from recommender.app.serving import Served, Stored, UnavailableError, event_id

GROUP: Final = "recommender"
SOURCE: Final = "/recommender"
_RIDE_CELL: Final = 8


def build_service(
    bus: Bus, events: Sequence[type[Event]], learn: Callable[[Batch[Event]], Awaitable[None]]
) -> tuple[Service, "Announcements"]:
    """Return the service that hands `events` to `learn` in batches, and what publishes for it."""
    service = Service(GROUP, source=SOURCE, bus=bus, catalogue=CATALOGUE)

    async def learn_batch(batch: Batch[Event]) -> None:
        await learn(batch)

    service.on_batch(events, max_items=500, max_wait=timedelta(milliseconds=100))(learn_batch)
    return service, Announcements(service.publishes(RecommendationServed | RecommendationChosen))


class Announcements:
    """Publishes with acknowledgement, under ids that a repetition shares."""

    def __init__(self, publisher: Publisher[RecommendationServed | RecommendationChosen]) -> None:
        self._publisher = publisher

    async def served(self, served: Sequence[Served]) -> None:
        """Publish `recommendation.served` for each."""
        try:
            futures: list[asyncio.Future[Receipt]] = []
            for item in served:
                request = item.request
                futures.append(
                    await self._publisher.enqueue(
                        _served_event(item),
                        id=event_id(item.recommendation_id, "recommendation.served"),
                        time=request.at.astimezone(UTC),
                    )
                )
            for outcome in await asyncio.gather(*futures, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except (DeliveryError, HailbusError) as error:
            raise UnavailableError("the bus does not answer") from error

    async def chosen(self, stored: Stored, option_id: str, rank: int, ride_id: str | None, at: datetime) -> None:
        """Publish `recommendation.chosen`."""
        event = RecommendationChosen(
            recommendation_id=stored.recommendation_id,
            rider_id=stored.rider_id,
            option_id=option_id,
            rank=rank,
            ride_id=ride_id,
            simulated=stored.simulated,
        )
        try:
            await self._publisher.publish(
                event, id=event_id(stored.recommendation_id, "recommendation.chosen"), time=at.astimezone(UTC)
            )
        except (DeliveryError, HailbusError) as error:
            raise UnavailableError("the bus does not answer") from error


def _served_event(item: Served) -> RecommendationServed:
    request = item.request
    return RecommendationServed(
        recommendation_id=item.recommendation_id,
        rider_id=request.rider_id,
        origin_cell=LatLng(lat=request.lat, lng=request.lng).cell(_RIDE_CELL),
        destination_cell=request.destination_cell,
        model=MODEL,
        options=tuple(
            RankedOption(
                option_id=option.option_id,
                kind=option.kind,
                rank=option.rank,
                score=option.score,
                reason=option.reason,
                cell=option.cell,
                zone_id=option.zone_id,
                place=LatLng(lat=option.lat, lng=option.lng),
                ride_id=option.ride_id,
            )
            for option in item.options
        ),
        simulated=request.simulated,
    )


__all__ = ["GROUP", "SOURCE", "Announcements", "build_service"]
