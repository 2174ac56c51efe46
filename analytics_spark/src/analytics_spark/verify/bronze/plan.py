"""Decides from which offset each partition is compared, and judges what the log deleted before that."""

from collections.abc import Mapping, Sequence

from analytics_spark.broker_view import Place, TopicView
from analytics_spark.verify.bronze.comparison import Bronze, PartitionComparison, accepted_text, now_text
from analytics_spark.verify.report import DISAGREES, NOT_CHECKED, Finding, Kind, PartitionReport, place_text
from analytics_spark.verify.state import Accepted


def plan(bronze: Bronze, views: Mapping[str, TopicView], topics: Sequence[str]) -> None:
    """Decide from where each partition is compared; note topics that are not those that were landed."""
    stats: dict[Place, tuple[int, int]] = {
        (topic, partition): (rows, last)
        for topic, partition, rows, last in bronze.connection.execute(
            'SELECT topic, "partition", count(*), max("offset") FROM bronze GROUP BY 1, 2'
        ).fetchall()
    }
    for topic in sorted({*topics, *(place[0] for place in stats)}):
        of_topic = {place: one for place, one in stats.items() if place[0] == topic}
        view = views.get(topic)
        reason = _why_not(bronze, topic, view, has_rows=bool(of_topic))
        if reason is not None:
            kind, message = reason
            bronze.findings.add(
                Finding(kind=kind, message=f"{topic}: {message}", topic=topic, table="bronze.events"), count=1
            )
            verdict = NOT_CHECKED if kind == "unread" else DISAGREES
            bronze.unread += [
                PartitionReport(topic=topic, partition=place[1], rows=rows, verdict=verdict, detail=message)
                for place, (rows, _) in sorted(of_topic.items())
            ]
            continue
        if view is None:
            continue  # neither on the broker nor in the lake
        for place, (rows, _) in sorted(of_topic.items()):
            if place[1] not in view.ends:
                bronze.find("replaced", place, f"{rows:,} rows are in the lake, and the broker has no such partition")
        for partition in sorted(view.ends):
            _plan_partition(bronze, (topic, partition), view, stats.get((topic, partition)))
    _check_below(bronze)


def _why_not(bronze: Bronze, topic: str, view: TopicView | None, *, has_rows: bool) -> tuple[Kind, str] | None:
    """Why a topic cannot be compared record by record."""
    if view is None:
        if not has_rows:
            return None
        return ("replaced", "its rows are in the lake, and the broker has no such topic")
    if view.unanswered:
        return ("unread", view.unanswered)
    if view.topic_id is None:
        return None
    known = {bronze.notes.topic_ids.get(topic): "landed"}
    for place, verified in bronze.state.items():
        if place[0] == topic:
            known.setdefault(verified.topic_id, "verified")
    for topic_id, what in known.items():
        if topic_id is not None and topic_id != view.topic_id:
            return (
                "replaced",
                f"it was deleted and created again: id {topic_id} was {what}, the broker now has {view.topic_id}",
            )
    return None


def _plan_partition(bronze: Bronze, place: Place, view: TopicView, stats: tuple[int, int] | None) -> None:
    start, end = view.starts[place[1]], view.ends[place[1]]
    verified = bronze.state.get(place) if view.topic_id is not None else None
    report = PartitionReport(topic=place[0], partition=place[1], topic_id=view.topic_id, log_start=start, end=end)
    part = PartitionComparison(
        place=place, report=report, view=view, last=stats[1] if stats else None, verified=verified
    )
    bronze.partitions[place] = part
    if verified is not None and end < verified.end:
        bronze.find(
            "retreated",
            place,
            f"the log ends at offset {end}, and {verified.end} was its end on {verified.verified_at}: "
            f"the broker lost {verified.end - end:,} offsets",
            offset=end,
        )


def _check_below(bronze: Bronze) -> None:
    """See that rows that were verified earlier are unchanged, and set from where to compare."""
    import duckdb

    marks = {place: part.verified for place, part in bronze.partitions.items() if part.verified is not None}
    quick = bronze.quick_sums({place: verified.end for place, verified in marks.items()})
    for place, part in bronze.partitions.items():
        verified, report = part.verified, part.report
        assert report.log_start is not None
        part.is_deep = bronze.full
        if verified is not None:
            rows, quick_sum = quick.get(place, (0, 0))
            if verified.quick_version != duckdb.__version__:
                part.is_deep = True
            elif (rows, quick_sum) != (verified.rows, verified.quick_sum):
                part.is_changed_below = True
            report.verified_before = 0 if part.is_changed_below else verified.end
        else:
            report.verified_before = bronze.notes.began.get(place, 0)
        compare_all = bronze.full or part.is_changed_below or verified is None
        report.checked_from = report.log_start if compare_all else max(report.verified_before, report.log_start)
        part.scan_from = 0 if part.is_deep or compare_all else min(report.verified_before, report.checked_from)
        if not part.is_changed_below and report.log_start > report.verified_before:
            _deleted_before(bronze, part)
        if verified is None:
            if report.verified_before and report.log_start:
                bronze.allowances.append(
                    f"{place_text(*place)}: the log began at offset {report.verified_before} when the lake began "
                    "(noted by lake-sink at its first start): earlier records are not expected"
                )
            report.verified_before = 0
        for one in verified.accepted if verified is not None else ():
            bronze.allowances.append(accepted_text(place, one))


def _deleted_before(bronze: Bronze, part: PartitionComparison) -> None:
    """Judge offsets that the log deleted before they were ever compared."""
    report, place = part.report, part.place
    assert report.log_start is not None
    start, end = report.verified_before, report.log_start
    present = bronze.connection.execute(
        'SELECT count(DISTINCT "offset") FROM bronze WHERE topic = ? AND "partition" = ? '
        'AND "offset" >= ? AND "offset" < ?',
        [*place, start, end],
    ).fetchall()[0][0]
    if bronze.accepts_deleted:
        accepted = Accepted(start=start, end=end, rows=present, accepted_at=now_text())
        part.accepted = (accepted,)
        bronze.allowances.append(accepted_text(place, accepted))
        return
    advice = (
        f"verify more often than the topic's retention ({part.view.retention}), and see `lake verify --help` for "
        "--accept-deleted"
    )
    absent = end - start - present
    if absent:
        first = _first_hole(bronze, place, start, end)
        bronze.find(
            "lost",
            place,
            f"{absent:,} offsets between {start} and {end - 1} are not in the lake, the first is {first}, and the "
            f"log begins at {end}: records that were deleted before they landed are lost to the lake; {advice}",
            count=absent,
            offset=first,
        )
    if present:
        bronze.find(
            "unverified",
            place,
            f"{present:,} rows between offsets {start} and {end - 1} were never compared, and the log begins at "
            f"{end}; {advice}",
            count=present,
            offset=start,
        )


def _first_hole(bronze: Bronze, place: Place, start: int, end: int) -> int:
    found = bronze.connection.execute(
        'WITH there AS (SELECT "offset" FROM bronze WHERE topic = $topic AND "partition" = $partition '
        'AND "offset" >= $start AND "offset" < $end) '
        'SELECT min(candidate) FROM (SELECT $start AS candidate UNION ALL SELECT "offset" + 1 FROM there) '
        'ANTI JOIN there ON candidate = there."offset"',
        {"topic": place[0], "partition": place[1], "start": start, "end": end},
    ).fetchall()
    return int(found[0][0])
