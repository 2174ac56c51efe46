"""The whole verification: opens the lake's tables once, and compares each layer with the one before it."""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hailbus import Catalogue

from analytics_spark.reading import arrow_dataset, load_table, load_tables
from analytics_spark.session import LakeLayout
from analytics_spark.topic_ids import read_topic_ids
from analytics_spark.verify import bronze, gold, silver
from analytics_spark.verify.bronze import Bronze, check_bronze
from analytics_spark.verify.records import Log
from analytics_spark.verify.report import GoldReport, LakeReport, LineReport, PartitionReport, SilverReport
from analytics_spark.verify.silver import SAMPLE_ROWS
from analytics_spark.verify.sink_notes import read_sink_notes
from analytics_spark.verify.state import read_state, write_state

__all__ = ["SAMPLE_ROWS", "verify_lake"]

_MEMORY_MB = 512
"""Memory that duckdb may use."""


def verify_lake(
    lake_dir: Path | str,
    log: Log | None,
    *,
    topics: Sequence[str] | None = None,
    full: bool = False,
    accepts_deleted: bool = False,
    seed: int | None = None,
    catalogue: Catalogue | None = None,
) -> LakeReport:
    """Compare bronze with the log, silver with bronze, and gold with a computation of its own.

    Partitions that agree are noted in the lake's `verified.json`, and the next run compares them from there.

    Args:
        lake_dir: The lake's folder.
        log: The broker; None leaves bronze unchecked, which is not ok.
        topics: Topics that must be in the lake if the broker has them, else all of `ride_events`. Topics that the lake
            has are always compared.
        full: Compare everything anew.
        accepts_deleted: Accept, and note for later reports, what the log deleted before it was ever compared.
        seed: Chooses the rows of silver that are derived again; else a random one, which the report names.
        catalogue: The event classes, else those of `ride_events`.

    Raises:
        LakeMissingError: There is no lake, or it has no bronze table yet.
        LakeError: A note of the sink or of an earlier verification is damaged.
    """
    import duckdb

    began = time.monotonic()
    if catalogue is None:
        from ride_events import CATALOGUE

        catalogue = CATALOGUE
    layout = LakeLayout(Path(lake_dir).expanduser().absolute())
    state = read_state(layout.verified)
    notes = read_sink_notes(layout.checkpoint("bronze"), read_topic_ids(layout.topic_ids))
    wanted = tuple(topics if topics is not None else (topic.name for topic in catalogue.topics))
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    # The log's ends before the tables: the lake may be written meanwhile, and must have all that the ends show.
    views = log.describe(sorted({*wanted, *_landed_topics(layout.root)})) if log is not None else {}
    connection = duckdb.connect(":memory:")
    spilled = tempfile.TemporaryDirectory(prefix="lake-verify-")
    try:
        connection.execute("SET TimeZone='UTC'")
        # Coordinates and ids of every row are joined and grouped: beyond this, duckdb uses the disk.
        connection.execute(f"SET memory_limit='{_MEMORY_MB}MB'")
        connection.execute("SET temp_directory=?", [spilled.name])
        connection.execute("SET preserve_insertion_order=false")
        datasets = {name: arrow_dataset(table) for name, table in load_tables(layout.root).items()}
        for name, dataset in datasets.items():
            connection.register("bronze" if name == "bronze.events" else name.replace(".", "__"), dataset)
        silver_line, silver_report = _silver(connection, datasets, catalogue, seed)
        gold_line, gold_report = _gold(connection, datasets)
        partitions: tuple[PartitionReport, ...] = ()
        allowances: tuple[str, ...] = ()
        if log is None:
            bronze_line = bronze.unchecked_line()
        else:
            check = Bronze(
                connection=connection,
                dataset=datasets["bronze.events"],
                log=log,
                notes=notes,
                state=state,
                full=full,
                accepts_deleted=accepts_deleted,
            )
            bronze_line, partitions, verified = check_bronze(check, views, wanted)
            allowances = tuple(check.allowances)
            try:
                write_state(layout.verified, verified)
            except OSError as error:
                allowances += (f"what was verified could not be noted ({error}): the next run compares it anew",)
        return LakeReport(
            lines=(bronze_line, silver_line, gold_line),
            partitions=partitions,
            silver=silver_report,
            gold=gold_report,
            tables={name: datasets[name].count_rows() for name in sorted(datasets)},
            allowances=allowances,
            mode="incremental" if state and not full else "full",
            seed=seed,
            seconds=time.monotonic() - began,
        )
    finally:
        connection.close()
        spilled.cleanup()


def _landed_topics(root: Path) -> set[str]:
    import pyarrow.compute as pc

    topics = arrow_dataset(load_table(root, "bronze.events")).scanner(columns=["topic"])
    return {str(name) for batch in topics.to_batches() for name in pc.unique(batch.column("topic")).to_pylist()}


def _of(names: Sequence[str], namespace: str) -> list[str]:
    return [name for name in names if name.startswith(f"{namespace}.")]


def _silver(
    connection: Any, datasets: dict[str, Any], catalogue: Catalogue, seed: int
) -> tuple[LineReport, SilverReport | None]:
    schemas = {name: datasets[name].schema for name in _of(sorted(datasets), "silver")}
    if silver.QUARANTINE not in schemas or len(schemas) == 1:
        return silver.unchecked_line(
            "the lake has no silver tables yet; let lake-sink catch up, and verify again"
        ), None
    return silver.check_silver(connection, schemas, catalogue, seed=seed)


def _gold(connection: Any, datasets: dict[str, Any]) -> tuple[LineReport, dict[str, GoldReport] | None]:
    tables = _of(sorted(datasets), "gold")
    missing = [name for name in gold.SOURCES if name not in datasets]
    if not tables or missing:
        reason = f"the lake has no {', '.join(missing) if missing else 'gold tables'} yet"
        return gold.unchecked_line(f"{reason}; let lake-sink catch up, and verify again"), None
    return gold.check_gold(connection, tables)
