"""A fault done by a client: an event that its service never decided."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from hailbus.codec import encode
from hailbus.envelope import Envelope
from ride_events import LatLng, Money
from ride_events.rides import RideRequested

from hailbus_demo.errors import RunFailedError
from hailbus_demo.sabotage.deeds.deed import RIDES, Deed

DELIVERED_WITHIN_S = 30.0


def invent(bootstrap: str, *, event_time: datetime) -> Deed:
    """Publish a ride.requested of a ride that booking never heard of, by a client that is none of the system's.

    Raises:
        RunFailedError: The cluster does not take it.
    """
    import confluent_kafka

    ride_id, event_id, quote_id = (str(uuid.uuid4()) for _ in range(3))
    start, end = LatLng(lat=40.758, lng=-73.9855), LatLng(lat=40.6782, lng=-73.9442)
    event = RideRequested(
        ride_id=ride_id,
        seq=1,
        rider_id="rider-invented",
        quote_id=quote_id,
        pickup=start,
        dropoff=end,
        pickup_cell=start.cell(),
        dropoff_cell=end.cell(),
        fare=Money(amount_minor=1999),
        multiplier=1.0,
        surge_version=None,
        simulated=True,
    )
    envelope = Envelope(
        id=event_id, source="/booking", type="ride.requested", version=1, time=event_time, subject=ride_id
    )
    key, value, headers = encode(event, envelope)
    outcome: list[Any] = []  # Any: the client ships no types
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    producer.produce(
        RIDES, value, key, headers=dict(headers), on_delivery=lambda error, message: outcome.append(error or message)
    )
    producer.flush(DELIVERED_WITHIN_S)
    if not outcome or isinstance(outcome[0], confluent_kafka.KafkaError):
        raise RunFailedError(f"the saboteur cannot publish at {bootstrap}: {outcome[0] if outcome else 'no answer'}")
    partition, offset = outcome[0].partition(), outcome[0].offset()
    return Deed(
        fault="invented",
        sentence=f"the ride.requested {event_id} at {RIDES}-{partition} offset {offset} was never decided by booking",
        topic=RIDES,
        partition=partition,
        offset=offset,
        id=event_id,
    )
