"""`lake verify` fails when it should: whole lakes with one fault each, made without Spark, beside a real broker."""

import copy
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analytics_spark.broker_view import BrokerView, Place, RecordSink, TopicView
from analytics_spark.cli import app
from analytics_spark.errors import LakeError, LakeMissingError
from analytics_spark.reading import QueryRefusedError, query, table_infos
from analytics_spark.tables import GOLD
from analytics_spark.topic_ids import note_topic_ids
from analytics_spark.verify import LakeReport, LineReport, verify_lake
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported there
from hailbus.codec import encode, envelope_for
from hailbus.record_sum import MODULUS, record_hash
from hailbus_broker.testing import ApiKey, ErrorCode, Fault, ThreadedBroker
from typer.testing import CliRunner

from tests.integration.analytics_spark.lake_events import DESTINATION, TOPICS, Feed, ride
from tests.integration.analytics_spark.made_lake import LandedLake, MadeLake, Row, gold_of_rides, read_all
from tests.made import made_once

RIDES = 20
LOG, SILVER, GOLDEN = "bronze = log", "silver = bronze", "gold = recomputed"


def _land(folder: Path) -> None:
    """Twenty rides, three repeated events, and four records that no event class accepts."""
    landed = LandedLake(folder)
    with ThreadedBroker(data_dir=str(landed.broker_data)) as broker:
        feed = Feed(broker.bootstrap)
        feed.rides(RIDES * Feed.EVENTS_PER_RIDE)
        for event, at in ride(3)[4:7]:
            for _ in range(2):  # a second record of an event: an outbox that died before it noted the publication
                feed.publish(event, at=at + timedelta(days=9), id=f"twice-{at}")
        encoded = encode(event, envelope_for(event, source="/booking", time=at))
        feed.raw("rides.v1", b"k", b"no json", encoded.headers)
        feed.raw("rides.v1", b"k", b"no headers")
        feed.raw("payments.v1", encoded.key, encoded.value, encoded.headers)
        feed.raw("rides.v1", b"k", None, encoded.headers)
        feed.flush()
        made = MadeLake(landed.root, broker.bootstrap)
        made.land()
        made.tables |= {name: list(rows) for name, rows in gold_of_rides(RIDES).items()}
        _add_repeats_to_gold(made)
        made.write()
    landed.keep(made)


def _add_repeats_to_gold(made: MadeLake) -> None:
    """The repeated events are of nine days later: a request and a completion more."""
    requested = copy.deepcopy(made.tables["gold.demand"][1])
    requested |= {"requested_count": 1, "rider_count": 1}
    completed = copy.deepcopy(made.tables["gold.revenue"][0])
    completed |= {"completed_count": 1, "fares_minor": 5200, "distance_m": 25_000, "duration_s": 2400}
    for row in (requested, completed):
        row["window_start"] += timedelta(days=9)
    made.tables["gold.demand"].append(requested)
    made.tables["gold.revenue"].append(completed)


@pytest.fixture(scope="module")
def landed() -> LandedLake:
    return LandedLake(made_once("landed-lake", _land))


