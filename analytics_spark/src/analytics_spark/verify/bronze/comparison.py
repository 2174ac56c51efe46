"""One comparison of bronze with the log: its state per partition, and its findings.

Per record of the log that is compared, 17 bytes of memory are used: its offset, the hash of its bytes, and how often
bronze has it. A million records take 17 MB; an incremental run takes memory only for what is new.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hailbus.clock import utc_now
from hailbus.record_sum import MODULUS

from analytics_spark.broker_view import Place, TopicView
from analytics_spark.verify.records import Log
from analytics_spark.verify.report import Finding, Findings, Kind, PartitionReport, place_text
from analytics_spark.verify.sink_notes import SinkNotes
from analytics_spark.verify.state import Accepted, VerifiedPartition

_QUICK_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_DETAILS_KEPT = 20


@dataclass(slots=True)
class LogRecords:
    """The records of one partition of the log, in offset order."""

    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    seen: bytearray = field(default_factory=bytearray)

    def index(self, offset: int) -> int:
        """Where an offset stands, -1 if the log has no visible record there."""
        offsets = self.offsets
        guess = offset - offsets[0] if offsets else -1
        if 0 <= guess < len(offsets) and offsets[guess] == offset:  # no hidden offset so far
            return guess
        found = bisect_left(offsets, offset)
        return found if found < len(offsets) and offsets[found] == offset else -1


@dataclass(slots=True, kw_only=True)
class PartitionComparison:
    """One partition while it is compared."""

    place: Place
    report: PartitionReport
    view: TopicView
    last: int | None
    """The lake's newest offset."""
    verified: VerifiedPartition | None
    scan_from: int = 0
    is_changed_below: bool = False
    """Whether rows that were verified earlier are not what they were."""
    is_deep: bool = False
    """Whether rows that were verified earlier are hashed again."""
    log: LogRecords = field(default_factory=LogRecords)
    below_sum: int = 0
    below_rows: int = 0
    scanned_sum: int = 0
    absent: "array[int]" = field(default_factory=lambda: array("q"))
    """Offsets of bronze that the log does not show."""
    accepted: tuple[Accepted, ...] = ()
    kinds: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Bronze:
    """What a check of bronze needs, and what it found.

    Attributes:
        connection: duckdb, with bronze registered as `bronze`.
        dataset: The same rows for a scan.
        log: The broker.
        notes: What the sink wrote down.
        state: What was verified so far.
        full: Whether to compare everything anew.
        accepts_deleted: Whether to accept what the log deleted before it was compared.
    """

    connection: Any
    dataset: Any
    log: Log
    notes: SinkNotes
    state: Mapping[Place, VerifiedPartition]
    full: bool = False
    accepts_deleted: bool = False
    findings: Findings = field(default_factory=Findings)
    partitions: dict[Place, PartitionComparison] = field(default_factory=dict)
    unread: list[PartitionReport] = field(default_factory=list)
    allowances: list[str] = field(default_factory=list)
    details: list[tuple[Kind, Place, int]] = field(default_factory=list)

    def find(self, kind: Kind, place: Place, message: str, *, count: int = 1, offset: int | None = None) -> None:
        """Note that something is wrong with a partition."""
        self._mark(kind, place)
        text = f"{place_text(*place)}: {message}"
        self.findings.add(
            Finding(kind=kind, message=text, topic=place[0], partition=place[1], offset=offset, table="bronze.events"),
            count=count,
        )

    def find_record(self, kind: Kind, place: Place, offset: int) -> None:
        """Note that something is wrong with a record; its id and bytes are looked up later, for those that are kept."""
        self._mark(kind, place)
        if len(self.details) + len(self.findings.kept) < _DETAILS_KEPT:
            self.details.append((kind, place, offset))
        else:
            self.findings.counts[kind] += 1

    def _mark(self, kind: str, place: Place) -> None:
        part = self.partitions.get(place)
        if part is not None:
            part.kinds.add(kind)

    def quick_sums(self, ends: Mapping[Place, int]) -> dict[Place, tuple[int, int]]:
        """Rows below each end, and the sum of duckdb's hash over them: all columns that the broker gave."""
        if not ends:
            return {}
        import pyarrow as pa

        places = list(ends)
        marks = pa.table(
            {
                "topic": pa.array([place[0] for place in places], pa.string()),
                "partition": pa.array([place[1] for place in places], pa.int32()),
                "end": pa.array([ends[place] for place in places], pa.int64()),
            }
        )
        self.connection.register("marks", marks)
        columns = ", ".join(f'"{name}"' for name in _QUICK_COLUMNS if name in self.dataset.schema.names)
        found = self.connection.execute(
            f'SELECT topic, "partition", count(*), sum(hash({columns})) % {MODULUS} '  # noqa: S608 our own names
            'FROM bronze JOIN marks USING (topic, "partition") WHERE "offset" < "end" GROUP BY 1, 2'
        ).fetchall()
        self.connection.unregister("marks")
        return {(topic, partition): (rows, int(total)) for topic, partition, rows, total in found}


def accepted_text(place: Place, one: Accepted) -> str:
    """Return the sentence about a range that the log deleted before it was compared, and that was accepted."""
    return (
        f"{place_text(*place)}: offsets {one.start} to {one.end - 1} ({one.rows:,} rows) were deleted by the broker "
        f"before they were compared; accepted on {one.accepted_at}"
    )


def now_text() -> str:
    """Return the time of day in the form that the notes keep."""
    return utc_now().isoformat(timespec="seconds")
