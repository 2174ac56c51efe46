"""Bronze against the log: every committed record is in bronze once, with the bytes that the log has."""

from analytics_spark.verify.bronze.check import LINE, check_bronze, unchecked_line
from analytics_spark.verify.bronze.comparison import Bronze

__all__ = ["LINE", "Bronze", "check_bronze", "unchecked_line"]
