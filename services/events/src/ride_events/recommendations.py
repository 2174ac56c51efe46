"""What riders were recommended and what they chose. Owner: recommender."""

from datetime import timedelta
from typing import Literal

from hailbus import Event, Topic
from pydantic import BaseModel, ConfigDict

from ride_events.geo import Cell, LatLng

RECOMMENDATIONS = Topic(
    "recommendations.v1", partitions=6, retention=timedelta(days=30), description="Recommendations served and chosen"
)


class RankedOption(BaseModel):
    """One recommendation. `rank` counts from 1; `option_id` names it within its recommendation."""

    model_config = ConfigDict(frozen=True)

    option_id: str
    kind: Literal["destination", "pooled_ride", "pickup_spot"]
    rank: int
    score: float
    reason: str
    cell: Cell | None = None
    zone_id: int | None = None
    place: LatLng | None = None
    ride_id: str | None = None


class RecommendationEvent(Event, topic=RECOMMENDATIONS, key="rider_id"):
    """A fact about one recommendation."""

    recommendation_id: str
    rider_id: str
    simulated: bool = False


class RecommendationServed(RecommendationEvent, type="recommendation.served", version=1):
    """A rider was shown these options, in this order, for this route."""

    origin_cell: Cell
    destination_cell: Cell | None = None
    model: str
    options: tuple[RankedOption, ...]


class RecommendationChosen(RecommendationEvent, type="recommendation.chosen", version=1):
    """The rider took one of the options served."""

    option_id: str
    rank: int
    ride_id: str | None = None
