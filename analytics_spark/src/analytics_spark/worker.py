"""The parent of Spark's Python workers: imports once what every worker forked from it then has for nothing."""

import pyarrow as pa
import ride_events

from analytics_spark import quality

__all__ = ["pa", "quality", "ride_events"]

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]  # pyspark's own is untyped
