"""The line of bronze: plan, read both sides, judge, and note what is verified now."""

from collections.abc import Mapping, Sequence

from hailbus.record_sum import MODULUS

from analytics_spark.broker_view import Place, TopicView
from analytics_spark.verify.bronze.comparison import Bronze, now_text
from analytics_spark.verify.bronze.judge import judge
from analytics_spark.verify.bronze.plan import plan
from analytics_spark.verify.bronze.scan import read_log, scan_lake
from analytics_spark.verify.report import AGREES, DISAGREES, NOT_CHECKED, Finding, Findings, LineReport, PartitionReport
from analytics_spark.verify.state import VerifiedPartition

LINE = "bronze = log"
_ACCOUNTS = ("the log, read by librdkafka with read_committed", "bronze.events, read by pyiceberg")


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
    plan(bronze, views, topics)
    read_log(bronze)
    scan_lake(bronze)
    judge(bronze)
    verified = _settle(bronze)
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


def _settle(bronze: Bronze) -> dict[Place, VerifiedPartition]:
    """Fill in the reports, and return what is verified now: partitions that agree advance to their end."""
    import duckdb

    ends = {place: part.report.end for place, part in bronze.partitions.items() if part.report.end is not None}
    quick = bronze.quick_sums(ends)
    verified = dict(bronze.state)
    now = now_text()
    for place, part in bronze.partitions.items():
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


def unchecked_line() -> LineReport:
    """The line of a run without a broker."""
    findings = Findings()
    findings.add(Finding(kind="unread", message="no broker was given; name it with --bootstrap HOST:PORT"))
    return LineReport.of(LINE, _ACCOUNTS, findings, agreed="")