@pytest.fixture(scope="module")
def broker(landed: LandedLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    """The broker of all tests that leave the log as it is."""
    with ThreadedBroker(data_dir=landed.copy_of_data(tmp_path_factory.mktemp("log") / "broker")) as running:
        yield running


@pytest.fixture
def lake(landed: LandedLake, broker: ThreadedBroker, tmp_path: Path) -> MadeLake:
    """A whole lake that the test may change."""
    return landed.copy_of_lake(tmp_path / "lake", broker.bootstrap)


@pytest.fixture
def own_broker(landed: LandedLake, tmp_path: Path) -> Iterator[ThreadedBroker]:
    """A broker with the same log, which the test may change."""
    with ThreadedBroker(data_dir=landed.copy_of_data(tmp_path / "broker")) as running:
        yield running


@pytest.fixture
def own_lake(landed: LandedLake, own_broker: ThreadedBroker, tmp_path: Path) -> MadeLake:
    """A whole lake beside `own_broker`."""
    return landed.copy_of_lake(tmp_path / "lake", own_broker.bootstrap)


def row_of(lake: MadeLake, table: str, **wanted: object) -> Row:
    return next(row for row in lake.tables[table] if all(row[name] == value for name, value in wanted.items()))


def id_of(row: Row) -> str:
    found = next(one["value"] for one in row["headers"] if one["key"] == "ce_id")
    return str(found.decode())


def only(report: LakeReport, name: str) -> LineReport:
    """The one line that does not agree."""
    assert [line.name for line in report.lines if line.verdict != "agrees"] == [name], report.problems
    assert not report.ok
    assert report.problems
    return report.line(name)


class Altering:
    """A log that is read through a change: what a broker or a client with a defect would show."""

    def __init__(
        self,
        view: BrokerView,
        *,
        shows: Callable[[Place, int], bool] = lambda _place, _offset: True,
        describes: Callable[[dict[str, TopicView]], None] = lambda _views: None,
    ) -> None:
        self._view, self._shows, self._describes = view, shows, describes
        self.reads: list[Mapping[Place, tuple[int, int]]] = []

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        views = self._view.describe(topics)
        self._describes(views)
        return views

    def read(self, wanted: Mapping[Place, tuple[int, int]], sink: RecordSink) -> dict[Place, str]:
        self.reads.append(dict(wanted))

        def some(
            place: Place,
            offset: int,
            key: bytes | None,
            value: bytes | None,
            headers: Sequence[tuple[str, bytes | None]],
        ) -> None:
            if self._shows(place, offset):
                sink(place, offset, key, value, headers)

        return self._view.read(wanted, some)


# -- what agrees


def test_a_whole_lake_agrees_and_says_what_was_compared(lake: MadeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=count(100, 7).__next__)
    monkeypatch.setattr("analytics_spark.verify.lake.time", clock)
    report = lake.verify(seed=7)
    assert report.seconds == 7
    assert report.problems == ()
    assert report.ok
    assert [line.verdict for line in report.lines] == ["agrees"] * 3
    records = RIDES * Feed.EVENTS_PER_RIDE + 6 + 4
    assert report.rows == records == len(lake.bronze)
    assert f"{records} records in 8 partitions" in report.line(LOG).detail
    silver = report.silver
    assert silver is not None
    assert (silver.typed, silver.quarantined, silver.duplicates, silver.unaccounted) == (records - 7, 4, 3, 0)
    assert silver.sampled == records
    assert report.seed == 7
    assert "(seed 7)" in report.line(SILVER).detail
    assert report.gold is not None
    assert {name: one.rows for name, one in report.gold.items()} == {
        name: len(rows) for name, rows in lake.tables.items() if name.startswith("gold.")
    }


def test_the_checksum_of_a_partition_is_the_sum_over_its_records(lake: MadeLake) -> None:
    sums: dict[Place, int] = {}
    for record in read_all(lake.bootstrap, TOPICS):
        place = (record.topic, record.partition)
        one = record_hash(record.partition, record.offset, record.key, record.value, record.headers)
        sums[place] = (sums.get(place, 0) + one) % MODULUS
    report = lake.verify()
    for part in report.partitions:
        expected = sums.get((part.topic, part.partition), 0)
        assert part.log_checksum == part.lake_checksum == expected
        assert part.to_dict()["log_checksum"] == f"{expected:016x}"


def test_the_report_is_json(lake: MadeLake) -> None:
    document = json.loads(json.dumps(lake.verify().to_dict()))
    assert (document["ok"], document["problems"], document["mode"]) == (True, [], "full")
    assert [line["name"] for line in document["lines"]] == [LOG, SILVER, GOLDEN]
    assert all(line["findings"] == [] and len(line["accounts"]) == 2 for line in document["lines"])
    assert document["rows"] == document["tables"]["bronze.events"] == document["silver"]["sampled"] == len(lake.bronze)
    assert {one["verdict"] for one in document["partitions"]} == {"agrees"}
    assert set(document["gold"]) == {name for name in lake.tables if name.startswith("gold.")}
    unread = json.loads(json.dumps(verify_lake(lake.root, None).to_dict()))
    assert (unread["ok"], unread["partitions"]) == (False, [])


# -- bronze and the log

VICTIM = {"topic": "rides.v1", "partition": 0, "offset": 5}
FARE = b'"amount_minor":5200'


def _alter_value(row: Row) -> None:
    row["value"] = row["value"].replace(FARE, FARE[:-1] + b"1")


def _alter_key(row: Row) -> None:
    row["key"] += b"!"


def _alter_header(row: Row) -> None:
    row["headers"][2]["value"] = b"/somebody-else"


def _swap_headers(row: Row) -> None:
    row["headers"].reverse()


def test_altered_bytes_in_bronze_are_named(lake: MadeLake) -> None:
    changes = ((_alter_value, "value"), (_alter_key, "key"), (_alter_header, "headers"), (_swap_headers, "headers"))
    victims = [row for row in lake.bronze if row["topic"] == "rides.v1" and FARE in (row["value"] or b"")]
    expected = []
    for victim, (alter, column) in zip(victims, changes, strict=False):
        event_id = id_of(victim)
        alter(victim)
        place = f"rides.v1-{victim['partition']}: offset {victim['offset']} (id {event_id})"
        verb = "differ" if column == "headers" else "differs"
        message = f"{place} is altered: its {column} {verb} from the log's"
        expected.append(("altered", column, victim["offset"], event_id, message))
    assert len(expected) == len(changes)
    lake.write("bronze.events")
    line = lake.verify().line(LOG)
    found = [(one.kind, one.column, one.offset, one.id, one.message) for one in line.findings]
    assert sorted(found) == sorted(expected)


def test_a_row_that_bronze_lacks_is_named(lake: MadeLake) -> None:
    victim = row_of(lake, "bronze.events", **VICTIM)
    lake.change("bronze.events", lambda rows: rows.remove(victim))
    report = lake.verify()
    line = report.line(LOG)
    assert line.verdict == "disagrees"
    assert [(one.kind, one.topic, one.partition, one.offset, one.id) for one in line.findings] == [
        ("missing", "rides.v1", 0, 5, id_of(victim))
    ]
    assert report.problems[0] == (
        f"bronze = log: rides.v1-0: offset 5 (id {id_of(victim)}) is in the log and not in bronze"
    )
    part = next(part for part in report.partitions if (part.topic, part.partition) == ("rides.v1", 0))
    assert (part.verdict, part.log_records - part.lake_records) == ("disagrees", 1)
    assert part.log_checksum != part.lake_checksum
    # Silver has a row that bronze lacks, too.
    assert report.line(SILVER).findings[0].kind == "invented"


def test_a_row_that_is_twice_in_bronze_is_named(lake: MadeLake) -> None:
    lake.change("bronze.events", lambda rows: rows.append(row_of(lake, "bronze.events", **VICTIM)))
    line = lake.verify().line(LOG)
    assert [(one.kind, one.offset) for one in line.findings] == [("doubled", 5)]


def test_a_record_that_the_log_does_not_have_is_named(lake: MadeLake) -> None:
    log = Altering(lake.view(), shows=lambda place, offset: (place, offset) != (("rides.v1", 0), 5))
    line = only(lake.verify(log), LOG)
    assert [(one.kind, one.offset, one.id) for one in line.findings] == [
        ("invented", 5, id_of(row_of(lake, "bronze.events", **VICTIM)))
    ]


def test_a_reader_that_shows_no_record_proves_nothing(lake: MadeLake) -> None:
    line = only(lake.verify(Altering(lake.view(), shows=lambda _place, _offset: False)), LOG)
    assert line.verdict == "disagrees"
    assert line.findings_count == len(lake.bronze)


def test_a_lake_without_rows_has_nothing_of_the_log(lake: MadeLake) -> None:
    rows = len(lake.bronze)
    lake.change("bronze.events", list.clear)
    line = lake.verify().line(LOG)
    assert line.verdict == "disagrees"
    assert {one.kind for one in line.findings} == {"behind"}
    assert line.findings_count == rows


def test_the_end_of_the_log_that_did_not_land_is_behind(lake: MadeLake) -> None:
    lake.change("bronze.events", lambda rows: rows.remove(max(_of_place(rows), key=lambda row: int(row["offset"]))))
    report = lake.verify()
    finding = report.line(LOG).findings[0]
    assert (finding.kind, finding.topic, finding.partition) == ("behind", "rides.v1", 0)
    part = next(part for part in report.partitions if (part.topic, part.partition) == ("rides.v1", 0))
    assert (part.verdict, part.detail, part.behind_records) == ("disagrees", "behind", 1)
    assert {one.verdict for one in report.partitions if one is not part} == {"agrees"}


def test_what_the_sink_noted_as_landed_is_missing_not_behind(lake: MadeLake) -> None:
    last = max(_of_place(lake.bronze), key=lambda row: int(row["offset"]))
    _write_checkpoint(lake, began={}, landed={"rides.v1": {"0": last["offset"] + 1}})
    lake.change("bronze.events", lambda rows: rows.remove(last))
    assert [one.kind for one in lake.verify().line(LOG).findings] == ["missing"]


def _of_place(rows: list[Row]) -> list[Row]:
    return [row for row in rows if (row["topic"], row["partition"]) == ("rides.v1", 0)]


def _write_checkpoint(lake: MadeLake, *, began: Mapping[str, Any], landed: Mapping[str, Any]) -> None:
    checkpoint = lake.layout.checkpoint("bronze")
    for name in ("sources/0", "commits", "offsets"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "sources/0/0").write_bytes(b"\x00v1\n" + json.dumps(began).encode())
    (checkpoint / "commits/0").write_text("v1\n{}")
    (checkpoint / "offsets/0").write_text(f"v1\n{{}}\n{json.dumps(landed)}")


def test_offsets_of_transactions_are_no_records(own_lake: MadeLake) -> None:
    for number, ending in enumerate(("commit_transaction", "abort_transaction")):
        producer = Producer({"bootstrap.servers": own_lake.bootstrap, "transactional.id": f"lake-{number}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for event, at in ride(5_000 + number):
            encoded = encode(event, envelope_for(event, source="/booking", time=at))
            producer.produce("payments.v1", encoded.value, encoded.key, partition=0, headers=[*encoded.headers])
        assert producer.flush(30) == 0
        getattr(producer, ending)(30)
    own_lake.land_bronze()
    own_lake.write("bronze.events")
    report = own_lake.verify()
    assert report.line(LOG).verdict == "agrees"
    part = next(part for part in report.partitions if (part.topic, part.partition) == ("payments.v1", 0))
    assert part.hidden_offsets == 9 + 2  # the aborted records, and a marker for each transaction
    # An aborted record that landed all the same is not in the log that consumers see.
    stray = own_lake.bronze[0] | {"topic": "payments.v1", "partition": 0, "offset": (part.end or 0) - 2}
    own_lake.change("bronze.events", lambda rows: rows.append(stray))
    assert [(one.kind, one.offset) for one in own_lake.verify().line(LOG).findings if one.kind != "altered"] == [
        ("invented", stray["offset"])
    ]


def test_altered_bytes_in_the_log_are_named(landed: LandedLake, tmp_path: Path) -> None:
    """The segment is changed on disk, its CRC made right again: only the bytes can tell."""
    from crc32c import crc32c

    data = landed.copy_of_data(tmp_path / "broker")
    with ThreadedBroker(data_dir=data) as own:
        made = landed.copy_of_lake(tmp_path / "lake", own.bootstrap)
        assert made.verify().line(LOG).verdict == "agrees"
    victim = next(
        row for row in made.bronze if (row["topic"], row["partition"]) == ("payments.v1", 0) and FARE in row["value"]
    )
    [segment] = [path for path in Path(data).rglob("*.log") if path.parent.name == "payments.v1-0"]
    content = bytearray(segment.read_bytes())
    place = content.index(FARE)
    content[place + len(FARE) - 1] = ord("1")
    batch = 0
    while batch + 12 + int.from_bytes(content[batch + 8 : batch + 12]) <= place:
        batch += 12 + int.from_bytes(content[batch + 8 : batch + 12])
    end = batch + 12 + int.from_bytes(content[batch + 8 : batch + 12])
    content[batch + 17 : batch + 21] = crc32c(bytes(content[batch + 21 : end])).to_bytes(4)
    segment.write_bytes(content)
    with ThreadedBroker(data_dir=data) as own:
        made.bootstrap = own.bootstrap
        # An incremental run compares what came since, and says from where; the full run compares everything.
        assert made.verify().line(LOG).verdict == "agrees"
        line = made.verify(full=True).line(LOG)
    assert [(one.kind, one.topic, one.partition, one.offset, one.column) for one in line.findings] == [
        ("altered", "payments.v1", 0, victim["offset"], "value")
    ]


# -- topics that are not what they were


def _topic_made_anew(own: ThreadedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    admin.delete_topics(["rides.v1"])["rides.v1"].result()
    admin.create_topics([NewTopic("rides.v1", 2, 1)])["rides.v1"].result()


@pytest.mark.parametrize("known_by", ["an earlier verification", "the sink"])
def test_a_topic_that_was_made_anew_with_as_many_records_is_noticed(
    own_lake: MadeLake, own_broker: ThreadedBroker, known_by: str
) -> None:
    first = own_lake.view().describe(["rides.v1"])["rides.v1"].topic_id
    assert first is not None
    if known_by == "the sink":
        note_topic_ids(own_lake.layout.topic_ids, {"rides.v1": first})
    else:
        assert own_lake.verify().line(LOG).verdict == "agrees"
    records = list(read_all(own_lake.bootstrap, ["rides.v1"]))
    _topic_made_anew(own_broker)
    producer = Producer({"bootstrap.servers": own_lake.bootstrap})
    for record in records:  # the same bytes at the same offsets
        producer.produce("rides.v1", record.value, record.key, record.partition, headers=record.headers)
    assert producer.flush(30) == 0
    assert [(one.partition, one.offset, one.value) for one in read_all(own_lake.bootstrap, ["rides.v1"])] == [
        (one.partition, one.offset, one.value) for one in records
    ]
    second = own_lake.view().describe(["rides.v1"])["rides.v1"].topic_id
    for full in (False, True):
        line = own_lake.verify(full=full).line(LOG)
        assert line.verdict == "disagrees"
        assert [(one.kind, one.topic) for one in line.findings] == [("replaced", "rides.v1")]
        assert f"id {first} was" in line.findings[0].message
        assert f"the broker now has {second}" in line.findings[0].message


def test_a_topic_or_partition_that_the_broker_does_not_have_is_noticed(lake: MadeLake) -> None:
    def without(views: dict[str, TopicView]) -> None:
        del views["rides.v1"]

    line = only(lake.verify(Altering(lake.view(), describes=without)), LOG)
    assert [(one.kind, one.topic) for one in line.findings] == [("replaced", "rides.v1")]

    def narrower(views: dict[str, TopicView]) -> None:
        del views["quotes.v1"].ends[1]
        del views["quotes.v1"].starts[1]

    line = only(lake.verify(Altering(lake.view(), describes=narrower)), LOG)
    assert [(one.kind, one.topic, one.partition) for one in line.findings] == [("replaced", "quotes.v1", 1)]


def test_a_log_that_lost_its_newest_records_is_noticed(lake: MadeLake) -> None:
    def shorter(views: dict[str, TopicView]) -> None:
        views["rides.v1"].ends[0] -= 3

    log = Altering(lake.view(), describes=shorter)
    line = only(lake.verify(log), LOG)
    assert [one.kind for one in line.findings] == ["invented"]
    assert "the broker lost its newest records" in line.findings[0].message
    assert lake.verify().ok
    line = only(lake.verify(log), LOG)
    assert "retreated" in {one.kind for one in line.findings}


def test_a_topic_outside_the_settings_is_compared_when_it_landed(lake: MadeLake) -> None:
    victim = row_of(lake, "bronze.events", **VICTIM)
    lake.change("bronze.events", lambda rows: rows.remove(victim))
    assert lake.verify(topics=("quotes.v1",)).line(LOG).findings[0].kind == "missing"


# -- the start of the log


FIRST_KEPT = 4


def _trim(lake: MadeLake) -> None:
    """Let the broker delete the first records of rides.v1-0."""
    admin = AdminClient({"bootstrap.servers": lake.bootstrap})
    for future in admin.delete_records([ConfluentPartition("rides.v1", 0, FIRST_KEPT)]).values():
        future.result()


def test_what_was_verified_may_be_deleted_from_the_log(own_lake: MadeLake) -> None:
    assert own_lake.verify().line(LOG).verdict == "agrees"
    _trim(own_lake)
    for full in (False, True):
        report = own_lake.verify(full=full)
        assert report.line(LOG).verdict == "agrees"
        part = next(part for part in report.partitions if (part.topic, part.partition) == ("rides.v1", 0))
        assert part.log_start == FIRST_KEPT
    # It is still watched in the lake.
    victim = row_of(own_lake, "bronze.events", topic="rides.v1", partition=0, offset=1)
    victim["value"] += b" "
    own_lake.write("bronze.events")
    for full in (False, True):
        line = own_lake.verify(full=full).line(LOG)
        assert [(one.kind, one.topic, one.partition) for one in line.findings] == [("altered", "rides.v1", 0)]


def test_rows_that_the_log_deleted_before_they_were_compared_are_not_checked(own_lake: MadeLake) -> None:
    _trim(own_lake)
    report = own_lake.verify()
    line = report.line(LOG)
    assert line.verdict == "not_checked"
    assert [(one.kind, one.topic, one.partition, one.offset) for one in line.findings] == [
        ("unverified", "rides.v1", 0, 0)
    ]
    assert "retention.ms=" in line.findings[0].message
    part = next(one for one in report.partitions if (one.topic, one.partition) == ("rides.v1", 0))
    assert (part.verdict, part.detail) == ("not_checked", "unverified")
    assert report.problems[0].startswith(f"bronze = log: not checked: rides.v1-0: {FIRST_KEPT} rows between offsets 0")
    assert not report.ok
    assert own_lake.verify().line(LOG).verdict == "not_checked"  # asking again changes nothing


def test_a_hole_below_the_start_of_the_log_is_lost(own_lake: MadeLake) -> None:
    _trim(own_lake)
    victim = row_of(own_lake, "bronze.events", **(VICTIM | {"offset": 2}))
    own_lake.change("bronze.events", lambda rows: rows.remove(victim))
    line = own_lake.verify().line(LOG)
    assert line.verdict == "disagrees"
    lost = next(one for one in line.findings if one.kind == "lost")
    assert (lost.topic, lost.partition, lost.offset) == ("rides.v1", 0, 2)
    assert f"the log begins at {FIRST_KEPT}" in lost.message


def test_where_the_lake_began_is_no_hole(own_lake: MadeLake) -> None:
    _trim(own_lake)
    early = [row for row in _of_place(own_lake.bronze) if row["offset"] < FIRST_KEPT]
    own_lake.tables["bronze.events"] = [row for row in own_lake.bronze if row not in early]
    own_lake.write("bronze.events")
    assert own_lake.verify().line(LOG).verdict == "disagrees"
    _write_checkpoint(own_lake, began={"rides.v1": {"0": FIRST_KEPT, "1": 0}}, landed={})
    report = own_lake.verify()
    assert report.line(LOG).verdict == "agrees"
    began = f"the log began at offset {FIRST_KEPT} when the lake began"
    assert any(began in one for one in report.allowances)


def test_a_person_may_accept_what_nobody_can_compare(own_lake: MadeLake) -> None:
    _trim(own_lake)
    assert own_lake.verify(accepts_deleted=True).line(LOG).verdict == "agrees"
    for full in (False, True):
        report = own_lake.verify(full=full)
        assert report.line(LOG).verdict == "agrees"
        assert any(f"offsets 0 to {FIRST_KEPT - 1} ({FIRST_KEPT} rows)" in one for one in report.allowances)


# -- compaction


def _compacted(views: dict[str, TopicView]) -> None:
    views["rides.v1"].is_compacted = True


def test_compaction_explains_only_what_has_a_newer_record_of_its_key(lake: MadeLake) -> None:
    rows = sorted(_of_place(lake.bronze), key=lambda row: int(row["offset"]))
    newest = {row["key"]: row["offset"] for row in rows}
    gone = [row["offset"] for row in rows if newest[row["key"]] != row["offset"]]
    assert len(gone) > 2

    def kept(place: Place, offset: int) -> bool:
        return place != ("rides.v1", 0) or offset not in gone

    report = lake.verify(Altering(lake.view(), shows=kept, describes=_compacted))
    assert report.ok, report.problems
    assert any(f"{len(gone)} rows in 1 partitions are no longer in the log" in one for one in report.allowances)

    last = max(newest.values())
    gone.append(last)
    line = only(lake.verify(Altering(lake.view(), shows=kept, describes=_compacted), full=True), LOG)
    assert [(one.kind, one.offset) for one in line.findings] == [("invented", last)]


# -- silence


@contextmanager
def deaf_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                accepted.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for one in accepted:
            one.close()


def test_a_broker_that_never_answers_is_no_proof(lake: MadeLake) -> None:
    with deaf_server() as address:
        report = lake.verify(BrokerView(address, timeout_s=1.0))
    line = only(report, LOG)
    assert line.verdict == "not_checked"
    assert {one.kind for one in line.findings} == {"unread"}
    assert f"{address} did not answer" in report.problems[0]


def test_a_broker_that_is_not_there_is_no_proof(lake: MadeLake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert only(lake.verify(BrokerView(address, timeout_s=1.0)), LOG).verdict == "not_checked"


def test_a_broker_that_stops_answering_is_no_proof(lake: MadeLake, broker: ThreadedBroker) -> None:
    """It describes its topics, and then fetches never come back."""
    fault = broker.call(lambda one: one.fail(Fault(api=ApiKey.FETCH, times=10_000, delay_s=3600)))
    try:
        report = lake.verify(lake.view(timeout_s=1.0))
    finally:
        fault.times = 0
    line = only(report, LOG)
    assert line.verdict == "not_checked"
    assert {part.verdict for part in report.partitions if part.end} == {"not_checked"}
    assert {(one.topic, one.partition) for one in line.findings} >= {("rides.v1", 0), ("rides.v1", 1)}
    assert "read up to offset 0 of " in line.findings[0].message


def test_a_broker_that_answers_for_some_topics_is_no_proof_of_the_others(
    lake: MadeLake, broker: ThreadedBroker
) -> None:
    def silent(views: dict[str, TopicView]) -> None:
        views["quotes.v1"].unanswered = "no answer"

    line = only(lake.verify(Altering(lake.view(), describes=silent)), LOG)
    assert (line.verdict, line.findings[0].topic) == ("not_checked", "quotes.v1")
    fault = Fault(api=ApiKey.LIST_OFFSETS, times=10_000, error=ErrorCode.KAFKA_STORAGE_ERROR)
    broker.call(lambda one: one.fail(fault))
    try:
        line = only(lake.verify(lake.view(timeout_s=1.0)), LOG)
    finally:
        fault.times = 0
    assert line.verdict == "not_checked"


def test_what_was_not_read_is_not_verified(lake: MadeLake, broker: ThreadedBroker) -> None:
    fault = broker.call(lambda one: one.fail(Fault(api=ApiKey.FETCH, times=10_000, delay_s=3600)))
    try:
        lake.verify(lake.view(timeout_s=1.0))
    finally:
        fault.times = 0
    log = Altering(lake.view())
    assert lake.verify(log).ok
    assert log.reads[0]["rides.v1", 0][0] == 0


def test_without_a_broker_bronze_is_not_checked(lake: MadeLake) -> None:
    report = verify_lake(lake.root, None)
    assert only(report, LOG).verdict == "not_checked"
    assert report.problems == ("bronze = log: not checked: no broker was given; name it with --bootstrap HOST:PORT",)


# -- from where the last verification ended


def test_a_later_run_reads_only_what_came_since(lake: MadeLake) -> None:
    log = Altering(lake.view())
    assert lake.verify(log).mode == "full"
    ends = {place: end for place, (_, end) in log.reads[0].items()}
    assert all(start == 0 for start, _ in log.reads[0].values())
    report = lake.verify(log)
    assert (report.ok, report.mode, report.rows) == (True, "incremental", len(lake.bronze))
    assert log.reads[1] == {place: (end, end) for place, end in ends.items()}
    assert sum(part.log_records for part in report.partitions) == 0
    report = lake.verify(log, full=True)
    assert (report.ok, report.mode) == (True, "full")
    assert log.reads[2] == log.reads[0]


def test_a_later_run_finds_faults_in_what_came_since(own_lake: MadeLake) -> None:
    assert own_lake.verify().line(LOG).verdict == "agrees"
    old = {(row["topic"], row["partition"], row["offset"]) for row in own_lake.bronze}
    Feed(own_lake.bootstrap, first_ride=5_000).rides(45)
    own_lake.land_bronze()
    victim = next(
        row
        for row in own_lake.bronze
        if (row["topic"], row["partition"], row["offset"]) not in old and row["topic"] == "rides.v1"
    )
    victim["value"] += b" "
    own_lake.write("bronze.events")
    for _ in range(2):  # what disagreed is not verified
        line = own_lake.verify().line(LOG)
        assert [(one.kind, one.topic, one.offset) for one in line.findings] == [
            ("altered", "rides.v1", victim["offset"])
        ]


def _remove(rows: list[Row], row: Row) -> None:
    rows.remove(row)


def _double(rows: list[Row], row: Row) -> None:
    rows.append(row)


def _alter(_rows: list[Row], row: Row) -> None:
    row["value"] += b" "


@pytest.mark.parametrize(
    ("change", "kind"),
    [(_remove, "missing"), (_double, "doubled"), (_alter, "altered")],
    ids=["removed", "doubled", "altered"],
)
def test_a_change_below_what_was_verified_is_found_and_named(
    lake: MadeLake, change: Callable[[list[Row], Row], None], kind: str
) -> None:
    assert lake.verify().ok
    victim = row_of(lake, "bronze.events", **VICTIM)
    lake.change("bronze.events", lambda rows: change(rows, victim))
    for full in (False, True):
        line = lake.verify(full=full).line(LOG)
        assert [(one.kind, one.topic, one.partition, one.offset) for one in line.findings] == [(kind, "rides.v1", 0, 5)]


def test_an_altered_timestamp_below_what_was_verified_is_found(lake: MadeLake) -> None:
    assert lake.verify().ok
    row_of(lake, "bronze.events", **VICTIM)["timestamp"] += timedelta(seconds=1)
    lake.write("bronze.events")
    line = lake.verify().line(LOG)
    assert [(one.kind, one.partition) for one in line.findings] == [("altered", 0)]
    assert "the timestamps of rows that were verified earlier are altered" in line.findings[0].message


def test_another_duckdb_hashes_the_rows_again(lake: MadeLake) -> None:
    assert lake.verify().ok
    document = json.loads(lake.layout.verified.read_text())
    for row in document["partitions"]:
        row |= {"quick_version": "0.0.1", "quick_sum": "00"}
    lake.layout.verified.write_text(json.dumps(document))
    kept = lake.layout.verified.read_text()
    assert lake.verify().ok
    lake.layout.verified.write_text(kept)
    victim = row_of(lake, "bronze.events", **VICTIM)
    victim["value"] += b" "
    lake.write("bronze.events")
    assert [(one.kind, one.topic) for one in lake.verify().line(LOG).findings] == [("altered", "rides.v1")]


def test_a_damaged_note_of_the_last_verification_is_an_error(lake: MadeLake) -> None:
    for text in ("{", "[]", '{"format": 9}', '{"format": 1, "partitions": [{"topic": "a"}]}'):
        lake.layout.verified.parent.mkdir(parents=True, exist_ok=True)
        lake.layout.verified.write_text(text)
        with pytest.raises(LakeError, match=r"does not say what was verified .* everything is verified anew"):
            lake.verify()


# -- silver and bronze


def _misplaced(lake: MadeLake) -> tuple[str, str]:
    row = row_of(lake, "silver.payments", ce_type="payment.captured")
    lake.tables["silver.payments"].remove(row)
    lake.tables["silver.rides"].append({name: row.get(name) for name in lake.tables["silver.rides"][0]})
    lake.write("silver.rides", "silver.payments")
    return "misplaced", str(row["ce_id"])


def _wrongly_quarantined(lake: MadeLake) -> tuple[str, str]:
    row = row_of(lake, "silver.rides", ce_type="ride.completed")
    lake.tables["silver.rides"].remove(row)
    bronze = row_of(lake, "bronze.events", **{name: row[name] for name in ("topic", "partition", "offset")})
    lake.tables["silver.quarantine"].append(
        {name: bronze.get(name) for name in lake.tables["silver.quarantine"][0]}
        | {"error": "InvalidPayloadError", "reason": "it was not to my taste", "silver_batch": 0}
    )
    lake.write("silver.rides", "silver.quarantine")
    return "wrongly_quarantined", str(row["ce_id"])


def _wrongly_typed(lake: MadeLake) -> tuple[str, str]:
    refused = row_of(lake, "silver.quarantine", error="InvalidPayloadError")
    lake.tables["silver.quarantine"].remove(refused)
    coordinates = {name: refused[name] for name in ("topic", "partition", "offset", "timestamp", "ingested_at")}
    typed = row_of(lake, "silver.rides", ce_type="ride.completed")
    lake.tables["silver.rides"].append(typed | coordinates | {"ce_id": "made-up"})
    lake.write("silver.rides", "silver.quarantine")
    return "wrongly_typed", "made-up"


def _wrong_bytes(lake: MadeLake) -> tuple[str, str]:
    row_of(lake, "silver.quarantine", error="InvalidPayloadError")["value"] = b"else"
    lake.write("silver.quarantine")
    return "altered", ""


@pytest.mark.parametrize("fault", [_misplaced, _wrongly_quarantined, _wrongly_typed, _wrong_bytes])
def test_a_fault_between_the_tables_of_silver_is_named(
    lake: MadeLake, fault: Callable[[MadeLake], tuple[str, str]]
) -> None:
    """`tests/unit/analytics_spark/test_silver.py` has the faults of single tables."""
    kind, event_id = fault(lake)
    line = lake.verify().line(SILVER)
    assert line.verdict == "disagrees"
    found = [one for one in line.findings if one.kind == kind and (not event_id or one.id == event_id)]
    assert found, line.findings
    assert found[0].topic is not None
    assert found[0].partition is not None
    assert found[0].offset is not None
    assert f"{found[0].topic}-{found[0].partition} offset {found[0].offset}" in found[0].message


def test_a_row_that_bronze_does_not_have_hides_no_other(lake: MadeLake) -> None:
    rows = lake.tables["silver.rides"]
    made = min(rows, key=lambda row: (row["partition"], row["offset"])) | {"ce_id": "made-up"}
    rows.insert(0, made | {"partition": 0, "offset": 1_000_000})
    for row in rows[1:]:
        row["rider_id"] = "another"
    lake.write("silver.rides")
    line = lake.verify().line(SILVER)
    assert {one.kind for one in line.findings} >= {"altered"}
    assert line.findings_count >= len(rows)


def test_altered_columns_of_silver_are_named(lake: MadeLake) -> None:
    requests = [row for row in lake.tables["silver.rides"] if row["ce_type"] == "ride.requested"]
    changes: list[tuple[str, Row, str, object]] = [
        ("silver.rides", row, column, value)
        for row, (column, value) in zip(
            requests,
            [
                ("ce_source", "/other"),
                ("ce_type", "ride.repriced"),
                ("ce_version", 2),
                ("ce_subject", "other"),
                ("correlation_id", "other"),
                ("causation_id", "other"),
                ("traceparent", "other"),
                ("rider_id", "other"),
                ("multiplier", 9.0),
                ("simulated", True),
                ("pickup", {"lat": 1.0, "lng": 2.0}),
                ("fare", {"amount_minor": 5201, "currency": "USD"}),
                ("passengers", None),
                ("driver_id", "of no request"),
            ],
            strict=False,
        )
    ]
    changes += [
        ("silver.quotes", row_of(lake, "silver.quotes", ce_type="quote.offered"), "expires_at", None),
        (
            "silver.recommendations",
            row_of(lake, "silver.recommendations", ce_type="recommendation.served"),
            "options",
            [],
        ),
        ("silver.payments", lake.tables["silver.payments"][0], "amount", {"amount_minor": 1, "currency": "USD"}),
        ("silver.payments", lake.tables["silver.payments"][1], "ce_id", "other"),
    ]
    for _, row, column, value in changes:
        row[column] = value
    lake.write(*{table for table, *_ in changes})
    line = lake.verify().line(SILVER)
    assert line.verdict == "disagrees"
    assert {(one.kind, one.table, one.column, one.topic, one.partition, one.offset) for one in line.findings} == {
        ("altered", table, column, row["topic"], row["partition"], row["offset"]) for table, row, column, _ in changes
    }


def test_altered_times_of_silver_are_named(lake: MadeLake) -> None:
    columns = ("ce_time", "timestamp", "ingested_at", "started_at")
    victim = row_of(lake, "silver.rides", ce_type="ride.completed")
    for column in columns:
        victim[column] += timedelta(microseconds=1)
    lake.write("silver.rides")
    found = lake.verify().line(SILVER).findings
    assert {(one.kind, one.column, one.offset) for one in found} == {
        ("altered", column, victim["offset"]) for column in columns
    }


# -- gold and silver


@pytest.mark.parametrize("table", ["gold.demand", "gold.recommendations"])
def test_altered_figures_of_gold_are_named(lake: MadeLake, table: str) -> None:
    """`tests/unit/analytics_spark/test_gold.py` has the figures of all tables."""
    row = lake.tables[table][-1]
    figures = [column.name for column in GOLD[table[5:]].columns if column.type in {"bigint", "double"}]
    for column in figures:
        row[column] += 1
    lake.write(table)
    line = only(lake.verify(), GOLDEN)
    assert [(one.kind, one.table, one.column) for one in line.findings] == [
        ("altered", table, column) for column in figures
    ]
    assert f"{figures[0]} = {row[figures[0]]}" in line.findings[0].message


@pytest.mark.parametrize("kind", ["missing", "invented", "doubled", "null"])
def test_a_row_too_many_or_too_few_in_gold_is_named(lake: MadeLake, kind: str) -> None:
    for name, spec in GOLD.items():
        rows = lake.tables[spec.name]
        match kind:
            case "missing":
                rows.pop()
            case "invented":
                rows.append(rows[-1] | {"window_start": rows[-1]["window_start"] + timedelta(days=30)})
            case "doubled":
                rows.append(dict(rows[-1]))
            case "null":
                rows[-1][next(column.name for column in GOLD[name].columns if column.type == "bigint")] = None
    lake.write(*(spec.name for spec in GOLD.values()))
    line = only(lake.verify(), GOLDEN)
    assert sorted((one.kind, one.table) for one in line.findings) == sorted(
        ("altered" if kind == "null" else kind, spec.name) for spec in GOLD.values()
    )


def test_a_destination_is_hit_in_the_coarser_of_both_cells(lake: MadeLake) -> None:
    """The recommender serves cells of resolution 9, booking publishes drop-offs at 8: equality would never hit."""
    options = row_of(lake, "silver.recommendations", ce_type="recommendation.served")["options"]
    assert all(option["cell"] != DESTINATION for option in options)
    assert lake.tables["gold.recommendations"][0]["hit_count"] == RIDES
    lake.tables["gold.recommendations"][0] |= {"hit_top3_count": 0, "hit_count": 0, "hit_share": 0.0}
    lake.write("gold.recommendations")
    line = only(lake.verify(), GOLDEN)
    assert {one.column for one in line.findings} == {"hit_top3_count", "hit_count", "hit_share"}


def test_a_lake_without_silver_or_gold_is_not_checked(lake: MadeLake, tmp_path: Path) -> None:
    half = MadeLake(tmp_path / "half", lake.bootstrap, {"bronze.events": lake.bronze})
    half.write()
    report = half.verify()
    assert [line.verdict for line in report.lines] == ["agrees", "not_checked", "not_checked"]
    assert not report.ok
    # The quarantine alone is no silver; with one table of it silver is compared, and lacks the others.
    half.tables |= {name: lake.tables[name] for name in ("silver.quarantine", "silver.rides")}
    half.write("silver.quarantine")
    assert half.verify().line(SILVER).verdict == "not_checked"
    half.write("silver.rides")
    line = half.verify().line(SILVER)
    assert line.verdict == "disagrees"
    assert {(one.kind, one.table) for one in line.findings} <= {
        ("missing", f"silver.{name}") for name in ("quotes", "payments", "recommendations")
    }


# -- the command


def test_the_command_exits_with_1_unless_everything_agrees(lake: MadeLake) -> None:
    arguments = ["verify", "--dir", str(lake.root), "--timeout", "1"]
    runner = CliRunner()
    good = runner.invoke(app, [*arguments, "--bootstrap", lake.bootstrap, "--timeout", "20", "--json", "--seed", "5"])
    assert good.exit_code == 0
    assert json.loads(good.stdout)["seed"] == 5
    shown = runner.invoke(app, [*arguments, "--bootstrap", lake.bootstrap, "--timeout", "20", "--full"])
    assert shown.exit_code == 0
    assert f"complete: {len(lake.bronze)} rows in 8 partitions, full comparison in" in shown.stdout
    with deaf_server() as address:
        silent = runner.invoke(app, [*arguments, "--bootstrap", address])
    assert silent.exit_code == 1
    assert f"PROBLEM bronze = log: not checked: payments.v1: {address} did not answer" in silent.stdout
    alone = runner.invoke(app, arguments)
    assert alone.exit_code == 1
    assert "no broker was given; name it with --bootstrap HOST:PORT" in alone.stdout
    lake.change("silver.rides", list.pop)
    broken = runner.invoke(app, [*arguments, "--bootstrap", lake.bootstrap, "--timeout", "20", "--json"])
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["ok"] is False


# -- reading


def test_queries_read_and_nothing_else(lake: MadeLake) -> None:
    rows = len(lake.bronze)
    assert query(lake.root, "SELECT count(*) AS n FROM bronze.events").to_pylist() == [{"n": rows}]
    assert {info.name: info.rows for info in table_infos(lake.root)}["bronze.events"] == rows
    refused: list[tuple[str, str]] = [
        ("DELETE FROM bronze.events", "give one SELECT"),
        ("SELECT 1; SELECT 2", "give one SELECT"),
        (f"COPY (SELECT 1) TO '{lake.root}/x'", "give one SELECT"),
        ("SELEC 1", "does not parse"),
        ("SELECT * FROM bronze.nothing", "tables are bronze.events"),
        ("SELECT * FROM read_text('/etc/hostname')", "file system operations are disabled"),
    ]
    for sql, words in refused:
        with pytest.raises(QueryRefusedError, match=words):
            query(lake.root, sql)


def test_no_lake_is_said_in_one_sentence(tmp_path: Path) -> None:
    root = tmp_path / "none"
    calls: list[Any] = [lambda: verify_lake(root, None), lambda: table_infos(root), lambda: query(root, "SELECT 1")]
    for call in calls:
        with pytest.raises(LakeMissingError, match=f"there is no lake at {root}; run lake-sink"):
            call()
