"""The JVM's class data archive: what Spark loads, parsed and verified once. A start then takes half the CPU time.

An archive fits one Java and one class path. The JVM checks that itself, and starts without the archive when it does not
fit.
"""

import tempfile
from pathlib import Path

from analytics_spark.config import LakeSettings
from analytics_spark.errors import SetUpError
from analytics_spark.jars import cache_dir, fetch_jars
from analytics_spark.java import find_java
from analytics_spark.session import LakeLayout, SessionPlan, archive_path, end_session, start_session
from analytics_spark.tables import BRONZE, ensure_table

__all__ = ["make_archive"]

_DUMP_TIMEOUT_S = 120.0


def make_archive(settings: LakeSettings) -> bool:
    """Write one row and read it once, and archive the classes that it loads; whether there was none that fits.

    Raises:
        SetUpError: Java does not start, or has written no archive.
    """
    cache = settings.cache or cache_dir()
    jars = fetch_jars(cache)
    archive = archive_path(cache, find_java(settings.java, cache), jars)
    if archive.is_file():
        return False
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".made-", dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        layout = LakeLayout(Path(folder) / "lake")
        spark = start_session(
            SessionPlan(layout=layout, java=settings.java, cache=cache, cores=settings.cores, archive_classes_at=made)
        )
        try:
            ensure_table(spark, BRONZE)
            row = (
                "SELECT 'rides.v1' AS topic, 0 AS partition, 0L AS offset, now() AS timestamp,"
                " 'CreateTime' AS timestamp_type, X'00' AS key, X'00' AS value,"
                " array(struct('ce_id' AS key, X'00' AS value)) AS headers, 0L AS ingest_batch, now() AS ingested_at"
            )
            spark.sql(row).writeTo(BRONZE.qualified).append()
            spark.table(BRONZE.qualified).groupBy("topic").count().collect()
        finally:
            end_session(spark, timeout_s=_DUMP_TIMEOUT_S)
        if not made.is_file():
            said = (layout.logs / "jvm.out").read_text(errors="replace").strip().splitlines()[-1:]
            raise SetUpError(f"Java has written no class data archive: {' '.join(said) or 'it does not say why'}")
        for old in archive.parent.glob(f"{archive.name.partition('-')[0]}-*"):
            old.unlink()  # of the same Spark with another Java or other jars
        made.replace(archive)
    return True
