"""The auditor is audited: a recorded run is balanced, and each fault that is put into it is found by its line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hailbus import KafkaBus
from hailbus_broker.testing import ThreadedBroker
from hailbus_demo import audit
from hailbus_demo.audit import AuditPlan
from hailbus_demo.figures import Figures, Timings
from hailbus_demo.ledger import draw, gather, kafka
from hailbus_demo.ledger.accounts import LakeAccount
from hailbus_demo.ledger.draw import Ledger
from hailbus_demo.ledger.gather import Gatherer
from hailbus_demo.ledger.kafka import LETTERS_READ, KafkaLog
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.model import Finding, Line
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import Traffic
from hailbus_demo.watch import Watch

from tests.integration.demo.faults.declared import NEW_ID, Fault
from tests.integration.demo.faults.every import FAULTS, table
from tests.integration.demo.recorded import RecordedLog, RecordedRun, copy, lake_report_of, with_header

README = Path(__file__).parents[3] / "demo" / "README.md"
ON_THE_BROKER = {"the log", "the dead-letter topics", "the groups' offsets"}
DEMO = str(Path(sys.executable).parent / "demo")


@pytest.fixture(scope="module")
def clean_broker(clean: RecordedRun) -> Iterator[str]:
    with ThreadedBroker() as broker:
        clean.load(broker.bootstrap)
        yield broker.bootstrap


@pytest.fixture
def run(clean: RecordedRun, tmp_path: Path) -> RecordedRun:
    folder = tmp_path / "run"
    folder.mkdir()
    return copy(clean, folder)


@pytest.fixture
def no_broker(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the run's records from memory: a broker for each of a hundred runs would take minutes."""
    monkeypatch.setattr(gather, "KafkaLog", lambda _: RecordedLog(run))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SURGE_CLOSES_WITHIN_S", 0.0)
    monkeypatch.setattr(audit, "ATTEMPTS", 2)


def figures_of(bootstrap: str) -> Figures:
    watch = Watch(KafkaBus(bootstrap_servers=bootstrap), topics=(), consumers=(), lake_dir=None)
    return Figures(
        run=1,
        speed=None,
        book=Book(),
        stage=Stage(),
        watch=watch,
        supervisor=None,
        traffic=Traffic(),
        timings=Timings(),
    )


async def audited(run: RecordedRun, bootstrap: str) -> tuple[Ledger, dict[str, Any]]:
    """Return the ledger of a run and the summary that the command writes."""
    figures = figures_of(bootstrap)
    ledger = await audit.draw_up(AuditPlan(sources=run.sources(bootstrap), deadline_s=10), figures)
    return ledger, json.loads(json.dumps(figures.as_json()))


def line_of(ledger: Ledger, name: str) -> Line:
    return next(line for line in ledger.lines if line.id == name)


def fits(found: Finding, expected: Finding) -> bool:
    """Return whether a finding has the words, the topic, the partition, the offset and the id that are expected."""
    wanted = (expected.topic, expected.partition, expected.offset, expected.id)
    given = (found.topic, found.partition, found.offset, found.id)
    return expected.what in found.what and all(want in (None, give) for want, give in zip(wanted, given, strict=True))


