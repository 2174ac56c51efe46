"""Turns what did not match into findings, and names the records concerned."""

from hailbus.record_sum import MODULUS

from analytics_spark.broker_view import Place
from analytics_spark.verify.bronze.comparison import Bronze, PartitionComparison
from analytics_spark.verify.records import difference, id_of, records_of_lake, records_of_log
from analytics_spark.verify.report import Finding, place_text


def judge(bronze: Bronze) -> None:
    """Turn what did not match into findings."""
    _explain_absent(bronze)
    for place, part in bronze.partitions.items():
        if "unread" in part.kinds:
            continue
        landed = max((-1 if part.last is None else part.last) + 1, bronze.notes.landed.get(place, 0))
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
                bronze.find_record("missing", place, offset)
        if behind:
            part.report.behind_records = behind
            bronze.find(
                "behind",
                place,
                f"{behind:,} records from offset {first_behind} on are not in the lake: lake-sink has not landed "
                "them; start it, or let it catch up, and verify again",
                count=behind,
                offset=first_behind,
            )
        if part.verified is not None:
            _judge_below(bronze, part)
    _name_records(bronze)
    _judge_newer(bronze)


def _judge_below(bronze: Bronze, part: PartitionComparison) -> None:
    verified = part.verified
    assert verified is not None
    is_same = (part.below_rows, part.below_sum % MODULUS) == (verified.rows, verified.checksum)
    if part.is_changed_below and not part.kinds:
        what = (
            "the timestamps of rows that were verified earlier are altered"
            if is_same
            else "rows that the log has deleted since are altered, missing or doubled"
        )
        bronze.find(
            "altered",
            part.place,
            f"{what}: offsets below {verified.end} are not what they were on {verified.verified_at} "
            f"({part.below_rows:,} rows, {verified.rows:,} then)",
        )
    elif part.is_deep and not is_same and not part.kinds:
        bronze.find(
            "altered",
            part.place,
            f"rows below offset {verified.end} are not those that were verified on {verified.verified_at}: "
            f"{part.below_rows:,} rows, {verified.rows:,} then",
        )


def _explain_absent(bronze: Bronze) -> None:
    """Judge rows that the log does not show: compaction removes a record once its key has a newer one."""
    import pyarrow as pa

    suspects = [(place, part) for place, part in bronze.partitions.items() if part.absent]
    if not suspects:
        return
    # Retention may have moved the log's start while it was read.
    newer = bronze.log.describe(sorted({place[0] for place, _ in suspects}))
    absent = pa.table(
        {
            "topic": pa.array([place[0] for place, part in suspects for _ in part.absent], pa.string()),
            "partition": pa.array([place[1] for place, part in suspects for _ in part.absent], pa.int32()),
            "offset": pa.array([offset for _, part in suspects for offset in part.absent], pa.int64()),
        }
    )
    bronze.connection.register("absent", absent)
    rows = bronze.connection.execute(
        'WITH newest AS (SELECT topic, "partition", key, max("offset") AS newest FROM bronze '
        "SEMI JOIN (SELECT DISTINCT topic FROM absent) USING (topic) WHERE key IS NOT NULL GROUP BY 1, 2, 3) "
        'SELECT topic, "partition", "offset", value IS NULL OR coalesce(newest > "offset", false) AS superseded '
        'FROM bronze SEMI JOIN absent USING (topic, "partition", "offset") '
        'LEFT JOIN newest USING (topic, "partition", key) ORDER BY 1, 2, 3'
    ).fetchall()
    bronze.connection.unregister("absent")
    compacted: dict[Place, int] = {}
    moved: dict[Place, list[int]] = {}
    for topic, partition, offset, superseded in rows:
        place = (topic, partition)
        view = newer.get(topic)
        if bronze.partitions[place].view.is_compacted and superseded:
            compacted[place] = compacted.get(place, 0) + 1
        elif view is not None and not view.unanswered and offset < view.starts.get(partition, 0):
            moved.setdefault(place, []).append(offset)
        else:
            bronze.find_record("invented", place, offset)
    for place, offsets in sorted(moved.items()):
        bronze.find(
            "unverified",
            place,
            f"the log deleted {len(offsets):,} records from offset {offsets[0]} on while they were compared: "
            "verify again",
            count=len(offsets),
            offset=offsets[0],
        )
    if compacted:
        bronze.allowances.append(
            f"{sum(compacted.values()):,} rows in {len(compacted)} partitions are no longer in the log: their "
            "topics are compacted, and each is a tombstone or has a newer record of its key in the lake"
        )


def _judge_newer(bronze: Bronze) -> None:
    """Judge rows at or beyond the end that the broker gave before bronze was opened."""
    beyond = [
        part for part in bronze.partitions.values() if part.last is not None and part.last >= (part.report.end or 0)
    ]
    if not beyond:
        return
    newer = bronze.log.describe(sorted({part.place[0] for part in beyond}))
    for part in beyond:
        topic, partition = part.place
        view = newer.get(topic)
        if view is None or view.unanswered or partition not in view.ends:
            bronze.find("unread", part.place, view.unanswered if view is not None else "the topic is gone")
        elif part.last is not None and part.last >= view.ends[partition]:
            bronze.find(
                "invented",
                part.place,
                f"the lake has offset {part.last}, and the log ends at {view.ends[partition]}: the broker lost its "
                "newest records, or is another one",
                offset=part.last,
            )


def _name_records(bronze: Bronze) -> None:
    """Look up the id of each record that is listed, and which part of it differs."""
    wanted = sorted({(place, offset) for _, place, offset in bronze.details})
    in_lake = records_of_lake(bronze.connection, wanted)
    in_log = records_of_log(bronze.log, wanted)
    for kind, place, offset in bronze.details:
        log, lake = in_log.get((place, offset)), in_lake.get((place, offset))
        event_id = id_of(log) or id_of(lake)
        name = f"offset {offset}" + (f" (id {event_id})" if event_id else "")
        column = None
        if kind == "altered":
            column = difference(log, lake)
            verb = "differs" if column in {None, "key", "value"} else "differ"
            message = f"{name} is altered: its {column or 'content'} {verb} from the log's"
        elif kind == "missing":
            message = f"{name} is in the log and not in bronze"
        elif kind == "doubled":
            message = f"{name} is in bronze more than once"
        else:
            message = f"{name} is in bronze and not in the log"
        bronze.findings.add(
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
