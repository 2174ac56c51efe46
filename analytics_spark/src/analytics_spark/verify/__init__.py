"""The proof of the lake: bronze against the log, silver against bronze, gold against a computation of its own.

Reads the lake without Spark, and the log by another client than Spark's, so that the witness is not the accused. What
could not be checked is reported as not checked, and that is not ok.
"""

from analytics_spark.verify.lake import SAMPLE_ROWS, verify_lake
from analytics_spark.verify.report import Finding, LakeReport, LineReport, PartitionReport, SilverReport

__all__ = [
    "SAMPLE_ROWS",
    "Finding",
    "LakeReport",
    "LineReport",
    "PartitionReport",
    "SilverReport",
    "verify_lake",
]