async def test_the_recorded_run_is_balanced(run: RecordedRun, clean_broker: str) -> None:
    ledger, summary = await audited(run, clean_broker)
    assert [(line.id, line.detail) for line in ledger.lines if line.verdict != "agrees"] == []
    assert [line.id for line in ledger.lines] == [spec.id for spec in LINES]
    assert (ledger.balanced, ledger.exit_code, ledger.left_out) == (True, 0, ())
    assert summary["balanced"] is True
    assert len(summary["lines"]) == len(LINES)
    rides = summary["accounts"]
    assert rides["replay"] == rides["booking"] == rides["log"]


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS if one.line != "still"])
@pytest.mark.usefixtures("no_broker")
async def test_each_fault_is_found_by_its_line(fault: Fault, run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    # That line alone is drawn: so mutation testing knows which faults judge it.
    monkeypatch.setattr(draw, "LINES", [spec for spec in LINES if spec.id == fault.line])
    expected = fault.inject(run)
    ledger, summary = await audited(run, "memory:1")
    assert summary["balanced"] is False
    assert ledger.exit_code == 1
    (line,) = ledger.lines
    assert line.verdict == "disagrees", line.detail
    matching = [found for found in line.findings if fits(found, expected)]
    assert matching, (expected, line.findings[:5])
    told = str(matching[0])
    for part in (expected.topic, expected.offset, expected.id):
        assert part is None or str(part) in told
    shown = next(one for one in summary["lines"] if one["id"] == fault.line)
    assert shown["verdict"] == "disagrees"
    assert shown["findings"][0].keys() == {"what", "topic", "partition", "offset", "id"}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if number % 4 else [])
        for number, one in enumerate(one for one in FAULTS if one.place in ON_THE_BROKER)
    ],
)
async def test_a_fault_is_found_alike_with_and_without_a_broker(
    fault: Fault, run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.inject(run)
    with ThreadedBroker() as broker:
        run.load(broker.bootstrap)
        over_broker, _ = await audited(run, broker.bootstrap)
    monkeypatch.setattr(gather, "KafkaLog", lambda _: RecordedLog(run))
    in_memory, _ = await audited(run, "memory:1")
    assert in_memory.lines == over_broker.lines


def test_every_line_has_a_fault_that_it_must_find() -> None:
    assert {fault.line for fault in FAULTS} == {spec.id for spec in LINES}


def test_the_readmes_table_lists_the_faults_and_the_lines_that_find_them() -> None:
    found = re.search(r"\| Where \| Fault \| Line that finds it \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", README.read_text())
    assert found is not None
    assert found[1].splitlines() == table()


async def test_accounts_of_different_moments_are_not_checked(
    run: RecordedRun, clean: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    gather_log = Gatherer.gather_log

    async def while_somebody_publishes(self: Gatherer) -> Any:
        nonlocal attempts
        found = await gather_log(self)
        position = with_header(run.find("driver.location_reported"), "ce_id", f"{NEW_ID[:-1]}{attempts}")
        attempts += 1
        producer = Producer({"bootstrap.servers": self.sources.bootstrap})
        producer.produce(
            position.topic, position.value, position.key, partition=position.partition, headers=list(position.headers)
        )
        assert producer.flush(10) == 0
        return found

    with ThreadedBroker() as broker:
        run.load(broker.bootstrap)
        monkeypatch.setattr(Gatherer, "gather_log", while_somebody_publishes)
        ledger, summary = await audited(run, broker.bootstrap)
    still = line_of(ledger, "still")
    assert still.verdict == "not_checked"
    assert "driver-locations.v1" in still.detail
    assert (summary["balanced"], ledger.exit_code) == (False, 1)
    assert attempts == 3  # once to wait for surge, then as often as `ATTEMPTS` says


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("booking.sqlite", {"rides-book-booking", "outbox-log", "order", "inbox-booking", "drivers-booking-log"}),
        ("payment.sqlite", {"money-payment-log", "outbox-payment-log", "inbox-payment-saga"}),
        ("provider.sqlite", {"money-provider-log", "lake-money"}),
        ("surge.sqlite", {"inbox-surge"}),
        ("recommender.sqlite", {"inbox-recommender", "recommender-journeys", "advice-recommender-log"}),
        ("logger.sqlite", {"inbox-event-logger"}),
        ("audit.jsonl", {"journal-log"}),
    ],
)
@pytest.mark.parametrize("broken", ["missing", "damaged"])
@pytest.mark.usefixtures("no_broker")
async def test_an_account_that_cannot_be_read_is_not_balanced(
    path: str, lines: set[str], broken: str, run: RecordedRun
) -> None:
    file = run.folder / path
    if broken == "missing":
        file.unlink()
    else:
        file.write_bytes(b"x" * len(file.read_bytes()))
    ledger, summary = await audited(run, "memory:1")
    assert not any(line.verdict == "agrees" for line in ledger.lines if line.id in lines)
    if path.endswith(".sqlite"):
        assert lines <= {line.id for line in ledger.lines if line.verdict == "not_checked"}
        assert broken == "damaged" or not file.exists()
    assert (summary["balanced"], ledger.exit_code) == (False, 1)


async def test_a_log_that_cannot_be_read_is_not_balanced(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "ANSWER_WITHIN_S", 0.1)
    ledger, summary = await audited(run, "127.0.0.1:1")
    read = {line.id for line in ledger.lines if line.verdict != "not_checked"}
    assert read == {"rides-book-booking", "lake-silver", "lake-gold", "lake-money"}
    assert line_of(ledger, "outbox-log").verdict == "not_checked"
    assert (summary["balanced"], ledger.exit_code) == (False, 1)


