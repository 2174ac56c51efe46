"""Riders who ask the recommender where to go, and tell it which of its options they took."""

from __future__ import annotations

from typing import Any

from hailbus_demo.city.plan import RidePlan, to_text
from hailbus_demo.city.table import City
from hailbus_demo.replay.sure import SureClient


class RecommenderClient:
    """The recommender's HTTP API, as far as riders use it. A rider takes the option whose zone is the real one's."""

    def __init__(self, client: SureClient, city: City) -> None:
        self.client = client
        self.city = city

    async def ask(self, plan: RidePlan, at_ms: int, key: str) -> Any:  # Any: JSON, handed back to `chosen`
        """Return what was served to the rider; None when the recommender refused."""
        body = {
            "rider_id": plan.rider_id,
            "origin": {"lat": plan.pickup[0], "lng": plan.pickup[1]},
            "time": to_text(at_ms),
            "limit": 5,
            "simulated": True,  # no recording holds that a rider asked
        }
        status, served = await self.client.post("/recommendations", body, key=key)
        return served if status == 200 else None

    async def chosen(self, served: Any, plan: RidePlan, ride_id: str, at_ms: int, key: str) -> str | None:
        """Report the option that the rider took, if one of them was; return its id when the recommender took it."""
        zone_id = self.city.zone_of(plan.dropoff)
        taken = next((option for option in served["destinations"] if option.get("zone_id") == zone_id), None)
        if taken is None:
            return None
        status, _ = await self.client.post(
            f"/recommendations/{served['recommendation_id']}/chosen",
            {"option_id": taken["option_id"], "ride_id": ride_id, "time": to_text(at_ms)},
            key=key,
        )
        return str(taken["option_id"]) if status == 200 else None
