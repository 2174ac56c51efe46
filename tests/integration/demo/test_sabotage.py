"""What the saboteur does to files and databases, seen by the broker and the clients that use them afterwards."""

import asyncio
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus import Inbox, Outbox
from hailbus.database import create_engine
from hailbus_broker.testing import ThreadedBroker
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.sabotage import deeds
from hailbus_demo.sabotage.deeds import Deed, RideEvent
from hailbus_demo.sabotage.faults import FAULTS
from hailbus_demo.sabotage.segments import LogFiles
from recommender.adapters.storage.store import metadata as recommender_tables

README = Path(__file__).parents[3] / "demo" / "README.md"
RIDES = 4
STEPS = ("ride.requested", "ride.matched", "ride.started", "ride.completed")
NOON = datetime(2014, 5, 1, 12, 0, tzinfo=UTC)

Place = tuple[str, int, int]
"""Topic, partition and offset."""
Content = tuple[str, bytes | None]
"""Event id and value."""


def event_id(ride: int, kind: str) -> str:
    return f"{kind}-of-{ride}"


def payload(ride: int, seq: int) -> dict[str, Any]:
    return {
        "ride_id": f"ride-{ride}",
        "seq": seq,
        "rider_id": f"rider-{ride}",
        "payment_id": f"payment-{ride}",
        "started_at": NOON.isoformat(),
        "amount": {"amount_minor": 800 + ride, "currency": "USD"},
    }


def headers(ride: int, kind: str) -> dict[str, str | bytes | None]:
    return {"ce_id": event_id(ride, kind), "ce_source": "/booking", "ce_type": kind}


def publish(bootstrap: str, *, compression: str = "none") -> None:
    """Publish four rides with their payments, the steps of all rides by turns, some per batch."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(topic, num_partitions=1) for topic in (deeds.RIDES, deeds.PAYMENTS)]
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": compression}
    )
    for seq, kind in enumerate(STEPS, 1):
        for ride in range(RIDES):
            value = json.dumps(payload(ride, seq), separators=(",", ":")).encode()
            producer.produce(deeds.RIDES, value, f"ride-{ride}".encode(), headers=headers(ride, kind))
        producer.flush(30)
    for ride in range(RIDES):
        for seq, kind in enumerate(("payment.authorised", "payment.captured"), 1):
            value = json.dumps(payload(ride, seq), separators=(",", ":")).encode()
            producer.produce(deeds.PAYMENTS, value, f"ride-{ride}".encode(), headers=headers(ride, kind))
        producer.flush(30)


def log_of(bootstrap: str) -> dict[Place, Content]:
    """Read both topics to their ends."""
    found: dict[Place, Content] = {}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": True}
    )
    try:
        for topic in (deeds.RIDES, deeds.PAYMENTS):
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None, f"{topic} has no end"
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    break
                offset = message.offset()
                assert offset is not None
                known: Mapping[str, Any] = dict(message.headers() or [])  # Any: the client's own union
                found[topic, 0, offset] = (known["ce_id"].decode(), message.value())
    finally:
        consumer.close()
    return found


def before_and_after(folder: Path, edit: Any, *, compression: str = "none") -> tuple[Deed, dict[Place, Content], Any]:
    """Return what was done to a broker's files, the log before, and the log as the started broker serves it."""
    with ThreadedBroker(data_dir=str(folder)) as broker:
        publish(broker.bootstrap, compression=compression)
        before = log_of(broker.bootstrap)
    assert len(before) == RIDES * len(STEPS) + RIDES * 2
    deed = edit(LogFiles(folder))
    assert deed is not None
    with ThreadedBroker(data_dir=str(folder)) as broker:
        after = log_of(broker.bootstrap)
        # The log goes on behind the edit.
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(deeds.PAYMENTS, b"{}", headers={"ce_id": "next"})
        assert producer.flush(30) == 0
        assert list(log_of(broker.bootstrap).values())[-1] == ("next", b"{}")
    return deed, before, after


