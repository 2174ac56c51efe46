"""The service on the bus: learns in batches, publishes what was served and chosen."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from hailbus import (
    Batch,
    Bus,
    DeliveryError,
    EffectivelyOnce,
    Event,
    HailbusError,
    Inbox,
    ParkingLot,
    ParkKey,
    Publisher,
    Receipt,
    Service,
    event_info,
)
from ride_events import CATALOGUE, LatLng
from ride_events.recommendations import RankedOption, RecommendationChosen, RecommendationServed

from recommender.app.city import MODEL
from recommender.app.serving import Served, Stored, UnavailableError, event_id

GROUP: Final = "recommender"
SOURCE: Final = "/recommender"
SOON: Final = timedelta(milliseconds=100)
"""How long the first event of a batch waits for more."""
_RIDE_CELL: Final = 8


def build_service(
    bus: Bus,
    events: Sequence[type[Event]],
    learn: Callable[[Batch[Event]], Awaitable[None]],
    *,
    inbox: Inbox,
    lot: ParkingLot,
) -> tuple[Service, "Announcements"]:
    """Return the service that hands `events` to `learn` in batches, and what publishes for it.

    Args:
        bus: Where events come from and go to.
        events: Their classes. Topics whose events have a number are learned in the order of the numbers.
        learn: Claims a batch in a transaction of its own.
        inbox: In the database of what is learned.
        lot: There, too; holds events that come before their turn.
    """
    service = Service(GROUP, source=SOURCE, bus=bus, catalogue=CATALOGUE)

    async def learn_batch(batch: Batch[Event]) -> None:
        await learn(batch)

    async def learn_in_order(batch: Batch[Event]) -> None:
        await learn(batch)

    # A group that begins long after a topic finds rides whose first events are deleted: the first that comes begins.
    in_order = EffectivelyOnce(
        inbox=inbox, then=ParkKey(lot=lot), sequence="seq", first_number=None, own_transaction=True
    )
    unnumbered = {event_info(cls).topic for cls in events if not _has_number(cls)}
    numbered = [cls for cls in events if event_info(cls).topic not in unnumbered]
    others = [cls for cls in events if event_info(cls).topic in unnumbered]
    if numbered:
        service.on_batch(numbered, delivery=in_order, max_items=500, max_wait=SOON)(learn_in_order)
    if others:
        once = EffectivelyOnce(inbox=inbox, own_transaction=True)
        service.on_batch(others, delivery=once, max_items=500, max_wait=SOON)(learn_batch)
    return service, Announcements(service.publishes(RecommendationServed | RecommendationChosen))


def _has_number(cls: type[Event]) -> bool:
    """Return whether events of this class count up by one per key, as those of this language do in `seq`."""
    info = event_info(cls)
    field = cls.model_fields.get("seq")
    is_kept = info.key_field is not None and info.topic.cleanup_policy == "delete"
    return is_kept and field is not None and field.annotation is int


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
