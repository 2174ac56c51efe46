"""A recorded run of the demo, small enough for a test, and how it is put before the ledger's own reading code.

`recorded-run.tar.gz` holds what a finished run of real services left: the records of every topic, the databases, the
event logger's file, the riders' book, the groups' offsets. `python -m tests.integration.demo.recorded DATA_DIR` makes
it anew from the data directory of a run without Spark, such as

    demo --limit 24 --seed 5 --cells 6 --supply 0.8 --location-every 120 --speed max --no-spark --exit-when-done \
        --declines 0 --data-dir DATA_DIR
"""

from __future__ import annotations

import base64
import io
import json
import sqlite3
import sys
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus.record_sum import MODULUS, record_hash
from hailbus_broker.testing import ThreadedBroker
from hailbus_demo.ledger.accounts import Letter, PoisonEvent
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.ledger.kafka import LETTERS_READ, KafkaLog, letter_of
from hailbus_demo.ledger.log import REPLAYED_FROM, TOPIC_NAMES, LogReader, LogRecord
from hailbus_demo.replay.book import Book, positions_path
from hailbus_demo.services import CONSUMERS, DATABASES
from hailbus_demo.supervise.state import DataDir
from hailbus_demo.tray.poison import damaged

ARCHIVE = Path(__file__).parent / "recorded-run.tar.gz"
Place = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class RecordedRun:
    """What a run left, to be changed by a test and then audited.

    Attributes:
        folder: Holds the databases (`NAME.sqlite`), `audit.jsonl`, `book.jsonl` and its positions.
        records: Topic and partition → records, the first at offset 0; `None` is an offset that no reader sees.
        committed: Group → partition → offset.
        letters: Records of dead-letter topics.
        starts: Topic and partition → first offset, where it is not 0.
        restarted: Names of processes that the launcher restarted.
        poison: The damaged copies that a click wrote.
        lake: The report of `lake verify --json`, made of `records` as they were recorded.
    """

    folder: Path
    records: dict[Place, list[LogRecord | None]]
    committed: dict[str, dict[Place, int]]
    lake: dict[str, Any]
    letters: dict[str, list[LogRecord]]
    starts: dict[Place, int] = field(default_factory=dict)
    restarted: frozenset[str] = frozenset()
    poison: list[PoisonEvent] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------ the log

    def find(self, kind: str, /, *, nth: int = 0, **fields: Any) -> LogRecord:
        """Return the nth record of an event type whose data has these fields."""
        found = [
            record
            for place in sorted(self.records)
            for record in self.records[place]
            if record is not None and header(record, "ce_type") == kind
        ]
        matching = [
            record for record in found if all(data(record).get(name) == value for name, value in fields.items())
        ]
        return matching[nth]

    def all(self, topic: str) -> list[LogRecord]:
        """Return a topic's records."""
        return [r for place in sorted(self.records) if place[0] == topic for r in self.records[place] if r is not None]

    def put(self, record: LogRecord) -> None:
        """Replace the record at its offset."""
        self.records[record.topic, record.partition][record.offset] = record

    def append(self, record: LogRecord) -> LogRecord:
        """Add a record at its partition's end; groups read it."""
        records = self.records[record.topic, record.partition]
        placed = record._replace(offset=len(records))
        records.append(placed)
        for offsets in self.committed.values():
            if offsets.get((record.topic, record.partition)) == placed.offset:
                offsets[record.topic, record.partition] = placed.offset + 1
        return placed

    def damage(self, event: LogRecord) -> LogRecord:
        """Write a damaged copy of a ride.requested, as a click does; no group sets it aside."""
        copy = self.append(event._replace(value=damaged(event.value or b"")))
        kind, event_id = header(event, "ce_type"), header(event, "ce_id")
        value = (event.value or b"").decode()
        self.poison.append(PoisonEvent(copy.topic, copy.partition, copy.offset, kind, event_id, value))
        return copy

    def set_aside(self, record: LogRecord, *, by: str) -> LogRecord:
        """Add a group's dead letter of a record."""
        topic = f"{record.topic}.{by}-dlt"
        queue = self.letters.setdefault(topic, [])
        place = {"topic": record.topic, "partition": str(record.partition), "offset": str(record.offset)}
        origin = [(f"kafka_dlt-original-{name}", said.encode()) for name, said in place.items()]
        letter = record._replace(topic=topic, partition=0, offset=len(queue), headers=[*record.headers, *origin])
        queue.append(letter)
        return letter

    def replay(self, record: LogRecord, value: bytes) -> LogRecord:
        """Publish a dead letter of a record with another value, in a transaction: its marker takes an offset, too."""
        headers = [*record.headers, (REPLAYED_FROM, b"rides.v1.surge-dlt-0@0")]
        replayed = self.append(record._replace(value=value, headers=headers))
        place = (record.topic, record.partition)
        self.records[place].append(None)
        return replayed

    def drop_tail(self, place: Place, count: int = 1) -> LogRecord:
        """Lose the last records of a partition; return the first of them."""
        lost = self.records[place][-count]
        del self.records[place][-count:]
        assert lost is not None
        return lost

    def take_out(self, gone: LogRecord) -> None:
        """Take a record out as if it had never been published: the records behind it move up."""
        records = self.records[gone.topic, gone.partition]
        del records[gone.offset]
        for offset in range(gone.offset, len(records)):
            moved = records[offset]
            records[offset] = None if moved is None else moved._replace(offset=offset)

    def hide(self, first: LogRecord) -> None:
        """Take two neighbouring records out, as compaction does: their offsets stay empty."""
        records = self.records[first.topic, first.partition]
        records[first.offset] = records[first.offset + 1] = None

    # ------------------------------------------------------------------------------------------ the rest

    def sql(self, database: str, statement: str, *values: Any) -> int:
        """Change a database; return how many rows that were."""
        connection = sqlite3.connect(self.folder / f"{database}.sqlite")
        with connection:
            count = connection.execute(statement, values).rowcount
        connection.close()
        return count

    def ask(self, database: str, statement: str, *values: Any) -> list[Any]:
        """Return rows of a database."""
        connection = sqlite3.connect(self.folder / f"{database}.sqlite")
        rows = connection.execute(statement, values).fetchall()
        connection.close()
        return rows

    def outbox(self, record: LogRecord) -> None:
        """Have an outbox say what the record says: its service was wrong, and published what it wrote.

        That is payment's for a payment, else booking's.
        """
        assert record.key is not None
        assert record.value is not None
        database = "payment" if record.topic == "payments.v1" else "booking"
        headers = json.dumps([[name, (value or b"").decode()] for name, value in record.headers])
        changed = self.sql(
            database,
            "UPDATE hailbus_outbox SET payload = ?, headers = ?, published_partition = ?, published_offset = ? "
            "WHERE id = ?",
            *(record.value.decode(), headers, record.partition, record.offset, header(record, "ce_id")),
        )
        if changed:
            return
        self.sql(
            database,
            "INSERT INTO hailbus_outbox (id, aggregatetype, aggregateid, type, payload, headers, created_at, "
            "published_at, published_partition, published_offset) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?)",
            *(header(record, "ce_id"), record.topic, record.key.decode(), header(record, "ce_type")),
            *(record.value.decode(), headers, record.timestamp_ms * 1000, record.partition, record.offset),
        )

    def write_journal(self, lines: list[str]) -> None:
        """Replace the event logger's file."""
        (self.folder / "audit.jsonl").write_text("".join(line + "\n" for line in lines))

    def journal_lines(self) -> list[str]:
        """Return the event logger's lines as they are."""
        return (self.folder / "audit.jsonl").read_text().splitlines()

    def book_lines(self) -> list[dict[str, Any]]:
        """Return the riders' book."""
        return [json.loads(line) for line in (self.folder / "book.jsonl").read_text().splitlines()]

    def surge_rows(self, kind: str) -> dict[str, Any]:
        """Return the rows of a kind that surge keeps, by name."""
        connection = sqlite3.connect(self.folder / "surge.sqlite")
        rows = connection.execute(
            "SELECT name, content FROM surge_row WHERE kind = ? ORDER BY name", (kind,)
        ).fetchall()
        connection.close()
        return {name: json.loads(content) for name, content in rows}

    def put_surge_row(self, kind: str, name: str, content: Any) -> None:
        """Change a row of surge's."""
        self.sql(
            "surge", "UPDATE surge_row SET content = ? WHERE kind = ? AND name = ?", json.dumps(content), kind, name
        )

    def change_surge_state(self, **fields: Any) -> None:
        """Change fields of surge's state."""
        self.put_surge_row("city", "state", {**self.surge_rows("city")["state"], **fields})

    def write_book(self, lines: list[dict[str, Any]]) -> None:
        """Replace the riders' book."""
        (self.folder / "book.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    # ------------------------------------------------------------------------------------------ reading

    def sources(self, bootstrap: str) -> Sources:
        """Return where the ledger finds this run."""
        book = Book(self.folder / "book.jsonl")
        account = book.account()
        book.close()
        return Sources(
            bootstrap=bootstrap,
            databases=self.urls(),
            consumers=CONSUMERS,
            book=lambda: account,
            journal=self.folder / "audit.jsonl",
            lake_report=self.lake,
            restarted=lambda: self.restarted,
            poison=lambda: tuple(self.poison),
            ended=lambda: True,
        )

    def urls(self) -> dict[str, str]:
        """Return the databases."""
        return {name: f"sqlite+aiosqlite:///{self.folder / name}.sqlite" for name in DATABASES}

    def load(self, bootstrap: str) -> None:
        """Write the records and the groups' offsets to an empty cluster."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        partitions: dict[str, int] = {}
        for topic, partition in self.records:
            partitions[topic] = max(partition + 1, partitions.get(topic, 0))
        topics = [NewTopic(name, count, 1) for name, count in partitions.items()]
        topics += [NewTopic(name, 1, 1) for name in self.letters]
        for future in admin.create_topics(topics).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
        hidden = [place for place, records in self.records.items() if None in records]
        for place, records in self.records.items():
            if place not in hidden:
                for record in records:
                    assert record is not None
                    _produce(producer, record)
        for letters in self.letters.values():
            for record in letters:
                _produce(producer, record)
        assert producer.flush(30) == 0
        for place in hidden:
            self._load_with_holes(bootstrap, place)
        below = [TopicPartition(topic, partition, start) for (topic, partition), start in self.starts.items()]
        for deleted in admin.delete_records(below).values() if below else ():
            deleted.result(30)
        for group, offsets in self.committed.items():
            places = [TopicPartition(topic, part, offset) for (topic, part), offset in offsets.items()]
            for altered in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values():
                altered.result(30)

    def _load_with_holes(self, bootstrap: str, place: Place) -> None:
        """Write a partition with holes: a marker behind a replayed letter, else an aborted record and its marker."""
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"holes-{place[0]}-{place[1]}"}
        plain = Producer({"bootstrap.servers": bootstrap})
        transactional = Producer(settings)
        transactional.init_transactions(30)
        records = self.records[place]
        offset = 0
        while offset < len(records):
            record = records[offset]
            if record is not None and header(record, REPLAYED_FROM):
                transactional.begin_transaction()
                _produce(transactional, record)
                transactional.commit_transaction(30)
                offset += 2
                continue
            if record is not None:
                _produce(plain, record)
                assert plain.flush(30) == 0
                offset += 1
                continue
            transactional.begin_transaction()
            transactional.produce(place[0], b"hidden", b"hidden", partition=place[1])
            assert transactional.flush(30) == 0
            transactional.abort_transaction(30)
            offset += 2


class RecordedLog:
    """Stands for `KafkaLog` over a run that no broker has: what a client would read of it, with the same methods."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run

    def close(self) -> None:
        """Nothing is open."""

    def bounds(self, topics: Collection[str]) -> tuple[dict[Place, int], dict[Place, int]]:
        """Return the first offset and the end of each partition."""
        ends = {place: len(held) for place, held in sorted(self._run.records.items()) if place[0] in topics}
        return {place: self._run.starts.get(place, 0) for place in ends}, ends

    def committed(self, groups: Sequence[str]) -> dict[str, dict[Place, int]]:
        """Return group → partition → committed offset."""
        return {group: dict(self._run.committed.get(group, {})) for group in groups}

    def read(self, reader: LogReader, ends: Mapping[Place, int]) -> None:
        """Feed the reader every visible record that it does not have yet."""
        for place, end in ends.items():
            for record in self._run.records[place][reader.partitions[place].next_offset : end]:
                if record is not None:
                    reader.feed(record)
            reader.reach(place, end)

    def letters(self, suffix: str) -> tuple[dict[str, int], list[Letter]]:
        """Return dead-letter topic → records, and the first of all by topic and offset."""
        found = {topic: held for topic, held in sorted(self._run.letters.items()) if topic.endswith(suffix)}
        letters = [letter_of(letter) for held in found.values() for letter in held]
        return {topic: len(held) for topic, held in found.items()}, letters[:LETTERS_READ]


def _produce(producer: Producer, record: LogRecord) -> None:
    producer.produce(
        record.topic,
        record.value,
        record.key,
        partition=record.partition,
        timestamp=record.timestamp_ms,
        headers=list(record.headers),
    )


def header(record: LogRecord, name: str) -> str:
    """Return a header of a record."""
    return next((value.decode() for key, value in record.headers if key == name and value is not None), "")


def data(record: LogRecord) -> dict[str, Any]:
    """Return an event's data."""
    found: dict[str, Any] = json.loads(record.value or b"{}")
    return found


def with_data(record: LogRecord, **fields: Any) -> LogRecord:
    """Return a record whose event says something else."""
    return record._replace(value=json.dumps({**data(record), **fields}, separators=(",", ":")).encode())


def with_header(record: LogRecord, name: str, value: str) -> LogRecord:
    """Return a record with another header."""
    changed = [(key, value.encode() if key == name else old) for key, old in record.headers]
    return record._replace(headers=changed)


def lake_report_of(records: Mapping[Place, list[LogRecord | None]]) -> dict[str, Any]:
    """Return what `lake verify --json` prints for a lake that has these records."""
    partitions = []
    for (topic, partition), held in sorted(records.items()):
        if topic not in TOPIC_NAMES:
            continue
        seen = [record for record in held if record is not None]
        total = sum(record_hash(partition, r.offset, r.key, r.value, r.headers) for r in seen) % MODULUS
        partitions.append(
            {
                "topic": topic,
                "partition": partition,
                "log_start": 0,
                "end": len(held),
                "checked_from": 0,
                "log_records": len(seen),
                "lake_records": len(seen),
                "log_checksum": f"{total:016x}",
                "lake_checksum": f"{total:016x}",
            }
        )
    names = ("bronze = log", "silver = bronze", "gold = recomputed")
    lines = [{"name": name, "verdict": "agrees", "detail": "all rows agree", "findings": []} for name in names]
    kinds = ("authorised", "captured", "failed", "released", "refunded")
    money = dict.fromkeys((f"{kind}_minor" for kind in kinds), 0)
    for (topic, _), held in records.items():
        for record in held if topic == "payments.v1" else ():
            if record is not None:
                money[f"{header(record, 'ce_type').partition('.')[2]}_minor"] += data(record)["amount"]["amount_minor"]
    gold = {"gold.payments": {"rows": 1, "recomputed": 1, "money": money}}
    return {"ok": True, "problems": [], "lines": lines, "partitions": partitions, "gold": gold}


def unpack(folder: Path) -> RecordedRun:
    """Return the recorded run, with files of its own in a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for name in DATABASES:
        connection = sqlite3.connect(folder / f"{name}.sqlite")
        connection.executescript((folder / f"{name}.sql").read_text())
        connection.close()
        (folder / f"{name}.sql").unlink()
    found = json.loads((folder / "records.json").read_text())
    records: dict[Place, list[LogRecord | None]] = {}
    for topic, count in found["topics"].items():
        for partition in range(count):
            records[topic, partition] = []
    for topic, partition, timestamp_ms, key, value, headers in found["records"]:
        held = records[topic, partition]
        pairs = [(name, _bytes(text)) for name, text in headers]
        held.append(LogRecord(topic, partition, len(held), timestamp_ms, _bytes(key), _bytes(value), pairs))
    committed = {
        group: {(topic, partition): offset for topic, partition, offset in offsets}
        for group, offsets in found["committed"].items()
    }
    return RecordedRun(folder=folder, records=records, committed=committed, lake=lake_report_of(records), letters={})


def copy(run: RecordedRun, folder: Path) -> RecordedRun:
    """Return the same run with files of its own, to be changed."""
    for path in run.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return replace(
        run,
        folder=folder,
        records={place: list(records) for place, records in run.records.items()},
        committed={group: dict(offsets) for group, offsets in run.committed.items()},
        lake=json.loads(json.dumps(run.lake)),
        letters={},
        poison=[],
        starts={},
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


class _Recorder(LogReader):
    """Keeps the records as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[LogRecord] = []

    def feed(self, record: LogRecord) -> None:
        super().feed(record)
        self.kept.append(record)


def record_run(data_dir: Path) -> None:
    """Write the archive from the data directory of a finished run."""
    paths = DataDir(data_dir)
    with ThreadedBroker(data_dir=str(paths.broker)) as broker:
        log, recorder = KafkaLog(broker.bootstrap), _Recorder()
        starts, ends = log.bounds(TOPIC_NAMES)
        recorder.begin(starts)
        log.read(recorder, ends)
        committed = log.committed([group.group for group in CONSUMERS])
        counts = {topic: count for topic, count in log.topics().items() if topic in TOPIC_NAMES}
        log.close()
    kept = sorted(recorder.kept, key=lambda record: (record.topic, record.partition, record.offset))
    content = {
        "topics": counts,
        "committed": {
            group: [[topic, partition, offset] for (topic, partition), offset in sorted(offsets.items())]
            for group, offsets in committed.items()
        },
        "records": [
            [r.topic, r.partition, r.timestamp_ms, _text(r.key), _text(r.value), [[n, _text(v)] for n, v in r.headers]]
            for r in kept
        ],
    }
    files = {"records.json": json.dumps(content).encode()}
    for name in DATABASES:
        connection = sqlite3.connect(paths.databases / f"{name}.sqlite")
        files[f"{name}.sql"] = "\n".join(connection.iterdump()).encode()
        connection.close()
    files["audit.jsonl"] = paths.journal.read_bytes()
    files["book.jsonl"] = paths.book.read_bytes()
    files["book.jsonl.positions"] = positions_path(paths.book).read_bytes()
    with tarfile.open(ARCHIVE, "w:gz") as archive:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))


if __name__ == "__main__":
    record_run(Path(sys.argv[1]))
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")