def test_a_lost_tail_leaves_a_shorter_log_that_looks_whole(tmp_path: Path) -> None:
    acknowledged = {
        event_id(ride, kind) for ride in range(RIDES) for kind in ("payment.authorised", "payment.captured")
    }
    deed, before, after = before_and_after(tmp_path, lambda files: deeds.lose_tail(files, acknowledged=acknowledged))
    lost = {place: content for place, content in before.items() if place not in after}
    assert len(lost) >= deeds.LOST_RECORDS
    assert {topic for topic, _, _ in lost} == {deeds.PAYMENTS}
    assert {place: before[place] for place in after} == after
    offsets = [offset for _, _, offset in lost]
    assert sorted(offsets) == list(range(min(offsets), RIDES * 2))
    assert (deed.topic, deed.partition, deed.offset) == (deeds.PAYMENTS, 0, min(offsets))
    assert before[deeds.PAYMENTS, 0, min(offsets)][0] == deed.id


def test_a_tail_that_nobody_acknowledged_is_left_alone(tmp_path: Path) -> None:
    with ThreadedBroker(data_dir=str(tmp_path)) as broker:
        publish(broker.bootstrap)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.log")}
    assert deeds.lose_tail(LogFiles(tmp_path), acknowledged=set()) is None
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.log")} == files


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_an_altered_record_has_a_valid_crc_and_other_bytes(tmp_path: Path, compression: str) -> None:
    deed, before, after = before_and_after(tmp_path, deeds.alter, compression=compression)
    changed = {place for place, content in before.items() if after[place] != content}
    assert changed == {(deed.topic, deed.partition, deed.offset)}
    (place,) = changed
    assert after[place][0] == before[place][0] == deed.id
    assert json.loads(after[place][1])["amount"]["amount_minor"] == 900


def test_a_lost_record_leaves_a_hole(tmp_path: Path) -> None:
    deed, before, after = before_and_after(tmp_path, deeds.lose_record)
    assert set(before) - set(after) == {(deed.topic, deed.partition, deed.offset)}
    assert {place: before[place] for place in after} == after
    assert deed.id == event_id(0, "ride.started")


def test_reordered_records_of_a_ride_exchange_their_places(tmp_path: Path) -> None:
    deed, before, after = before_and_after(tmp_path, deeds.reorder)
    changed = sorted(place for place, content in before.items() if after[place] != content)
    assert len(changed) == 2
    assert [before[place] for place in changed] == [after[place] for place in reversed(changed)]
    assert [after[place][0] for place in changed] == [event_id(0, "ride.started"), event_id(0, "ride.matched")]
    assert (deed.topic, deed.partition, deed.offset) == changed[1]
    assert deed.id == event_id(0, "ride.matched")


def test_an_invented_event_is_on_its_key_with_an_envelope_like_bookings(tmp_path: Path) -> None:
    with ThreadedBroker(data_dir=str(tmp_path)) as broker:
        publish(broker.bootstrap)
        before = log_of(broker.bootstrap)
        deed = deeds.invent(broker.bootstrap, event_time=NOON)
        after = log_of(broker.bootstrap)
    new = {place: content for place, content in after.items() if place not in before}
    assert set(new) == {(deed.topic, deed.partition, deed.offset)}
    ((found_id, value),) = new.values()
    assert found_id == deed.id
    assert json.loads(value or b"")["seq"] == 1


# ---------------------------------------------------------------------------------------------------------- databases


def completed(*rides: int) -> list[RideEvent]:
    found = []
    for ride in rides:
        texts = [(name, str(text).encode()) for name, text in headers(ride, "ride.completed").items()]
        found.append(RideEvent.of(deeds.RIDES, 0, 12 + ride, texts, json.dumps(payload(ride, 4)).encode()))
    return found


