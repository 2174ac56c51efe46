"""Each fault of `--sabotage`, done to a recorded run: the ledger is not balanced, and the fault's line names it."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from hailbus_broker.testing import ThreadedBroker
from hailbus_demo.figures import Sabotage
from hailbus_demo.ledger.draw import draw_up
from hailbus_demo.ledger.gather import Gatherer
from hailbus_demo.sabotage import deeds
from hailbus_demo.sabotage.deeds import Deed, RideEvent
from hailbus_demo.sabotage.faults import FAULTS, Target
from hailbus_demo.sabotage.segments import LogFiles

from tests.integration.demo.recorded import RecordedRun, unpack

ELSEWHERE = {
    "idle-consumer": "nothing comes for a consumer any more once a run was recorded: see tests/e2e/demo",
    "lake-row-missing": "the recorded run has no lake: see tests/integration/analytics_spark for lost rows of bronze",
}


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return unpack(tmp_path)


@pytest.fixture
def loaded(run: RecordedRun, tmp_path: Path) -> Path:
    """Return the log directory of a stopped broker that has the run's records."""
    folder = tmp_path / "broker"
    folder.mkdir()
    with ThreadedBroker(data_dir=str(folder)) as broker:
        run.load(broker.bootstrap)
    return folder


def edit_files(fault: str, files: LogFiles, payment: Path) -> Deed | None:
    match fault:
        case "lost-tail":
            return deeds.lose_tail(files, acknowledged=deeds.published_ids(payment, deeds.PAYMENTS))
        case "lost-record":
            return deeds.lose_record(files)
        case "reordered":
            return deeds.reorder(files)
        case "altered":
            return deeds.alter(files)
        case _:
            return None


def edit_databases(fault: str, run: RecordedRun, bootstrap: str) -> Deed | None:
    events = [
        RideEvent.of(record.topic, record.partition, record.offset, record.headers, record.value)
        for record in run.all(deeds.RIDES)
    ]
    match fault:
        case "invented":
            return deeds.invent(bootstrap, event_time=datetime(2014, 5, 2, 18, tzinfo=UTC))
        case "double-apply":
            return deeds.apply_twice(run.folder / "recommender.sqlite", events)
        case "lost-effect":
            return deeds.lose_effect(run.folder / "recommender.sqlite", events)
        case "double-payment":
            deed = deeds.pay_twice(run.folder / "payment.sqlite")
            relay(run.folder / "payment.sqlite", bootstrap)
            return deed
        case _:
            return None


def _delivered(done: list[Message], error: KafkaError | None, message: Message) -> None:
    assert error is None, error
    done.append(message)


def relay(database: Path, bootstrap: str) -> None:
    """Publish what waits in the outbox for no later time, as the service's relay would."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute(
            "SELECT id, aggregatetype, aggregateid, payload, headers FROM hailbus_outbox "
            "WHERE published_at IS NULL AND cancelled_at IS NULL AND not_before IS NULL ORDER BY position"
        ).fetchall()
        for event_id, topic, key, payload, headers in rows:
            done: list[Message] = []
            producer.produce(
                topic,
                payload.encode(),
                key.encode(),
                headers={name: value.encode() for name, value in json.loads(headers)},
                on_delivery=partial(_delivered, done),
            )
            producer.flush(30)
            partition, offset = done[0].partition(), done[0].offset()
            connection.execute(
                "UPDATE hailbus_outbox SET published_at = 1, published_partition = ?, published_offset = ? "
                "WHERE id = ?",
                (partition, offset, event_id),
            )


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ELSEWHERE])
async def test_the_ledger_finds_it(fault: str, run: RecordedRun, loaded: Path) -> None:
    deed = edit_files(fault, LogFiles(loaded), run.folder / "payment.sqlite")
    with ThreadedBroker(data_dir=str(loaded)) as broker:
        if FAULTS[fault].target is not Target.LOG_FILES:
            deed = edit_databases(fault, run, broker.bootstrap)
        assert deed is not None
        gatherer = Gatherer(run.sources(broker.bootstrap))
        try:
            ledger = draw_up(await gatherer.gather())
        finally:
            await gatherer.close()
    assert (ledger.balanced, ledger.exit_code) == (False, 1)
    line = next(line for line in ledger.lines if line.id == FAULTS[fault].line)
    assert line.verdict == "disagrees", [(one.id, one.detail) for one in ledger.lines if one.verdict != "agrees"]
    sabotage = Sabotage(fault=fault, deed=deed)
    sabotage.find(ledger)
    assert line.name in sabotage.found_by, (deed, line.findings[:5])