async def test_the_ledger_reads_the_first_dead_letters_and_counts_all(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ride = run.find("ride.matched")
    topic = "rides.v1.surge-dlt"
    run.letters[topic] = [ride._replace(topic=topic, partition=0, offset=number) for number in range(LETTERS_READ + 5)]
    with ThreadedBroker() as broker:
        run.load(broker.bootstrap)
        over_broker = KafkaLog(broker.bootstrap).letters("-dlt")
    assert over_broker == RecordedLog(run).letters("-dlt")
    counts, letters = over_broker
    assert counts == {topic: LETTERS_READ + 5}
    assert [letter.offset for letter in letters] == list(range(LETTERS_READ))


@pytest.mark.usefixtures("no_broker")
async def test_the_lake_is_asked_at_the_end_only(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    async def report(lake_dir: Path, bootstrap: str) -> LakeAccount:
        asked.append(lake_dir)
        return LakeAccount(report=run.lake)

    monkeypatch.setattr(gather, "lake_report", report)
    sources = replace(run.sources("memory:1"), lake_report=None, lake_dir=run.folder)
    gatherer = Gatherer(sources)
    assert (await gatherer.gather(so_far=True)).lake is None
    assert asked == []
    assert isinstance((await gatherer.gather()).lake, LakeAccount)
    assert asked == [run.folder]


async def test_a_compacted_log_that_holds_the_newest_of_each_key_is_balanced(run: RecordedRun, tmp_path: Path) -> None:
    """Two neighbouring records whose keys have newer ones are gone, as after compaction."""
    first = None
    for topic in ("drivers.v1", "surge.v1"):
        records = run.all(topic)
        newest = {record.key: record.offset for record in records}
        places = {(r.partition, r.offset): r for r in records}
        first = next(
            r
            for r in records
            if (other := places.get((r.partition, r.offset + 1))) is not None
            and newest[r.key] > r.offset + 1
            and newest[other.key] > r.offset + 1
        )
        run.hide(first)
        for part in run.lake["partitions"]:  # the lake read them before they were gone
            if (part["topic"], part["partition"]) == (topic, first.partition):
                told = lake_report_of(run.records)["partitions"]
                same = next(one for one in told if (one["topic"], one["partition"]) == (topic, first.partition))
                part["log_records"], part["log_checksum"] = same["log_records"], same["log_checksum"]
    with ThreadedBroker() as broker:
        run.load(broker.bootstrap)
        ledger, _ = await audited(run, broker.bootstrap)
    assert [(line.id, line.detail) for line in ledger.lines if line.verdict != "agrees"] == []


@pytest.mark.usefixtures("no_broker")
async def test_an_event_that_was_published_again_after_a_restart_is_no_fault(run: RecordedRun) -> None:
    run.restarted = frozenset({"booking"})
    run.append(run.find("ride.matched"))
    run.lake = lake_report_of(run.records)
    ledger, _ = await audited(run, "memory:1")
    assert [(line.id, line.detail) for line in ledger.lines if line.verdict != "agrees"] == []
    assert line_of(ledger, "log-repeats").detail == "1 by booking, after a restart or by a click, each word for word"


def command(run: RecordedRun, bootstrap: str, summary: Path) -> subprocess.CompletedProcess[str]:
    report = run.folder / "lake.json"
    report.write_text(json.dumps(run.lake))
    databases = [f"--database={name}={url}" for name, url in run.urls().items()]
    files = [f"--book={run.folder / 'book.jsonl'}", f"--journal={run.folder / 'audit.jsonl'}"]
    return subprocess.run(
        [
            DEMO,
            "ledger",
            f"--bootstrap={bootstrap}",
            *databases,
            *files,
            f"--lake-report={report}",
            f"--summary={summary}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_ends_with_0_when_balanced_and_1_when_not(
    run: RecordedRun, clean_broker: str, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    done = command(run, clean_broker, summary)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(summary.read_text())["balanced"] is True
    assert "Ledger: balanced" in done.stdout
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    run.sql("booking", "UPDATE booking_rides SET state = 'banana' WHERE ride_id = ?", ride_id)
    done = command(run, clean_broker, summary)
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(summary.read_text())
    assert told["balanced"] is False
    assert "Ledger: not balanced" in done.stdout
    assert f"ride {ride_id} is 'banana' by booking's database, which is no state of a ride" in done.stdout
