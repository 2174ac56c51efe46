"""Bronze against the log: every committed record is in bronze once, with the bytes that the log has.

Per record of the log that is compared, 17 bytes of memory are used: its offset, the hash of its bytes, and how often
bronze has it. A million records take 17 MB; an incremental run takes memory only for what is new.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hailbus.clock import utc_now
from hailbus.record_sum import MODULUS, record_hash

from analytics_spark.broker_view import Place, TopicView
from analytics_spark.verify.records import Log, difference, header_pairs, id_of, records_of_lake, records_of_log
from analytics_spark.verify.report import (
    AGREES,
    DISAGREES,
    NOT_CHECKED,
    Finding,
    Findings,
    Kind,
    LineReport,
    PartitionReport,
    place_text,
)
from analytics_spark.verify.sink_notes import SinkNotes
from analytics_spark.verify.state import Accepted, VerifiedPartition

__all__ = ["LINE", "Bronze", "check_bronze", "unchecked_line"]

LINE = "bronze = log"
_ACCOUNTS = ("the log, read by librdkafka with read_committed", "bronze.events, read by pyiceberg")
_SCANNED = ("topic", "partition", "offset", "key", "value", "headers")
_QUICK_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_ROWS_AT_ONCE = 5_000
_NEVER = 2**63 - 1


@dataclass(slots=True)
class _LogRecords:
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
class _Partition:
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
    log: _LogRecords = field(default_factory=_LogRecords)
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
    partitions: dict[Place, _Partition] = field(default_factory=dict)
    unread: list[PartitionReport] = field(default_factory=list)
    allowances: list[str] = field(default_factory=list)
    _details: list[tuple[Kind, Place, int]] = field(default_factory=list)

    # -- findings

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
        if len(self._details) + len(self.findings.kept) < _DETAILS_KEPT:
            self._details.append((kind, place, offset))
        else:
            self.findings.counts[kind] += 1

    def _mark(self, kind: str, place: Place) -> None:
        part = self.partitions.get(place)
        if part is not None:
            part.kinds.add(kind)

    # -- what is compared with what

    def plan(self, views: Mapping[str, TopicView], topics: Sequence[str]) -> None:
        """Decide from where each partition is compared; note topics that are not those that were landed."""
        stats: dict[Place, tuple[int, int]] = {
            (topic, partition): (rows, last)
            for topic, partition, rows, last in self.connection.execute(
                'SELECT topic, "partition", count(*), max("offset") FROM bronze GROUP BY 1, 2'
            ).fetchall()
        }
        for topic in sorted({*topics, *(place[0] for place in stats)}):
            of_topic = {place: one for place, one in stats.items() if place[0] == topic}
            view = views.get(topic)
            reason = self._why_not(topic, view, has_rows=bool(of_topic))
            if reason is not None:
                kind, message = reason
                self.findings.add(
                    Finding(kind=kind, message=f"{topic}: {message}", topic=topic, table="bronze.events"), count=1
                )
                verdict = NOT_CHECKED if kind == "unread" else DISAGREES
                self.unread += [
                    PartitionReport(topic=topic, partition=place[1], rows=rows, verdict=verdict, detail=message)
                    for place, (rows, _) in sorted(of_topic.items())
                ]
                continue
            if view is None:
                continue  # neither on the broker nor in the lake
            for place, (rows, _) in sorted(of_topic.items()):
                if place[1] not in view.ends:
                    self.find("replaced", place, f"{rows:,} rows are in the lake, and the broker has no such partition")
            for partition in sorted(view.ends):
                self._plan_partition((topic, partition), view, stats.get((topic, partition)))
        self._check_below()

    def _why_not(self, topic: str, view: TopicView | None, *, has_rows: bool) -> tuple[Kind, str] | None:
        """Why a topic cannot be compared record by record."""
        if view is None:
            if not has_rows:
                return None
            return ("replaced", "its rows are in the lake, and the broker has no such topic")
        if view.unanswered:
            return ("unread", view.unanswered)
        if view.topic_id is None:
            return None
        known = {self.notes.topic_ids.get(topic): "landed"}
        for place, verified in self.state.items():
            if place[0] == topic:
                known.setdefault(verified.topic_id, "verified")
        for topic_id, what in known.items():
            if topic_id is not None and topic_id != view.topic_id:
                return (
                    "replaced",
                    f"it was deleted and created again: id {topic_id} was {what}, the broker now has {view.topic_id}",
                )
        return None

    def _plan_partition(self, place: Place, view: TopicView, stats: tuple[int, int] | None) -> None:
        start, end = view.starts[place[1]], view.ends[place[1]]
        verified = self.state.get(place) if view.topic_id is not None else None
        report = PartitionReport(topic=place[0], partition=place[1], topic_id=view.topic_id, log_start=start, end=end)
        part = _Partition(place=place, report=report, view=view, last=stats[1] if stats else None, verified=verified)
        self.partitions[place] = part
        if verified is not None and end < verified.end:
            self.find(
                "retreated",
                place,
                f"the log ends at offset {end}, and {verified.end} was its end on {verified.verified_at}: "
                f"the broker lost {verified.end - end:,} offsets",
                offset=end,
            )

    def _check_below(self) -> None:
        """See that rows that were verified earlier are unchanged, and set from where to compare."""
        import duckdb

        marks = {place: part.verified for place, part in self.partitions.items() if part.verified is not None}
        quick = self.quick_sums({place: verified.end for place, verified in marks.items()})
        for place, part in self.partitions.items():
            verified, report = part.verified, part.report
            assert report.log_start is not None
            part.is_deep = self.full
            if verified is not None:
                rows, quick_sum = quick.get(place, (0, 0))
                if verified.quick_version != duckdb.__version__:
                    part.is_deep = True
                elif (rows, quick_sum) != (verified.rows, verified.quick_sum):
                    part.is_changed_below = True
                report.verified_before = 0 if part.is_changed_below else verified.end
            else:
                report.verified_before = self.notes.began.get(place, 0)
            compare_all = self.full or part.is_changed_below or verified is None
            report.checked_from = report.log_start if compare_all else max(report.verified_before, report.log_start)
            part.scan_from = 0 if part.is_deep or compare_all else min(report.verified_before, report.checked_from)
            if not part.is_changed_below and report.log_start > report.verified_before:
                self._deleted_before(part)
            if verified is None:
                if report.verified_before and report.log_start:
                    self.allowances.append(
                        f"{place_text(*place)}: the log began at offset {report.verified_before} when the lake began "
                        "(noted by lake-sink at its first start): earlier records are not expected"
                    )
                report.verified_before = 0
            for one in verified.accepted if verified is not None else ():
                self.allowances.append(_accepted_text(place, one))

    def _deleted_before(self, part: _Partition) -> None:
        """Judge offsets that the log deleted before they were ever compared."""
        report, place = part.report, part.place
        assert report.log_start is not None
        start, end = report.verified_before, report.log_start
        present = self.connection.execute(
            'SELECT count(DISTINCT "offset") FROM bronze WHERE topic = ? AND "partition" = ? '
            'AND "offset" >= ? AND "offset" < ?',
            [*place, start, end],
        ).fetchall()[0][0]
        if self.accepts_deleted:
            accepted = Accepted(start=start, end=end, rows=present, accepted_at=_now())
            part.accepted = (accepted,)
            self.allowances.append(_accepted_text(place, accepted))
            return
        advice = (
            f"verify more often than the topic's retention ({part.view.retention}), and see `lake verify --help` for "
            "--accept-deleted"
        )
        absent = end - start - present
        if absent:
            first = self._first_hole(place, start, end)
            self.find(
                "lost",
                place,
                f"{absent:,} offsets between {start} and {end - 1} are not in the lake, the first is {first}, and the "
                f"log begins at {end}: records that were deleted before they landed are lost to the lake; {advice}",
                count=absent,
                offset=first,
            )
        if present:
            self.find(
                "unverified",
                place,
                f"{present:,} rows between offsets {start} and {end - 1} were never compared, and the log begins at "
                f"{end}; {advice}",
                count=present,
                offset=start,
            )

    def _first_hole(self, place: Place, start: int, end: int) -> int:
        found = self.connection.execute(
            'WITH there AS (SELECT "offset" FROM bronze WHERE topic = $topic AND "partition" = $partition '
            'AND "offset" >= $start AND "offset" < $end) '
            'SELECT min(candidate) FROM (SELECT $start AS candidate UNION ALL SELECT "offset" + 1 FROM there) '
            'ANTI JOIN there ON candidate = there."offset"',
            {"topic": place[0], "partition": place[1], "start": start, "end": end},
        ).fetchall()
        return int(found[0][0])

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

    # -- reading both

    def read_log(self) -> None:
        """Read the log of every partition, from where it is compared to its end."""
        wanted = {
            place: (part.report.checked_from, part.report.end)
            for place, part in self.partitions.items()
            if part.report.end is not None
        }
        logs = {place: part.log for place, part in self.partitions.items()}

        def take(
            place: Place,
            offset: int,
            key: bytes | None,
            value: bytes | None,
            headers: Sequence[tuple[str, bytes | None]],
        ) -> None:
            log = logs[place]
            log.offsets.append(offset)
            log.hashes.append(record_hash(place[1], offset, key, value, headers))

        unread = self.log.read(wanted, take)
        for place, reason in sorted(unread.items()):
            self.find("unread", place, reason)
        for part in self.partitions.values():
            part.log.seen = bytearray(len(part.log.offsets))
            part.report.log_records = len(part.log.offsets)
            part.report.log_checksum = sum(part.log.hashes) % MODULUS
            assert part.report.end is not None
            part.report.hidden_offsets = max(0, part.report.end - part.report.checked_from - part.report.log_records)

    def scan_lake(self) -> None:
        """Hash bronze's rows and match each with its record of the log."""
        for place, offset, key, value, headers in self._rows():
            part = self.partitions.get(place)
            if part is None:
                continue
            report = part.report
            assert report.end is not None
            if offset < part.scan_from or offset >= report.end:
                continue
            found = record_hash(place[1], offset, key, value, headers)
            part.scanned_sum += found
            if part.verified is not None and offset < part.verified.end:
                part.below_sum += found
                part.below_rows += 1
            if offset < report.checked_from or "unread" in part.kinds:
                continue
            index = part.log.index(offset)
            if index < 0:
                part.absent.append(offset)
                continue
            report.lake_records += 1
            report.lake_checksum = (report.lake_checksum + found) % MODULUS
            if part.log.hashes[index] != found:
                self.find_record("altered", place, offset)
            if part.log.seen[index] == 1:
                self.find_record("doubled", place, offset)
            part.log.seen[index] = min(2, part.log.seen[index] + 1)

    def _rows(
        self,
    ) -> Iterator[tuple[Place, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
        import pyarrow.dataset as ds

        wanted = None
        if any(part.scan_from for part in self.partitions.values()):
            for (topic, partition), part in self.partitions.items():
                one = (ds.field("topic") == topic) & (ds.field("partition") == partition)
                if part.scan_from:
                    one &= ds.field("offset") >= part.scan_from
                wanted = one if wanted is None else wanted | one
        scanner = self.dataset.scanner(columns=list(_SCANNED), filter=wanted, batch_size=_ROWS_AT_ONCE)
        for batch in scanner.to_batches():
            columns = {name: batch.column(name) for name in _SCANNED}
            for topic, partition, offset, key, value, headers in zip(
                *(columns[name].to_pylist() for name in _SCANNED[:-1]), header_pairs(columns["headers"]), strict=True
            ):
                yield (topic, partition), offset, key, value, headers

    # -- the outcome

    def judge(self) -> None:
        """Turn what did not match into findings."""
        self._explain_absent()
        for place, part in self.partitions.items():
            if "unread" in part.kinds:
                continue
            landed = max((-1 if part.last is None else part.last) + 1, self.notes.landed.get(place, 0))
            behind = 0
            first_behind = 0
            for index, seen in enumerate(part.log.seen):
                if seen:
                    continue
                offset = part.log.offsets[index]
                if offset >= landed:
                    first_behind = first_behind if behind else offset
                    behind += 1
                else:
                    self.find_record("missing", place, offset)
            if behind:
                part.report.behind_records = behind
                self.find(
                    "behind",
                    place,
                    f"{behind:,} records from offset {first_behind} on are not in the lake: lake-sink has not landed "
                    "them; start it, or let it catch up, and verify again",
                    count=behind,
                    offset=first_behind,
                )
            if part.verified is not None:
                self._judge_below(part)
        self._name_records()
        self._judge_newer()

    def _judge_below(self, part: _Partition) -> None:
        verified = part.verified
        assert verified is not None
        is_same = (part.below_rows, part.below_sum % MODULUS) == (verified.rows, verified.checksum)
        if part.is_changed_below and not part.kinds:
            what = (
                "the timestamps of rows that were verified earlier are altered"
                if is_same
                else "rows that the log has deleted since are altered, missing or doubled"
            )
            self.find(
                "altered",
                part.place,
                f"{what}: offsets below {verified.end} are not what they were on {verified.verified_at} "
                f"({part.below_rows:,} rows, {verified.rows:,} then)",
            )
        elif part.is_deep and not is_same and not part.kinds:
            self.find(
                "altered",
                part.place,
                f"rows below offset {verified.end} are not those that were verified on {verified.verified_at}: "
                f"{part.below_rows:,} rows, {verified.rows:,} then",
            )

    def _explain_absent(self) -> None:
        """Judge rows that the log does not show: compaction removes a record once its key has a newer one."""
        import pyarrow as pa

        suspects = [(place, part) for place, part in self.partitions.items() if part.absent]
        if not suspects:
            return
        # Retention may have moved the log's start while it was read.
        newer = self.log.describe(sorted({place[0] for place, _ in suspects}))
        absent = pa.table(
            {
                "topic": pa.array([place[0] for place, part in suspects for _ in part.absent], pa.string()),
                "partition": pa.array([place[1] for place, part in suspects for _ in part.absent], pa.int32()),
                "offset": pa.array([offset for _, part in suspects for offset in part.absent], pa.int64()),
            }
        )
        self.connection.register("absent", absent)
        rows = self.connection.execute(
            'WITH newest AS (SELECT topic, "partition", key, max("offset") AS newest FROM bronze '
            "SEMI JOIN (SELECT DISTINCT topic FROM absent) USING (topic) WHERE key IS NOT NULL GROUP BY 1, 2, 3) "
            'SELECT topic, "partition", "offset", value IS NULL OR coalesce(newest > "offset", false) AS superseded '
            'FROM bronze SEMI JOIN absent USING (topic, "partition", "offset") '
            'LEFT JOIN newest USING (topic, "partition", key) ORDER BY 1, 2, 3'
        ).fetchall()
        self.connection.unregister("absent")
        compacted: dict[Place, int] = {}
        moved: dict[Place, list[int]] = {}
        for topic, partition, offset, superseded in rows:
            place = (topic, partition)
            view = newer.get(topic)
            if self.partitions[place].view.is_compacted and superseded:
                compacted[place] = compacted.get(place, 0) + 1
            elif view is not None and not view.unanswered and offset < view.starts.get(partition, 0):
                moved.setdefault(place, []).append(offset)
            else:
                self.find_record("invented", place, offset)
        for place, offsets in sorted(moved.items()):
            self.find(
                "unverified",
                place,
                f"the log deleted {len(offsets):,} records from offset {offsets[0]} on while they were compared: "
                "verify again",
                count=len(offsets),
                offset=offsets[0],
            )
        if compacted:
            self.allowances.append(
                f"{sum(compacted.values()):,} rows in {len(compacted)} partitions are no longer in the log: their "
                "topics are compacted, and each is a tombstone or has a newer record of its key in the lake"
            )

    def _judge_newer(self) -> None:
        """Judge rows at or beyond the end that the broker gave before bronze was opened."""
        beyond = [
            part for part in self.partitions.values() if part.last is not None and part.last >= (part.report.end or 0)
        ]
        if not beyond:
            return
        newer = self.log.describe(sorted({part.place[0] for part in beyond}))
        for part in beyond:
            topic, partition = part.place
            view = newer.get(topic)
            if view is None or view.unanswered or partition not in view.ends:
                self.find("unread", part.place, view.unanswered if view is not None else "the topic is gone")
            elif part.last is not None and part.last >= view.ends[partition]:
                self.find(
                    "invented",
                    part.place,
                    f"the lake has offset {part.last}, and the log ends at {view.ends[partition]}: the broker lost its "
                    "newest records, or is another one",
                    offset=part.last,
                )

    def _name_records(self) -> None:
        """Look up the id of each record that is listed, and which part of it differs."""
        wanted = sorted({(place, offset) for _, place, offset in self._details})
        in_lake = records_of_lake(self.connection, wanted)
        in_log = records_of_log(self.log, wanted)
        for kind, place, offset in self._details:
            log, lake = in_log.get((place, offset)), in_lake.get((place, offset))
            event_id = id_of(log) or id_of(lake)
            name = f"offset {offset}" + (f" (id {event_id})" if event_id else "")
            column = None
            if kind == "altered":
                column = difference(log, lake)
                message = f"{name} is altered: its {column or 'content'} differs from the log's"
            elif kind == "missing":
                message = f"{name} is in the log and not in bronze"
            elif kind == "doubled":
                message = f"{name} is in bronze more than once"
            else:
                message = f"{name} is in bronze and not in the log"
            self.findings.add(
                Finding(
                    kind=kind,
                    message=f"{place_text(*place)}: {message}",
                    topic=place[0],
                    partition=place[1],
                    offset=offset,
                    id=event_id,
                    table="bronze.events",
                    column=column,
                )
            )

    def settle(self) -> dict[Place, VerifiedPartition]:
        """Fill in the reports, and return what is verified now: partitions that agree advance to their end."""
        import duckdb

        ends = {place: part.report.end for place, part in self.partitions.items() if part.report.end is not None}
        quick = self.quick_sums(ends)
        verified = dict(self.state)
        now = _now()
        for place, part in self.partitions.items():
            report = part.report
            report.rows, quick_sum = quick.get(place, (0, 0))
            if part.kinds:
                report.verdict = NOT_CHECKED if part.kinds <= {"unread", "unverified"} else DISAGREES
                report.detail = ", ".join(sorted(part.kinds))
                continue
            assert report.verdict == AGREES
            assert report.end is not None
            before = part.verified
            checksum = part.scanned_sum
            if part.scan_from and before is not None:
                checksum += before.checksum
            verified[place] = VerifiedPartition(
                topic_id=report.topic_id,
                end=report.end,
                rows=report.rows,
                checksum=checksum % MODULUS,
                quick_sum=quick_sum,
                quick_version=duckdb.__version__,
                verified_at=now,
                accepted=(*(before.accepted if before is not None else ()), *part.accepted),
            )
        return verified


_DETAILS_KEPT = 20


def check_bronze(
    bronze: Bronze, views: Mapping[str, TopicView], topics: Sequence[str]
) -> tuple[LineReport, tuple[PartitionReport, ...], dict[Place, VerifiedPartition]]:
    """Compare bronze with the log.

    Args:
        bronze: What is compared. Opened after `views` were read, so that it has all that they show.
        views: What the broker says of the topics.
        topics: Topics that must be in the lake if the broker has them.

    Returns:
        The line, a report for each partition, and what is verified now.
    """
    bronze.plan(views, topics)
    bronze.read_log()
    bronze.scan_lake()
    bronze.judge()
    verified = bronze.settle()
    reports = sorted(
        [*(part.report for part in bronze.partitions.values()), *bronze.unread],
        key=lambda report: (report.topic, report.partition),
    )
    if not reports and not bronze.findings.counts:
        bronze.findings.add(
            Finding(kind="unread", message=f"the broker has none of the topics {', '.join(topics)}"), count=1
        )
    records = sum(report.log_records for report in reports)
    total = sum(report.rows for report in reports)
    agreed = f"{records:,} records in {len(reports)} partitions: counts and checksums are equal"
    if records != total:
        agreed += f"; {total - records:,} rows were compared earlier or accepted, and are unchanged"
    return LineReport.of(LINE, _ACCOUNTS, bronze.findings, agreed=agreed), tuple(reports), verified


def unchecked_line() -> LineReport:
    """The line of a run without a broker."""
    findings = Findings()
    findings.add(Finding(kind="unread", message="no broker was given; name it with --bootstrap HOST:PORT"))
    return LineReport.of(LINE, _ACCOUNTS, findings, agreed="")


def _accepted_text(place: Place, one: Accepted) -> str:
    return (
        f"{place_text(*place)}: offsets {one.start} to {one.end - 1} ({one.rows:,} rows) were deleted by the broker "
        f"before they were compared; accepted on {one.accepted_at}"
    )


def _now() -> str:
    return utc_now().isoformat(timespec="seconds")
