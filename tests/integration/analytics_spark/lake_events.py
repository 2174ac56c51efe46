"""Events for lake tests, published by an ordinary client."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported there
from hailbus import Event
from hailbus.codec import encode, envelope_for
from hailbus.event import event_info
from ride_events import LatLng, Money, cell
from ride_events.payments import PaymentCaptured
from ride_events.quotes import QuoteAccepted, QuoteOffered
from ride_events.recommendations import RankedOption, RecommendationChosen, RecommendationServed
from ride_events.rides import RideCompleted, RideMatched, RideRequested

START = datetime(2014, 5, 1, 8, 0, tzinfo=UTC)
TIMES_SQUARE = LatLng(lat=40.758, lng=-73.9855)
JFK = LatLng(lat=40.6413, lng=-73.7781)
ORIGIN, DESTINATION = cell(40.758, -73.9855), cell(40.6413, -73.7781)
# The recommender serves cells of resolution 9, booking publishes drop-offs at resolution 8.
SERVED_ORIGIN, SERVED_DESTINATION = cell(40.758, -73.9855, 9), cell(40.6413, -73.7781, 9)
TOPICS = ("quotes.v1", "rides.v1", "payments.v1", "recommendations.v1")


def create_topics(bootstrap: str, partitions: dict[str, int]) -> None:
    """Create the topics that do not exist yet."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.list_topics(timeout=10).topics
    wanted = [NewTopic(name, count, 1) for name, count in partitions.items() if name not in known]
    for created in (admin.create_topics(wanted) if wanted else {}).values():
        created.result()


class Feed:
    """Publishes whole rides: nine events each, spread over four topics. Ride n happens n seconds after `START`."""

    EVENTS_PER_RIDE = 9

    def __init__(self, bootstrap: str, *, first_ride: int = 0, partitions: int = 2) -> None:
        self._bootstrap = bootstrap
        self._next = first_ride
        self.count = 0
        create_topics(bootstrap, dict.fromkeys(TOPICS, partitions))
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def rides(self, events: int) -> None:
        """Publish at least so many events, in whole rides, and wait for their acknowledgement."""
        for _ in range(-(-events // self.EVENTS_PER_RIDE)):
            for event, at in ride(self._next):
                self.publish(event, at=at)
            self._next += 1
        self.flush()

    def publish(self, event: Event, *, at: datetime, id: str | None = None) -> None:
        encoded = encode(event, envelope_for(event, source="/booking", time=at, id=id))
        self.raw(event_info(event).topic.name, encoded.key, encoded.value, encoded.headers)

    def raw(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        self._producer.produce(topic, key=key, value=value, headers=list(headers))
        self.count += 1

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def keep_going(self, stop: threading.Event, *, per_second: int) -> None:
        """Publish until `stop` is set."""
        while not stop.wait(self.EVENTS_PER_RIDE / per_second):
            self.rides(self.EVENTS_PER_RIDE)

    def ends(self) -> dict[tuple[str, int], int]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "ends"})
        try:
            topics = consumer.list_topics(timeout=10).topics
            return {
                (name, partition): consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=10)[1]
                for name in TOPICS
                for partition in topics[name].partitions
            }
        finally:
            consumer.close()


def ride(number: int) -> list[tuple[Event, datetime]]:
    """One ride's events with their times."""
    at = START + timedelta(seconds=number)
    rider, ride_id, quote_id = f"rider-{number}", f"ride-{number}", f"quote-{number}"
    fare = Money(amount_minor=5200)
    places = {"pickup": TIMES_SQUARE, "dropoff": JFK, "pickup_cell": ORIGIN, "dropoff_cell": DESTINATION}

    def minutes(count: float) -> datetime:
        return at + timedelta(minutes=count)

    served = RecommendationServed(
        recommendation_id=f"rec-{number}",
        rider_id=rider,
        origin_cell=ORIGIN,
        model="counts",
        options=(
            RankedOption(option_id="a", kind="destination", rank=1, score=0.6, reason="often", cell=SERVED_ORIGIN),
            RankedOption(option_id="b", kind="destination", rank=2, score=0.3, reason="usual", cell=SERVED_DESTINATION),
        ),
    )
    return [
        (served, minutes(-1)),
        (RecommendationChosen(recommendation_id=f"rec-{number}", rider_id=rider, option_id="b", rank=2), minutes(-0.9)),
        (
            QuoteOffered(
                quote_id=quote_id,
                seq=1,
                rider_id=rider,
                fare=fare,
                multiplier=1.2,
                surge_version=3,
                distance_m=25_000,
                duration_s=2400,
                expires_at=minutes(2),
                **places,
            ),
            minutes(-0.5),
        ),
        (QuoteAccepted(quote_id=quote_id, seq=2, rider_id=rider, ride_id=ride_id, pickup_cell=ORIGIN), at),
        (
            RideRequested(
                ride_id=ride_id,
                seq=1,
                rider_id=rider,
                quote_id=quote_id,
                fare=fare,
                multiplier=1.2,
                surge_version=3,
                **places,
            ),
            at,
        ),
        (
            RideMatched(
                ride_id=ride_id,
                seq=2,
                driver_id="driver-1",
                driver_position=TIMES_SQUARE,
                pickup_cell=ORIGIN,
                eta_s=120,
                simulated=True,
            ),
            minutes(1),
        ),
        (
            RideCompleted(
                ride_id=ride_id,
                seq=3,
                rider_id=rider,
                driver_id="driver-1",
                passengers=1,
                requested_at=at,
                started_at=minutes(3),
                distance_m=25_000,
                duration_s=2400,
                fare=fare,
                multiplier=1.2,
                **places,
            ),
            minutes(43),
        ),
        (
            PaymentCaptured(ride_id=ride_id, payment_id=f"pay-{number}", rider_id=rider, seq=1, amount=fare),
            minutes(43),
        ),
        (
            PaymentCaptured(
                ride_id=ride_id, payment_id=f"tip-{number}", rider_id=rider, seq=1, amount=Money(amount_minor=300)
            ),
            minutes(44),
        ),
    ]
