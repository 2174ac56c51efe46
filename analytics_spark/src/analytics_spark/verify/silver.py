"""Silver against bronze: every row is answered for, and says what the event classes say of the bytes.

Counts and coordinates are compared for all rows. A seeded sample is derived again from bronze by the event classes, not
by Spark's transform, and compared column by column; the same for the quarantine, whose rows must be refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from types import SimpleNamespace
from typing import Any

from hailbus import Catalogue, ContractError, Event, event_info
from hailbus.codec import decode

from analytics_spark.schemas import column_name, table_of
from analytics_spark.verify.report import Finding, Findings, Kind, LineReport, SilverReport, place_text

__all__ = ["LINE", "SAMPLE_ROWS", "Refused", "check_silver", "derive", "expected_value", "unchecked_line"]

LINE = "silver = bronze"
_ACCOUNTS = ("bronze.events, decoded by the event classes", "silver, as Spark wrote it")
QUARANTINE = "silver.quarantine"
SAMPLE_ROWS = 10_000
"""Rows of bronze, and of the quarantine, that are derived again."""
_ROWS_AT_ONCE = 1_000
_PIECE = 20_000
"""Rows of bronze that are held in memory at once."""
_COORDINATES = 'topic, "partition", "offset"'
_LONG = 2**63


@dataclass(frozen=True, slots=True)
class Refused:
    """The event classes do not accept a record."""

    error: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Raw:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: datetime | None
    ingested_at: datetime | None


def derive(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    catalogue: Catalogue,
) -> dict[str, Any] | Refused:
    """Silver's columns of a record, as JSON values by column, or why it is refused."""
    record = SimpleNamespace(topic=topic, key=key, value=value, headers=list(headers))
    try:
        event, envelope = decode(record, catalogue)
    except ContractError as error:
        return Refused(type(error).__name__, str(error))
    except Exception as error:  # noqa: BLE001 whatever stops the decoding of one record is its reason
        return Refused(type(error).__name__, str(error))
    if (declared := event_info(event).topic.name) != topic:
        return Refused("WrongTopicError", f"the event belongs on {declared}")
    fields = event.model_dump(mode="json")
    if any(not -_LONG <= number < _LONG for number in _integers(fields)):
        return Refused("OutOfRangeError", "an integer has more than 64 bits")
    return {
        "ce_id": envelope.id,
        "ce_source": envelope.source,
        "ce_type": envelope.type,
        "ce_version": envelope.version,
        "ce_time": envelope.time,
        "ce_subject": envelope.subject,
        "correlation_id": envelope.correlation_id,
        "causation_id": envelope.causation_id,
        "traceparent": envelope.traceparent,
        **{column_name(column): fields[name] for name, column in _columns(type(event)).items()},
    }


@cache
def _columns(event: type[Event]) -> Mapping[str, str]:
    """Field → its column, before `column_name`."""
    return {name: info.serialization_alias or info.alias or name for name, info in event.model_fields.items()}


