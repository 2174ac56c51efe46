"""What the saboteur did, as the ledger must find it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAYMENTS = "payments.v1"
RIDES = "rides.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A fault that was done: a sentence, and the record that the ledger has to name, by its place or an id.

    `also` are ids of what the event concerns, where the ledger knows nothing closer.
    """

    fault: str
    sentence: str
    topic: str
    partition: int | None
    offset: int | None
    id: str
    """The id of the event, or of the ride where the fault concerns no single event."""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RideEvent:
    """An event of a ride as the log has it, as far as a consumer's database can be matched with it."""

    topic: str
    partition: int
    offset: int
    source: str
    event_id: str
    type: str
    payload: Mapping[str, Any]

    @classmethod
    def of(
        cls, topic: str, partition: int, offset: int, headers: Sequence[tuple[str, bytes | None]], value: bytes | None
    ) -> RideEvent:
        """Return what a record says."""
        texts = {name: content.decode("utf-8", "replace") for name, content in headers if content is not None}
        return cls(
            topic=topic,
            partition=partition,
            offset=offset,
            source=texts.get("ce_source", ""),
            event_id=texts.get("ce_id", ""),
            type=texts.get("ce_type", ""),
            payload=json.loads(value or b"{}"),
        )

    def deed(self, fault: str, what: str) -> Deed:
        """Return what was done to this event's effect."""
        where = f"{self.topic}-{self.partition} offset {self.offset}"
        return Deed(
            fault=fault,
            sentence=f"the {self.type} {self.event_id} at {where} {what}",
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            id=self.event_id,
            also=tuple(self.payload[name] for name in ("ride_id", "rider_id") if name in self.payload),
        )
