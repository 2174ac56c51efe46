"""Riders who ask the recommender where to go or with whom, and tell it which of its options they took."""

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
        return await self._served(body, key)

    async def ask_for_partner(self, plan: RidePlan, at_ms: int, key: str) -> Any:  # Any: as above
        """Return what was served to a rider who would share: `pooled_rides` go the same way. None as above."""
        body = {
            "rider_id": plan.rider_id,
            "origin": {"lat": plan.pickup[0], "lng": plan.pickup[1]},
            "destination": {"lat": plan.dropoff[0], "lng": plan.dropoff[1]},
            "time": to_text(at_ms),
            "limit": 1,
            "simulated": True,
        }
        return await self._served(body, key)

    async def _served(self, body: dict[str, Any], key: str) -> Any:
        status, served = await self.client.post("/recommendations", body, key=key)
        return served if status == 200 else None

    async def chosen(self, served: Any, plan: RidePlan, ride_id: str, at_ms: int, key: str) -> str | None:
        """Report the option that the rider took, if one of them was; return its id when the recommender took it."""
        zone_id = self.city.zone_of(plan.dropoff)
        taken = next((option for option in served["destinations"] if option.get("zone_id") == zone_id), None)
        if taken is None:
            return None
        option_id = str(taken["option_id"])
        return option_id if await self.take(served, option_id, ride_id, at_ms, key) else None

    async def take(self, served: Any, option_id: str, ride_id: str, at_ms: int, key: str) -> bool:
        """Report the option that the rider took; say whether the recommender took it."""
        status, _ = await self.client.post(
            f"/recommendations/{served['recommendation_id']}/chosen",
            {"option_id": option_id, "ride_id": ride_id, "time": to_text(at_ms)},
            key=key,
        )
        return status == 200