def _integers(value: object) -> Iterator[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _integers(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _integers(one)


def expected_value(kind: Any, value: Any) -> Any:
    """A JSON value as a column of this Arrow type gives it to Python."""
    import pyarrow as pa

    tests = pa.types
    if value is None:
        return None
    if tests.is_timestamp(kind):
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return moment.astimezone(UTC)
    if tests.is_struct(kind):
        return {part.name: expected_value(part.type, value.get(part.name)) for part in kind}
    if tests.is_list(kind) or tests.is_large_list(kind):
        return [expected_value(kind.value_type, one) for one in value]
    if tests.is_map(kind):
        return {name: expected_value(kind.item_type, one) for name, one in value.items()}
    if tests.is_floating(kind):
        return float(value)
    if tests.is_decimal(kind):
        return Decimal(str(value))
    if tests.is_date(kind):
        return date.fromisoformat(value)
    return value


def _is_same(kind: Any, expected: Any, found: Any) -> bool:
    """Whether a column holds what it should. JSON text is compared as JSON."""
    import pyarrow as pa

    if pa.types.is_map(kind) and isinstance(found, list):
        found = dict(found)
    if isinstance(expected, (dict, list, int, float)) and isinstance(found, str):
        try:
            return bool(json.loads(found) == expected)
        except ValueError:
            return False
    return bool(expected == found)


@dataclass(slots=True)
class _Silver:
    connection: Any
    schemas: Mapping[str, Any]
    catalogue: Catalogue
    findings: Findings = field(default_factory=Findings)

    @property
    def typed_tables(self) -> tuple[str, ...]:
        return tuple(name for name in self.schemas if name != QUARANTINE)

    def one(self, sql: str) -> int:
        return int(self.connection.execute(sql).fetchall()[0][0])

    def find(
        self,
        kind: Kind,
        message: str,
        place: tuple[str, int, int],
        *,
        table: str,
        event_id: str | None = None,
        column: str | None = None,
    ) -> None:
        topic, partition, offset = place
        name = f"{place_text(topic, partition)} offset {offset}" + (f" (id {event_id})" if event_id else "")
        self.findings.add(
            Finding(
                kind=kind,
                message=f"{table}: {name} {message}",
                topic=topic,
                partition=partition,
                offset=offset,
                id=event_id,
                table=table,
                column=column,
            )
        )

    def each(self, kind: Kind, sql: str, message: str) -> None:
        """A finding for each row of a query that gives coordinates, id and table."""
        found = self.connection.execute(sql)
        while rows := found.fetchmany(_ROWS_AT_ONCE):
            for topic, partition, offset, event_id, table in rows:
                self.find(kind, message, (topic, partition, offset), table=table, event_id=event_id)

    # -- all rows

    def prepare(self) -> None:
        every = " UNION ALL ".join(
            f"SELECT {_COORDINATES}, ce_source, ce_id, '{name}' AS table_name FROM {_alias(name)}"  # noqa: S608 our names
            for name in self.typed_tables
        )
        self.connection.execute(f"CREATE TEMP TABLE typed AS {every}")
        self.connection.execute(
            f"CREATE TEMP TABLE settled AS SELECT {_COORDINATES}, ce_id, table_name FROM typed UNION ALL "  # noqa: S608 our names
            f"SELECT {_COORDINATES}, NULL, '{QUARANTINE}' FROM {_alias(QUARANTINE)}"
        )
        self.connection.execute(
            f"CREATE TEMP TABLE left_over AS SELECT {_COORDINATES}, row_number() OVER () AS number FROM bronze "  # noqa: S608 the names are our own
            f"ANTI JOIN settled USING ({_COORDINATES})"
        )

    def check_coordinates(self) -> None:
        self.each(
            "doubled",
            f"SELECT {_COORDINATES}, max(ce_id), max(table_name) FROM settled GROUP BY {_COORDINATES} "  # noqa: S608 the names are our own
            f"HAVING count(*) > 1 ORDER BY {_COORDINATES}",
            "is in silver more than once",
        )
        self.each(
            "doubled",
            # A record that is there twice is found above.
            f'SELECT max(topic), max("partition"), max("offset"), ce_id, max(table_name) FROM typed '  # noqa: S608 the names are our own
            f"GROUP BY ce_source, ce_id HAVING count(DISTINCT ({_COORDINATES})) > 1 ORDER BY ce_id",
            "has an event id that another row of silver has, too",
        )
        self.each(
            "invented",
            f"SELECT {_COORDINATES}, ce_id, table_name FROM settled ANTI JOIN bronze USING ({_COORDINATES}) "  # noqa: S608 the names are our own
            f"ORDER BY {_COORDINATES}",
            "is not in bronze",
        )
        for name in self.typed_tables:
            topics = [topic.name for topic in self.catalogue.topics if table_of(topic.name) == name]
            listed = ", ".join(f"'{topic}'" for topic in topics) or "''"
            self.each(
                "misplaced",
                f"SELECT {_COORDINATES}, ce_id, table_name FROM typed "  # noqa: S608 our names
                f"WHERE table_name = '{name}' AND topic NOT IN ({listed}) ORDER BY {_COORDINATES}",
                "belongs in the table of its own topic",
            )

    def check_left_over(self) -> int:
        """Judge rows of bronze that are in no table of silver; returns how many repeat a typed event.

        Each must be a second record of an event that is typed.
        """
        import pyarrow as pa

        repeats = 0
        for rows in self.raw("left_over"):
            derived = [derive(row.topic, row.key, row.value, row.headers, self.catalogue) for row in rows]
            ids = [(one["ce_source"], one["ce_id"]) for one in derived if not isinstance(one, Refused)]
            self.connection.register(
                "asked",
                pa.table(
                    {
                        "ce_source": pa.array([source for source, _ in ids], pa.string()),
                        "ce_id": pa.array([event_id for _, event_id in ids], pa.string()),
                    }
                ),
            )
            typed = set(
                self.connection.execute(
                    "SELECT DISTINCT ce_source, ce_id FROM typed SEMI JOIN asked USING (ce_source, ce_id)"
                ).fetchall()
            )
            self.connection.unregister("asked")
            for row, one in zip(rows, derived, strict=True):
                place = (row.topic, row.partition, row.offset)
                if isinstance(one, Refused):
                    self.find("missing", f"is refused ({one.error}) and not in the quarantine", place, table=QUARANTINE)
                elif (one["ce_source"], one["ce_id"]) in typed:
                    repeats += 1
                else:
                    self.find(
                        "missing",
                        "is in bronze, and neither typed nor a repeated event: silver has not typed it yet, or lost it",
                        place,
                        table=table_of(row.topic),
                        event_id=one["ce_id"],
                    )
        return repeats

    # -- a sample

    def sample(self, name: str, source: str, *, seed: int) -> int:
        """Choose rows by the seed; the same seed chooses the same rows of the same lake."""
        self.connection.execute(
            f"CREATE TEMP TABLE {name} AS SELECT *, row_number() OVER () AS number FROM ("  # noqa: S608 our names
            f"SELECT DISTINCT {_COORDINATES} FROM {source} "
            f"ORDER BY hash(concat_ws('/', {seed}, {_COORDINATES})), {_COORDINATES} LIMIT {SAMPLE_ROWS})"
        )
        return self.one(f"SELECT count(*) FROM {name}")  # noqa: S608 our names

    def check_typed(self) -> None:
        """Compare every sampled row that is typed, column by column."""
        raw = {(row.topic, row.partition, row.offset): row for rows in self.raw("sampled") for row in rows}
        for name in self.typed_tables:
            schema = self.schemas[name]
            for found in self.rows_of(name, "sampled"):
                place = (found["topic"], found["partition"], found["offset"])
                if place not in raw:
                    continue  # not in bronze: found by the coordinates
                self.compare(name, schema, place, raw[place], found)

    def compare(self, name: str, schema: Any, place: tuple[str, int, int], row: _Raw, found: Mapping[str, Any]) -> None:
        expected = derive(row.topic, row.key, row.value, row.headers, self.catalogue)
        event_id = found.get("ce_id")
        if isinstance(expected, Refused):
            self.find(
                "wrongly_typed",
                f"is typed, and the event classes refuse it: {expected.error}: {expected.reason}",
                place,
                table=name,
                event_id=event_id,
            )
            return
        expected |= {"timestamp": row.timestamp, "ingested_at": row.ingested_at}
        lacking = sorted(column for column in expected if column not in schema.names and expected[column] is not None)
        for column in lacking:
            self.find("missing", f"has no column {column}", place, table=name, event_id=event_id, column=column)
        for one in schema:
            if one.name in {"topic", "partition", "offset", "silver_batch"}:
                continue
            wanted = expected_value(one.type, expected.get(one.name))
            if not _is_same(one.type, wanted, found[one.name]):
                self.find(
                    "altered",
                    f"has {one.name} = {_short(found[one.name])}, and bronze says {_short(wanted)}",
                    place,
                    table=name,
                    event_id=event_id or expected["ce_id"],
                    column=one.name,
                )

    def check_quarantine(self) -> None:
        """See that every sampled row of the quarantine is refused, for the reason given, and has bronze's bytes."""
        raw = {(row.topic, row.partition, row.offset): row for rows in self.raw("quarantine_sample") for row in rows}
        for found in self.rows_of(QUARANTINE, "quarantine_sample"):
            place = (found["topic"], found["partition"], found["offset"])
            row = raw.get(place)
            if row is None:
                continue
            refused = derive(row.topic, row.key, row.value, row.headers, self.catalogue)
            if not isinstance(refused, Refused):
                self.find(
                    "wrongly_quarantined",
                    "is quarantined, and the event classes accept it",
                    place,
                    table=QUARANTINE,
                    event_id=refused["ce_id"],
                )
                continue
            same = {
                "error": (refused.error, found.get("error")),
                "key": (row.key, found.get("key")),
                "value": (row.value, found.get("value")),
                "headers": (row.headers, _header_pairs(found.get("headers"))),
            }
            for column, (wanted, kept) in same.items():
                if column in self.schemas[QUARANTINE].names and wanted != kept:
                    self.find(
                        "altered",
                        f"has {column} = {_short(kept)}, and bronze says {_short(wanted)}",
                        place,
                        table=QUARANTINE,
                        column=column,
                    )

    # -- reading

    def raw(self, wanted: str) -> Iterator[list[_Raw]]:
        """The bronze rows at the numbered coordinates of a table, in pieces."""
        columns = ", ".join(
            f'"{name}"' if name in self.bronze_columns else f'NULL AS "{name}"'
            for name in ("topic", "partition", "offset", "key", "value", "headers", "timestamp", "ingested_at")
        )
        for first in range(1, self.one(f"SELECT count(*) FROM {wanted}") + 1, _PIECE):  # noqa: S608 our names
            rows = self.connection.execute(
                f"SELECT {columns} FROM bronze SEMI JOIN (SELECT {_COORDINATES} FROM {wanted} "  # noqa: S608 our names
                f"WHERE number >= {first} AND number < {first + _PIECE}) USING ({_COORDINATES})"
            ).fetchall()
            yield [_raw_row(row) for row in rows]

    @property
    def bronze_columns(self) -> frozenset[str]:
        """The columns that the lake's bronze has."""
        return frozenset(row[0] for row in self.connection.execute("DESCRIBE bronze").fetchall())

    def rows_of(self, name: str, wanted: str) -> Iterator[dict[str, Any]]:
        """The rows of a silver table at the coordinates of a table. Nothing else may be asked before they are read."""
        found = self.connection.execute(
            f"SELECT * FROM {_alias(name)} SEMI JOIN {wanted} USING ({_COORDINATES})"  # noqa: S608 our names
        )
        names = [one[0] for one in found.description]
        while rows := found.fetchmany(_ROWS_AT_ONCE):
            for row in rows:
                yield {column: _utc(value) for column, value in zip(names, row, strict=True)}


def check_silver(
    connection: Any, schemas: Mapping[str, Any], catalogue: Catalogue, *, seed: int
) -> tuple[LineReport, SilverReport]:
    """Compare silver with bronze.

    Args:
        connection: duckdb, with bronze registered as `bronze` and each silver table as its name with `__` for `.`.
        schemas: Silver table → its Arrow schema, the quarantine among them.
        catalogue: The event classes.
        seed: Chooses the rows that are derived again.
    """
    silver = _Silver(connection, schemas, catalogue)
    silver.prepare()
    silver.check_coordinates()
    repeats = silver.check_left_over()
    sampled = silver.sample("sampled", "bronze", seed=seed)
    refused = silver.sample("quarantine_sample", _alias(QUARANTINE), seed=seed)
    silver.check_typed()
    silver.check_quarantine()
    left_over = silver.one("SELECT count(*) FROM left_over")
    report = SilverReport(
        bronze=silver.one("SELECT count(*) FROM bronze"),
        typed=silver.one("SELECT count(*) FROM typed"),
        quarantined=silver.one(f"SELECT count(*) FROM {_alias(QUARANTINE)}"),  # noqa: S608 our names
        duplicates=repeats,
        unaccounted=left_over - repeats,
        sampled=sampled,
    )
    agreed = (
        f"{report.bronze:,} bronze rows = {report.typed:,} typed + {report.quarantined:,} quarantined + "
        f"{report.duplicates:,} repeated; {sampled:,} rows and {refused:,} of the quarantine derived again "
        f"(seed {seed}): equal in every column"
    )
    return LineReport.of(LINE, _ACCOUNTS, silver.findings, agreed=agreed), report


def unchecked_line(reason: str) -> LineReport:
    """The line of a lake that cannot be compared."""
    findings = Findings()
    findings.add(Finding(kind="unread", message=reason))
    return LineReport.of(LINE, _ACCOUNTS, findings, agreed="")


def _raw_row(row: Sequence[Any]) -> _Raw:
    topic, partition, offset, key, value, headers, timestamp, ingested_at = row
    return _Raw(topic, partition, offset, key, value, _header_pairs(headers), _utc(timestamp), _utc(ingested_at))


def _alias(name: str) -> str:
    return name.replace(".", "__")


def _header_pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one["key"], one["value"]) for one in headers or ())


def _utc(value: Any) -> Any:
    """Return times in UTC: duckdb gives times in the session's zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: _utc(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_utc(one) for one in value]
    return value


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, datetime) else value.isoformat()
    return text if len(text) <= 80 else f"{text[:79]}…"
