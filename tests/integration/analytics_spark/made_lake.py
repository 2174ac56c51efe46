"""A whole lake made without Spark, from the records of a real broker, and ways to damage it."""

import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from analytics_spark.broker_view import BrokerView
from analytics_spark.schemas import column_name, silver_specs
from analytics_spark.session import CATALOG, LakeLayout
from analytics_spark.tables import BRONZE, GOLD, QUARANTINE, TableSpec
from analytics_spark.verify import LakeReport, verify_lake
from hailbus import ContractError, event_info
from hailbus.codec import decode
from kafka import KafkaConsumer, TopicPartition
from pyiceberg.catalog.sql import SqlCatalog
from ride_events import CATALOGUE

from tests.integration.analytics_spark.lake_events import ORIGIN, START, TOPICS

Row = dict[str, Any]
INGESTED = datetime(2026, 1, 2, tzinfo=UTC)


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a column that is declared in Spark's DDL."""
    simple = {
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    if kind in simple:
        return simple[kind]
    if kind.startswith("array<"):
        return pa.list_(arrow_type(kind[6:-1]))
    assert kind.startswith("struct<"), kind
    members = [part.partition(":") for part in _members(kind[7:-1])]
    return pa.struct([(name.strip().strip("`"), arrow_type(inner.strip())) for name, _, inner in members])


def _members(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def schema_of(spec: TableSpec) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in spec.columns])


_SILVER = silver_specs(CATALOGUE)
SPECS: dict[str, TableSpec] = {spec.name: spec for spec in (BRONZE, QUARANTINE, *_SILVER.values(), *GOLD.values())}


@dataclass
class MadeLake:
    """The rows of every table, and the folder that they are written to."""

    root: Path
    bootstrap: str
    tables: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in SPECS})

    @property
    def layout(self) -> LakeLayout:
        return LakeLayout(self.root)

    @property
    def bronze(self) -> list[Row]:
        return self.tables["bronze.events"]

    def write(self, *names: str) -> None:
        """Write these tables, or all of them, whole."""
        self.layout.warehouse.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog(CATALOG, uri=self.layout.catalog_uri, warehouse=self.layout.warehouse.as_uri())
        try:
            for name in names or self.tables:
                rows = pa.Table.from_pylist(self.tables[name], schema=schema_of(SPECS[name]))
                catalog.create_namespace_if_not_exists(name.partition(".")[0])
                if catalog.table_exists(name):
                    catalog.drop_table(name)
                # Not by `append`: pyiceberg writes a null list as an empty one.
                path = self.layout.warehouse / f"{name}-{uuid4()}.parquet"
                pq.write_table(rows, path)
                with catalog.create_table_transaction(name, rows.schema) as creation:
                    creation.add_files([str(path)], check_duplicate_files=False)
        finally:
            catalog.close()

    def change(self, name: str, change: Callable[[list[Row]], object]) -> None:
        """Change the rows of one table, and write it."""
        change(self.tables[name])
        self.write(name)

    def view(self, *, timeout_s: float = 20.0) -> BrokerView:
        return BrokerView(self.bootstrap, timeout_s=timeout_s)

    def verify(self, log: Any = None, **options: Any) -> LakeReport:
        return verify_lake(self.root, log if log is not None else self.view(), **options)

    def land(self, topics: Sequence[str] = TOPICS) -> None:
        """Fill bronze, silver and the quarantine from the broker's log, as the sink does."""
        for records in self.tables.values():
            records.clear()
        self.land_bronze(topics)
        typed: set[tuple[str, str]] = set()
        for row in self.bronze:
            table, silver = silver_row(row)
            if table == QUARANTINE.name:
                self.tables[table].append(silver)
            elif (silver["ce_source"], silver["ce_id"]) not in typed:
                typed.add((silver["ce_source"], silver["ce_id"]))
                self.tables[table].append(silver)

    def land_bronze(self, topics: Sequence[str] = TOPICS) -> None:
        """Fill bronze alone."""
        self.bronze[:] = [bronze_row(record) for record in read_all(self.bootstrap, topics)]


@dataclass(frozen=True)
class LandedLake:
    """A lake and the data of the broker that it was landed from, in a folder that nobody changes: tests take copies."""

    folder: Path

    def keep(self, made: MadeLake) -> None:
        """Note the rows of the lake, which was written to `root`."""
        (self.folder / "tables").write_bytes(pickle.dumps(made.tables))

    @property
    def root(self) -> Path:
        return self.folder / "lake"

    @property
    def broker_data(self) -> Path:
        return self.folder / "broker"

    def copy_of_data(self, folder: Path) -> str:
        """Copy the broker's data to a new folder."""
        shutil.copytree(self.broker_data, folder)
        return str(folder)

    def copy_of_lake(self, root: Path, bootstrap: str) -> MadeLake:
        """Make a lake in a new folder, with the same tables.

        The files of Iceberg never change, and its catalog says where they are: a copy of the catalog is another lake.
        """
        made = MadeLake(root, bootstrap, pickle.loads((self.folder / "tables").read_bytes()))  # noqa: S301 our own
        root.mkdir()
        shutil.copyfile(LakeLayout(self.root).catalog_db, made.layout.catalog_db)
        return made


