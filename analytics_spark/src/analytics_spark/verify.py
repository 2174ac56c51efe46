"""The proof that the lake is complete: every offset of the broker is in bronze once, and every bronze row answered for.

Reads the lake without Spark, so that the witness is not the accused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analytics_spark.reading import arrow_dataset, load_table, table_names

__all__ = ["Gap", "LakeReport", "PartitionReport", "SilverReport", "verify_lake"]

VisibleRecords = Callable[[str, int, int, int], int]
"""`(topic, partition, start, end) -> records` that a read_committed consumer sees on the broker in these offsets."""
_GAPS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `start` to `end`, exclusive, that bronze does not have. `hidden` says why that is right."""

    start: int
    end: int
    hidden: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition. `start` and `end` are the broker's, end exclusive; `end` is None when the broker was not asked.

    `rows == distinct == (end - start) - hidden_offsets` when `is_ok`.
    """

    topic: str
    partition: int
    start: int
    end: int | None
    rows: int
    distinct: int
    first: int | None
    last: int | None
    hidden_offsets: int
    missing_offsets: int
    duplicates: int
    gaps: tuple[Gap, ...]
    problem: str

    @property
    def is_ok(self) -> bool:
        """Whether bronze has exactly what the broker has."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SilverReport:
    """Where bronze rows went: `bronze = typed + quarantined + duplicates + unaccounted`; unaccounted must be 0."""

    bronze: int
    typed: int
    quarantined: int
    duplicates: int
    unaccounted: int
    repeated_ids: int
    problem: str

    @property
    def is_ok(self) -> bool:
        """Whether every bronze row is answered for, and no event id is twice in silver."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport:
    """What was compared, and the verdict."""

    partitions: tuple[PartitionReport, ...]
    silver: SilverReport | None
    tables: dict[str, int]
    allowances: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each thing that disagrees."""
        found = [f"{part.topic}-{part.partition}: {part.problem}" for part in self.partitions if part.problem]
        if self.silver is not None and self.silver.problem:
            found.append(f"silver: {self.silver.problem}")
        return tuple(found)

    @property
    def ok(self) -> bool:
        """Whether nothing disagrees."""
        return not self.problems

    @property
    def rows(self) -> int:
        """Rows of bronze in the partitions compared."""
        return sum(part.rows for part in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "rows": self.rows,
            "tables": self.tables,
            "allowances": list(self.allowances),
            "partitions": [asdict(part) | {"ok": part.is_ok} for part in self.partitions],
            "silver": asdict(self.silver) | {"ok": self.silver.is_ok} if self.silver else None,
        }


def verify_lake(
    lake_dir: Path | str,
    end_offsets: Mapping[tuple[str, int], int] | None,
    *,
    start_offsets: Mapping[tuple[str, int], int] | None = None,
    visible_records: VisibleRecords | None = None,
    compacted: Sequence[str] | None = None,
) -> LakeReport:
    """Compare the lake with the broker's ends.

    Args:
        lake_dir: The lake's folder.
        end_offsets: (topic, partition) → end of the partition, exclusive, as a read_committed consumer sees it: every
            partition
            that must be in the lake. None: the lake is only compared with itself.
        start_offsets: (topic, partition) → first offset; 0 where not given. The broker may have deleted old records
            that the lake
            still has: rows below the start are fine, and counted from the lake's own first offset.
        visible_records: Asks the broker about a gap: transaction markers, aborted and compacted records take offsets
            and are never
            seen. Without it a gap is only excused on a compacted topic.
        compacted: Topics whose records the broker may compact away, else those that `ride_events` declares so.

    Raises:
        LakeMissingError: There is no lake, or it has no bronze table yet.
    """
    folder = Path(lake_dir)
    if compacted is None:
        from ride_events import TOPICS

        compacted = [topic.name for topic in TOPICS if "compact" in topic.cleanup_policy]
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.register("bronze", arrow_dataset(load_table(folder, "bronze.events")))
    found = {
        (topic, partition): (rows, distinct, first, last)
        for topic, partition, rows, distinct, first, last in connection.execute(
            'SELECT topic, "partition", count(*), count(DISTINCT "offset"), min("offset"), max("offset") '
            "FROM bronze GROUP BY 1, 2"
        ).fetchall()
    }
    holes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, partition, start, end in connection.execute(
        'SELECT topic, "partition", "offset" + 1, following FROM (SELECT topic, "partition", "offset", '
        'lead("offset") OVER (PARTITION BY topic, "partition" ORDER BY "offset") AS following FROM bronze) '
        'WHERE following > "offset" + 1 ORDER BY 1, 2, 3'
    ).fetchall():
        holes.setdefault((topic, partition), []).append((start, end))
    wanted = sorted(found) if end_offsets is None else sorted((topic, part) for topic, part in end_offsets)
    starts = start_offsets or {}
    partitions = tuple(
        _partition_report(
            place,
            found.get(place),
            holes.get(place, []),
            start=starts.get(place, 0),
            end=None if end_offsets is None else end_offsets[place],
            visible_records=visible_records,
            is_compacted=place[0] in compacted,
        )
        for place in wanted
    )
    names = table_names(folder)
    silver = _silver_report(connection, folder, names)
    connection.close()
    tables = {name: load_table(folder, name).scan().count() for name in names}
    return LakeReport(
        partitions=partitions,
        silver=silver,
        tables=tables,
        allowances=(
            (
                "offsets without a visible record (transaction markers, aborted or compacted records) are excused "
                "where the broker, asked by a read_committed consumer, shows none there"
                if visible_records is not None
                else f"gaps are excused on compacted topics only: {', '.join(sorted(compacted)) or 'none'}"
            ),
        ),
    )


