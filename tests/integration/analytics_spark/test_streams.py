"""The three streams against a real broker: what lands, what is refused, and what a repeated batch does (nothing)."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from analytics_spark.broker_view import BrokerView
from analytics_spark.config import LakeSettings
from analytics_spark.errors import DataLossError, LakeError
from analytics_spark.jobs.bronze import bronze_stream
from analytics_spark.jobs.gold import gold_stream
from analytics_spark.jobs.maintain import maintain_tables
from analytics_spark.jobs.silver import silver_stream
from analytics_spark.progress import Progress, read_progress
from analytics_spark.reading import query
from analytics_spark.session import LakeLayout
from analytics_spark.sources import existing_topics
from analytics_spark.supervisor import Supervisor, SupervisorPlan
from analytics_spark.tables import BRONZE
from analytics_spark.topic_ids import read_topic_ids
from analytics_spark.verify import LakeReport, verify_lake
from hailbus.codec import encode, envelope_for
from hailbus_broker.testing import ThreadedBroker

from tests.integration.analytics_spark.lake_events import TOPICS, Feed, create_topics, ride

# py4j leaves closing its sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass
class Lake:
    """A lake, its broker, and a way to bring the one up to the other."""

    spark: Any
    layout: LakeLayout
    settings: LakeSettings
    feed: Feed

    def catch_up(self) -> None:
        progress = Progress(self.layout.progress)
        makers = [
            partial(make, self.spark, self.settings, self.layout, progress)
            for make in (bronze_stream, silver_stream, gold_stream)
        ]
        plan = SupervisorPlan(finish_file=self.layout.finish, retry_for_s=10)
        Supervisor(self.spark, makers, plan, progress).finish(threading.Event())

    def verify(self) -> LakeReport:
        return verify_lake(self.layout.root, BrokerView(self.settings.bootstrap_servers), topics=self.settings.topics)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = query(self.layout.root, sql).to_pylist()
        return found

    def repeat_last_batch(self, stream: str) -> int:
        """Do as if the driver had died between writing a batch and noting so."""
        commits = self.layout.checkpoint(stream) / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last


@pytest.fixture(scope="module")
def lake(spark: Any, layout: LakeLayout) -> Iterator[Lake]:
    with ThreadedBroker() as broker:
        feed = Feed(broker.bootstrap)
        settings = LakeSettings(
            bootstrap_servers=broker.bootstrap,
            dir=layout.root,
            topics=(*TOPICS, "bikes.v1"),
            max_offsets_per_trigger=250,
        )
        feed.rides(300)
        repeated = ride(3)[4:7]
        for event, at in repeated:  # an outbox that died before it noted its publication does this
            encoded = encode(event, envelope_for(event, source="/booking", time=at, id=f"twice-{at}"))
            for _ in range(2):
                feed.raw("rides.v1", encoded.key, encoded.value, encoded.headers)
        feed.raw("rides.v1", b"k", b"no json", encoded.headers)
        feed.raw("rides.v1", b"k", b"no headers")
        feed.raw("payments.v1", encoded.key, encoded.value, encoded.headers)
        feed.raw("rides.v1", b"k", None, encoded.headers)
        feed.flush()
        made = Lake(spark, layout, settings, feed)
        made.catch_up()
        yield made


def test_every_record_lands_once_and_is_answered_for(lake: Lake) -> None:
    report = lake.verify()
    assert report.problems == ()
    assert report.rows == lake.feed.count == sum(lake.feed.ends().values())
    assert len(report.partitions) == 8
    silver = report.silver
    assert silver is not None
    assert (silver.quarantined, silver.duplicates, silver.unaccounted) == (4, 3, 0)
    assert silver.typed == lake.feed.count - 7


def test_the_quarantine_says_where_what_and_why(lake: Lake) -> None:
    found = lake.rows('SELECT * FROM silver.quarantine ORDER BY topic, "partition", "offset"')
    assert sorted(row["error"] for row in found) == [
        "InvalidPayloadError",
        "MissingHeaderError",
        "TombstoneError",
        "WrongTopicError",
    ]
    refused = next(row for row in found if row["error"] == "InvalidPayloadError")
    assert refused["value"] == b"no json"
    assert refused["reason"].startswith("the value of 'ride.completed' version 1 on topic 'rides.v1' is invalid")
    bronze = lake.rows(
        f"SELECT value FROM bronze.events WHERE topic = '{refused['topic']}' "
        f'AND "partition" = {refused["partition"]} '
        f'AND "offset" = {refused["offset"]}'
    )
    assert bronze == [{"value": b"no json"}]


def test_gold_agrees_with_silver(lake: Lake) -> None:
    assert lake.rows("SELECT sum(requested_count) AS n FROM gold.demand") == lake.rows(
        "SELECT count(*) AS n FROM silver.rides WHERE ce_type = 'ride.requested'"
    )
    assert lake.rows("SELECT sum(fares_minor) AS n FROM gold.revenue") == lake.rows(
        "SELECT sum(fare.amount_minor) AS n FROM silver.rides WHERE ce_type = 'ride.completed'"
    )
    hits = lake.rows("SELECT sum(served_count) AS served, sum(hit_count) AS hits FROM gold.recommendations")
    assert hits == [{"served": 34, "hits": 34}]


@pytest.mark.parametrize("stream", ["bronze", "silver", "gold"])
def test_a_repeated_batch_changes_nothing(lake: Lake, stream: str) -> None:
    sums = "SELECT sum(offered_count) AS n FROM gold.conversion"
    before, gold_before = lake.verify(), lake.rows(sums)
    lake.repeat_last_batch(stream)
    lake.catch_up()
    after = lake.verify()
    assert after.problems == ()
    assert after.tables == before.tables
    assert lake.rows(sums) == gold_before


def test_a_batch_is_known_even_when_its_snapshot_expired(lake: Lake) -> None:
    before = lake.verify()
    done = {one.table: one for one in maintain_tables(lake.spark, lake.layout, retain=1, older_than_h=0)}
    assert done["bronze.events"].files_joined > 1
    assert done["bronze.events"].snapshots_dropped > 0
    assert lake.verify().tables == before.tables
    lake.repeat_last_batch("bronze")
    lake.repeat_last_batch("silver")
    lake.catch_up()
    lake.feed.rides(9)
    lake.catch_up()
    after = lake.verify()
    assert after.problems == ()
    assert after.rows == before.rows + 9


def test_a_topic_that_comes_later_is_read_from_its_start(lake: Lake) -> None:
    lake.catch_up()
    create_topics(lake.settings.bootstrap_servers, {"bikes.v1": 1})
    lake.feed.raw("bikes.v1", None, b"anything")
    lake.feed.flush()
    lake.catch_up()
    assert lake.verify().problems == ()
    ends = lake.feed.ends() | {("bikes.v1", 0): 1}
    progress = read_progress(lake.layout.progress)
    assert progress is not None
    assert (progress["state"], progress["lag_records"]) == ("caught-up", 0)
    assert {(part["topic"], part["partition"]): part["landed"] for part in progress["partitions"]} == ends


def test_aborted_records_stay_out_and_their_offsets_are_excused(lake: Lake) -> None:
    from confluent_kafka import Producer

    bootstrap = lake.settings.bootstrap_servers
    for number, ending in enumerate(("commit_transaction", "abort_transaction")):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"lake-{number}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for event, at in ride(5_000 + number):
            encoded = encode(event, envelope_for(event, source="/booking", time=at))
            producer.produce("payments.v1", encoded.value, encoded.key, partition=0, headers=[*encoded.headers])
        assert producer.flush(30) == 0
        getattr(producer, ending)(30)
    before = lake.rows("SELECT count(*) AS n FROM bronze.events")[0]["n"]
    lake.catch_up()
    assert lake.rows("SELECT count(*) AS n FROM bronze.events")[0]["n"] == before + 9
    report = lake.verify()
    assert report.problems == ()
    part = next(part for part in report.partitions if (part.topic, part.partition) == ("payments.v1", 0))
    assert part.hidden_offsets == 9 + 2  # the aborted records, and a marker for each transaction


def test_a_topic_that_landed_cannot_be_left_out(lake: Lake) -> None:
    fewer = Lake(lake.spark, lake.layout, lake.settings.model_copy(update={"topics": TOPICS[1:]}), lake.feed)
    with pytest.raises(LakeError, match=rf"LAKE_TOPICS leaves out .*{TOPICS[0]}.*; name it too"):
        fewer.catch_up()


def test_a_lake_without_its_checkpoint_is_refused(lake: Lake, tmp_path: Path) -> None:
    kept = tmp_path / "bronze"
    shutil.move(lake.layout.checkpoint("bronze"), kept)
    try:
        with pytest.raises(LakeError, match=rf"{BRONZE.name} has \d+ rows and .* is gone, so all would"):
            lake.catch_up()
    finally:
        shutil.rmtree(lake.layout.checkpoint("bronze"), ignore_errors=True)
        shutil.move(kept, lake.layout.checkpoint("bronze"))


def test_an_emptied_broker_is_noticed(lake: Lake) -> None:
    with ThreadedBroker() as empty:
        Feed(empty.bootstrap).rides(9)
        settings = lake.settings.model_copy(update={"bootstrap_servers": empty.bootstrap})
        before = lake.rows("SELECT count(*) AS n FROM bronze.events")
        with pytest.raises(DataLossError, match=r"emptied .* start a new LAKE_DIR"):
            Lake(lake.spark, lake.layout, settings, lake.feed).catch_up()
    assert lake.rows("SELECT count(*) AS n FROM bronze.events") == before


def test_another_broker_with_more_records_is_noticed(lake: Lake) -> None:
    """Every offset that comes next exists there, so only the ids of the topics tell."""
    before = lake.rows("SELECT count(*) AS n FROM bronze.events")
    ids = read_topic_ids(lake.layout.topic_ids)
    assert set(ids) >= set(TOPICS)
    with ThreadedBroker() as other:
        Feed(other.bootstrap, first_ride=20_000).rides(4 * lake.feed.count)
        settings = lake.settings.model_copy(update={"bootstrap_servers": other.bootstrap})
        with pytest.raises(DataLossError, match=r"and the lake landed id .* deleted and created again"):
            Lake(lake.spark, lake.layout, settings, lake.feed).catch_up()
    assert lake.rows("SELECT count(*) AS n FROM bronze.events") == before
    assert read_topic_ids(lake.layout.topic_ids) == ids
    lake.catch_up()
    assert lake.verify().problems == ()


def test_a_broker_that_is_not_there_is_named(spark: Any) -> None:
    with pytest.raises(ConnectionError, match="Timed out"):
        existing_topics(spark, bootstrap_servers="127.0.0.1:1", timeout_ms=300)
