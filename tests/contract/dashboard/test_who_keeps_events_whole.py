"""The page of contracts names the consumers that keep events whole: it says what their code does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from analytics_spark.config import LakeSettings
from analytics_spark.schemas import column_name, event_columns, silver_specs
from dashboard.domain.city import City
from dashboard.domain.contracts import WHOLE_READERS
from event_logger.journal import Journal
from event_logger.main import create_service
from hailbus.testing import MemoryBus
from ride_events import CATALOGUE, TOPICS

READERS = {reader.name: reader for reader in WHOLE_READERS}


@dataclass(frozen=True)
class Read:
    """A record as the dashboard reads it."""

    topic: str
    key: bytes = b"ride-1"
    value: bytes = b"{}"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def test_the_logger_takes_every_event() -> None:
    service = create_service(MemoryBus(), cast("Journal", None))
    (subscription,) = service.subscriptions
    assert (subscription.group, set(subscription.events)) == ("event-logger", set(CATALOGUE))
    assert READERS["event-logger"].topics is None


def test_the_lake_lands_every_topic_and_has_a_column_for_each_field() -> None:
    topics: tuple[str, ...] = LakeSettings.model_fields["topics"].default
    assert set(topics) == {topic.name for topic in TOPICS}
    for topic in TOPICS:
        columns = {column.name for column in silver_specs(CATALOGUE)[topic.name].columns}
        assert {column_name(name) for name in event_columns(CATALOGUE.on_topic(topic.name))} <= columns
    assert READERS["lake"].topics is None


def test_the_dashboard_keeps_records_of_the_topics_that_it_names() -> None:
    kept: set[str] = set()
    for topic in TOPICS:
        city = City(tick_s=0.25)
        city.timelines.begin("ride-1", "ride-1")  # a quote is found by its ride
        record = Read(topic=topic.name)
        city.apply(cast("Any", record))
        if city.timelines.get("ride-1"):
            assert city.timelines.get("ride-1") == [record]
            kept.add(topic.name)
    assert frozenset(kept) == READERS["dashboard"].topics