def _partition_report(
    place: tuple[str, int],
    found: tuple[int, int, int, int] | None,
    holes: list[tuple[int, int]],
    *,
    start: int,
    end: int | None,
    visible_records: VisibleRecords | None,
    is_compacted: bool,
) -> PartitionReport:
    topic, partition = place
    rows, distinct, first, last = found if found is not None else (0, 0, None, None)
    # What the broker deleted since (retention) the lake may keep: it is compared from where either begins.
    begin = start if first is None else min(first, start)
    holes = list(holes)
    if first is not None and first > start:
        holes.insert(0, (start, first))
    landed = begin if last is None else last + 1
    if end is not None and landed < end:
        holes.append((landed, end))
    gaps = []
    for hole_start, hole_end in holes:
        hidden = ""
        if hole_end <= start:
            # Below the broker's first offset nobody can tell any more; the lake saw a gap there when it was still
            # there.
            hidden = "deleted on the broker" if visible_records is not None or is_compacted else ""
        elif visible_records is not None:
            hidden = "no visible record" if visible_records(topic, partition, hole_start, hole_end) == 0 else ""
        elif is_compacted:
            hidden = "compacted topic"
        gaps.append(Gap(hole_start, hole_end, hidden))
    missing = sum(gap.end - gap.start for gap in gaps if not gap.hidden)
    hidden_offsets = sum(gap.end - gap.start for gap in gaps if gap.hidden)
    duplicates = rows - distinct
    problems = []
    if duplicates:
        problems.append(f"{duplicates} rows repeat an offset")
    if missing:
        where = next(gap for gap in gaps if not gap.hidden)
        problems.append(f"{missing} offsets are missing, the first {where.start} to {where.end - 1}")
    if end is not None and last is not None and last >= end:
        problems.append(f"the lake has offset {last}, the broker ends at {end}: it is another or an emptied broker")
    return PartitionReport(
        topic=topic,
        partition=partition,
        start=begin,
        end=end,
        rows=rows,
        distinct=distinct,
        first=first,
        last=last,
        hidden_offsets=hidden_offsets,
        missing_offsets=missing,
        duplicates=duplicates,
        gaps=tuple(gaps[:_GAPS_KEPT]),
        problem="; ".join(problems),
    )


def _silver_report(connection: Any, folder: Path, names: tuple[str, ...]) -> SilverReport | None:
    typed = [name for name in names if name.startswith("silver.") and name != "silver.quarantine"]
    if not typed or "silver.quarantine" not in names:
        return None
    for name in (*typed, "silver.quarantine"):
        connection.register(name.replace(".", "__"), arrow_dataset(load_table(folder, name)))
    every = " UNION ALL ".join(
        f'SELECT topic, "partition", "offset", ce_source, ce_id FROM {name.replace(".", "__")}'  # noqa: S608 our names
        for name in typed
    )
    # Coordinates first, they are small; only what is in neither table is looked at by its headers.
    connection.execute(f"CREATE TEMP TABLE typed AS {every}")
    one = connection.execute
    bronze = one("SELECT count(*) FROM bronze").fetchone()[0]
    typed_rows = one("SELECT count(*) FROM typed").fetchone()[0]
    quarantined = one("SELECT count(*) FROM silver__quarantine").fetchone()[0]
    repeated = one(
        "SELECT count(*) FROM (SELECT ce_source, ce_id FROM typed GROUP BY 1, 2 HAVING count(*) > 1)"
    ).fetchone()[0]
    one(
        'CREATE TEMP TABLE settled AS SELECT topic, "partition", "offset" FROM typed UNION ALL '
        'SELECT topic, "partition", "offset" FROM silver__quarantine'
    )
    twice = one(
        'SELECT count(*) FROM (SELECT 1 FROM settled GROUP BY topic, "partition", "offset" HAVING count(*) > 1)'
    ).fetchone()[0]
    one(
        'CREATE TEMP TABLE left_over AS SELECT topic, "partition", "offset" FROM bronze '
        'ANTI JOIN settled USING (topic, "partition", "offset")'
    )
    left_over = one("SELECT count(*) FROM left_over").fetchone()[0]
    duplicates = 0
    if left_over:
        duplicates = one(
            "SELECT count(*) FROM (SELECT "
            "list_filter(headers, lambda h: h.key = 'ce_source')[1].value::VARCHAR AS ce_source, "
            "list_filter(headers, lambda h: h.key = 'ce_id')[1].value::VARCHAR AS ce_id "
            'FROM bronze SEMI JOIN left_over USING (topic, "partition", "offset")) '
            "SEMI JOIN typed USING (ce_source, ce_id)"
        ).fetchone()[0]
    unaccounted = left_over - duplicates
    problems = []
    if unaccounted:
        problems.append(f"{unaccounted} bronze rows are neither typed, quarantined nor a duplicate of a typed event")
    if repeated:
        problems.append(f"{repeated} event ids are in silver more than once")
    if twice:
        problems.append(f"{twice} records are in silver more than once")
    return SilverReport(
        bronze=bronze,
        typed=typed_rows,
        quarantined=quarantined,
        duplicates=duplicates,
        unaccounted=unaccounted,
        repeated_ids=repeated,
        problem="; ".join(problems),
    )