def make_database(path: Path, *, journeys: Sequence[int] = (), applied: Sequence[int] = ()) -> Path:
    """Make the tables as the services do, journeys of some rides, and claims of some rides' completion."""

    async def tables() -> None:
        engine = create_engine(f"sqlite+aiosqlite:///{path}")
        await Inbox(engine, "event-logger").create_tables()
        await Outbox(engine).create_tables()
        async with engine.begin() as connection:
            await connection.run_sync(recommender_tables.create_all)
        await engine.dispose()

    asyncio.run(tables())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO recommender_journey (rider_id, pickup_cell, dropoff_cell, started_s) VALUES (?, 'a', 'b', ?)",
            [(f"rider-{ride}", NOON.timestamp()) for ride in journeys],
        )
        connection.executemany(
            "INSERT INTO hailbus_inbox VALUES ('event-logger', '/booking', ?, 'rides.v1', 0, 0, 1, 0)",
            [(event_id(ride, "ride.completed"),) for ride in applied],
        )
    return path


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_an_effect_is_applied_twice_or_lost(tmp_path: Path) -> None:
    database = make_database(tmp_path / "recommender.sqlite", journeys=[1, 2])
    riders = "SELECT rider_id FROM recommender_journey ORDER BY id"
    assert deeds.apply_twice(database, completed(0)) is None
    deed = deeds.apply_twice(database, completed(0, 1, 2))
    assert deed is not None
    assert (deed.id, deed.offset) == (event_id(1, "ride.completed"), 13)
    assert rows(database, riders) == [("rider-1",), ("rider-2",), ("rider-1",)]
    deed = deeds.lose_effect(database, completed(1, 2))
    assert deed is not None
    assert deed.id == event_id(2, "ride.completed")  # that of ride 1 is there twice
    assert rows(database, riders) == [("rider-1",), ("rider-1",)]


def test_events_are_claimed_that_the_consumer_never_saw(tmp_path: Path) -> None:
    database = make_database(tmp_path / "logger.sqlite", applied=[0])
    assert deeds.claim_unapplied(database, "event-logger", completed(0, 1), least=2) is None
    deed = deeds.claim_unapplied(database, "event-logger", completed(0, 1, 2, 3), least=2)
    assert deed is not None
    assert deed.id == event_id(1, "ride.completed")
    assert rows(database, "SELECT event_id, source, topic, offset_, seen_count FROM hailbus_inbox") == [
        (event_id(0, "ride.completed"), "/booking", "rides.v1", 0, 1),
        (event_id(1, "ride.completed"), "/booking", "rides.v1", 13, 1),
        (event_id(2, "ride.completed"), "/booking", "rides.v1", 14, 1),
    ]


def test_a_second_payment_waits_in_the_outbox_under_ids_of_its_own(tmp_path: Path) -> None:
    database = make_database(tmp_path / "payment.sqlite")
    assert deeds.pay_twice(database) is None
    with closing(sqlite3.connect(database)) as connection, connection:
        for seq, kind in enumerate(("payment.authorised", "payment.captured"), 1):
            connection.execute(
                "INSERT INTO hailbus_outbox (id, aggregatetype, aggregateid, type, payload, headers, created_at, "
                "published_at) VALUES (?, 'payments.v1', 'ride-1', ?, ?, ?, 5, 6)",
                (
                    event_id(1, kind),
                    kind,
                    json.dumps(payload(1, seq)),
                    json.dumps([[name, text] for name, text in headers(1, kind).items()]),
                ),
            )
    assert deeds.published_count(database, "payment.captured") == 1
    deed = deeds.pay_twice(database)
    assert deed is not None
    assert deed.id == "ride-1"
    new = rows(
        database, "SELECT id, type, aggregateid, payload, headers FROM hailbus_outbox WHERE published_at IS NULL"
    )
    assert [kind for _, kind, _, _, _ in new] == ["payment.authorised", "payment.captured"]
    payments = {json.loads(text)["payment_id"] for _, _, _, text, _ in new}
    assert len(payments) == 1
    assert payments != {"payment-1"}
    for found_id, _, key, text, header_text in new:
        assert key == "ride-1"
        assert dict(json.loads(header_text))["ce_id"] == found_id
        assert json.loads(text)["amount"] == payload(1, 1)["amount"]
    assert deeds.published_ids(database, deeds.PAYMENTS) == {
        event_id(1, "payment.authorised"),
        event_id(1, "payment.captured"),
    }


def test_without_a_lake_there_is_nothing_to_delete(tmp_path: Path) -> None:
    assert deeds.delete_lake_row(tmp_path) is None


def test_the_readme_tells_every_fault_and_the_line_that_finds_it() -> None:
    names = {spec.id: spec.name for spec in LINES}
    rows = [f"| `{fault.name}` | {fault.does} | {names[fault.line]} |" for fault in FAULTS.values()]
    assert "\n".join(rows) in README.read_text(encoding="utf-8")