def read_all(bootstrap: str, topics: Sequence[str]) -> Iterator[Any]:
    """Every record of the topics, by a client that neither Spark nor `lake verify` uses."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed", group_id=None
    )
    try:
        places = [TopicPartition(topic, one) for topic in topics for one in consumer.partitions_for_topic(topic) or ()]
        ends = consumer.end_offsets(places)
        for place in sorted(places):
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            while consumer.position(place) < ends[place]:
                for record in consumer.poll(timeout_ms=500).get(place, ()):
                    if record.offset < ends[place]:
                        yield record
    finally:
        consumer.close()


def bronze_row(record: Any) -> Row:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": datetime.fromtimestamp(record.timestamp / 1000, UTC),
        "timestamp_type": "CreateTime",
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in record.headers],
        "ingest_batch": 0,
        "ingested_at": INGESTED,
    }


@dataclass
class _Record:
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def silver_row(row: Row) -> tuple[str, Row]:
    """Table and row that a bronze row becomes."""
    coordinates = {name: row[name] for name in ("topic", "partition", "offset", "timestamp", "ingested_at")}
    headers = [(one["key"], one["value"]) for one in row["headers"]]
    try:
        event, envelope = decode(_Record(row["topic"], row["key"], row["value"], headers), CATALOGUE)
        if event_info(event).topic.name != row["topic"]:
            return _refused(row, coordinates, "WrongTopicError", "it belongs on another topic")
    except ContractError as error:
        return _refused(row, coordinates, type(error).__name__, str(error)[:500])
    spec = _SILVER[row["topic"]]
    return spec.name, {
        **{column_name(name): value for name, value in event.model_dump(mode="python").items()},
        "ce_id": envelope.id,
        "ce_source": envelope.source,
        "ce_type": envelope.type,
        "ce_version": envelope.version,
        "ce_time": envelope.time,
        "ce_subject": envelope.subject,
        "correlation_id": envelope.correlation_id,
        "causation_id": envelope.causation_id,
        "traceparent": envelope.traceparent,
        "silver_batch": 0,
        **coordinates,
    }


def _refused(row: Row, coordinates: Row, error: str, reason: str) -> tuple[str, Row]:
    raw = {name: row[name] for name in ("key", "value", "headers")}
    return QUARANTINE.name, coordinates | raw | {"error": error, "reason": reason, "silver_batch": 0}


def gold_of_rides(count: int) -> Mapping[str, list[Row]]:
    """Gold of the first rides of `lake_events`, counted by hand: all of them fall into the same windows."""
    before, at, done = START - timedelta(minutes=15), START, START + timedelta(minutes=30)
    return {
        "gold.demand": [
            {
                "window_start": before,
                "cell": ORIGIN,
                "requested_count": 0,
                "rider_count": 0,
                "quoted_count": count,
                "unmatched_count": 0,
                "mean_multiplier": None,
            },
            {
                "window_start": at,
                "cell": ORIGIN,
                "requested_count": count,
                "rider_count": count,
                "quoted_count": 0,
                "unmatched_count": 0,
                "mean_multiplier": 1.2,
            },
        ],
        "gold.revenue": [
            {
                "window_start": done,
                "cell": ORIGIN,
                "currency": "USD",
                "completed_count": count,
                "fares_minor": 5200 * count,
                "distance_m": 25_000 * count,
                "duration_s": 2400 * count,
                "mean_multiplier": 1.2,
            }
        ],
        "gold.payments": [
            {
                "window_start": done,
                "currency": "USD",
                "authorised_minor": 0,
                "captured_minor": 5500 * count,
                "failed_minor": 0,
                "released_minor": 0,
                "refunded_minor": 0,
                "captured_count": 2 * count,
            }
        ],
        "gold.conversion": [
            {
                "window_start": before,
                "cell": ORIGIN,
                "offered_count": count,
                "accepted_count": count,
                "matched_count": count,
                "completed_count": count,
                "cancelled_count": 0,
                "unmatched_count": 0,
                "accepted_share": 1.0,
                "completed_share": 1.0,
            }
        ],
        "gold.recommendations": [
            {
                "window_start": before,
                "model": "counts",
                "served_count": count,
                "chosen_count": count,
                "chosen_top1_count": 0,
                "chosen_top3_count": count,
                "followed_count": count,
                "hit_top1_count": 0,
                "hit_top3_count": count,
                "hit_count": count,
                "chosen_share": 1.0,
                "hit_share": 1.0,
            }
        ],
    }
