"""The Spark session of the lake: one JVM, an Iceberg catalog in SQLite, nothing that a small driver does not need."""

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analytics_spark.errors import SetUpError
from analytics_spark.jars import cache_dir, fetch_jars
from analytics_spark.java import Java, JavaChoice, find_java

__all__ = ["CATALOG", "LakeLayout", "SessionPlan", "archive_path", "end_session", "start_session"]

CATALOG = "lake"
"""Name of the Iceberg catalog: Spark writes it into every row of catalog.db, and pyiceberg looks for the same."""


@dataclass(frozen=True, slots=True)
class LakeLayout:
    """Where the parts of a lake stand below its folder. Iceberg stores absolute paths: a lake cannot be moved."""

    root: Path

    @property
    def warehouse(self) -> Path:
        """Data and metadata of all tables."""
        return self.root / "warehouse"

    @property
    def catalog_db(self) -> Path:
        """The SQLite file that says which metadata file is each table's newest."""
        return self.root / "catalog.db"

    @property
    def catalog_uri(self) -> str:
        """SQLAlchemy's address of `catalog_db`, for pyiceberg."""
        return f"sqlite:///{self.catalog_db}"

    def checkpoint(self, query: str) -> Path:
        """Spark's offset and commit logs of one streaming query."""
        return self.root / "checkpoints" / query

    @property
    def progress(self) -> Path:
        """What the sink last did, as JSON, replaced atomically."""
        return self.root / "progress.json"

    @property
    def lock(self) -> Path:
        """Held by the one driver that may write."""
        return self.root / "lock"

    @property
    def finish(self) -> Path:
        """When this file appears, the sink lands what the broker has, brings silver and gold up to it, and ends."""
        return self.root / "finish"

    @property
    def topic_ids(self) -> Path:
        """The ids of the topics that were landed."""
        return self.root / "topics.json"

    @property
    def verified(self) -> Path:
        """What `lake verify` has compared so far."""
        return self.root / "verified.json"

    @property
    def logs(self) -> Path:
        """What the JVM says."""
        return self.root / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """What a session needs to know before the JVM starts."""

    layout: LakeLayout
    app_name: str = "lake"
    java: JavaChoice = "auto"
    cores: int = 2
    driver_memory_mb: int = 768
    cache: Path = field(default_factory=cache_dir)
    archive_classes_at: Path | None = None
    """Where the JVM writes a class data archive when it ends, instead of using the one that there is."""
    lock_fd: int | None = None
    """Inherited by the JVM: the lock is then held until the JVM, too, is gone."""
    extra: tuple[tuple[str, str], ...] = ()


def spark_options(plan: SessionPlan, jars: tuple[Path, ...], java_options: str) -> dict[str, str]:
    """Every Spark option of a session. Shapes the JVM's command line, so all is set before it starts."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    return {
        "spark.master": f"local[{plan.cores}]",
        "spark.app.name": plan.app_name,
        "spark.driver.memory": f"{plan.driver_memory_mb}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # On the class path, not by spark.jars: nothing is copied at start, and class data sharing reaches them.
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": java_options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(plan.layout.root / "tmp"),
        "spark.sql.warehouse.dir": str(plan.layout.root / "tmp" / "spark-warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        # The reading commands open the same file: a commit waits for them instead of failing.
        f"{catalog}.uri": f"jdbc:sqlite:{plan.layout.catalog_db}?busy_timeout=10000",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": str(plan.layout.warehouse),
        # A table is read anew at every use: maintenance may come from another process, and guards must not see old
        # snapshots.
        f"{catalog}.cache-enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # Two cores: more partitions would only be more tasks.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Counting keys would cost a second look-up for every one of them.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "64",
        # A batch is kept for seconds: compressing it costs more than it saves.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "analytics_spark.worker",
        "spark.scheduler.mode": "FAIR",
        **dict(plan.extra),
    }


def archive_path(cache: Path, java: Java, jars: tuple[Path, ...]) -> Path:
    """Where the class data archive for this Java and this class path stands, if it was made."""
    import pyspark

    home = Path(pyspark.__file__).parent
    parts = [str(java.home), java.version]
    for jar in (*jars, *sorted((home / "jars").iterdir())):
        status = jar.stat()
        parts.append(f"{jar.name} {status.st_size} {status.st_mtime_ns}")
    spark, rest = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (str(home), "\n".join(parts)))
    return cache / "class-data" / f"{spark}-{rest}.jsa"


def _class_data(plan: SessionPlan, archive: Path) -> tuple[str, ...]:
    if plan.archive_classes_at is not None:
        return (f"-XX:ArchiveClassesAtExit={plan.archive_classes_at}",)
    return (f"-XX:SharedArchiveFile={archive}",) if archive.is_file() else ()


def _java_options(plan: SessionPlan, archive: Path) -> str:
    log = plan.layout.logs / "spark.log"
    config = Path(__file__).with_name("log4j2.properties")
    return " ".join(
        (
            f"-Dlog4j2.configurationFile={config.as_uri()}",
            f"-Dlake.log={log}",
            # The smallest collector: two cores are shared with everything else.
            "-XX:+UseSerialGC",
            # The quick compiler only: half the CPU until the first batch is in, which is what two shared cores are
            # short of.
            "-XX:TieredStopAtLevel=1",
            "-XX:ReservedCodeCacheSize=128m",
            "-Xss2m",
            "-XX:-UsePerfData",
            *_class_data(plan, archive),
        )
    )


def start_session(plan: SessionPlan) -> Any:  # the gateway's objects have no types
    """A Spark session over the lake; downloads what is missing first.

    Raises:
        SetUpError: No Java, a jar that cannot be had, or a JVM that does not come up.
    """
    jars = fetch_jars(plan.cache)
    java = find_java(plan.java, plan.cache)
    for folder in (plan.layout.root / "tmp", plan.layout.warehouse, plan.layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java.home)
    # Workers run what the driver runs: the first python3 on the path may lack every package.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
    options = spark_options(plan, jars, _java_options(plan, archive_path(plan.cache, java, jars)))
    conf = SparkConf(loadDefaults=False)
    for name, value in options.items():
        conf.set(name, value)
    out = plan.layout.logs / "jvm.out"
    with out.open("ab") as sink:
        # Its own session: a signal to our process group is ours to answer, the JVM ends when our end of its stdin
        # closes.
        popen: dict[str, Any] = {"stdout": sink, "stderr": sink, "start_new_session": True}
        if plan.lock_fd is not None:
            popen["pass_fds"] = (plan.lock_fd,)
        try:
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]  # pyspark's own is untyped
            context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkException, OSError) as error:
            raise SetUpError(f"the JVM of {java.home} did not start; the reason stands at the end of {out}") from error
    return SparkSession(context)


def end_session(spark: Any, *, timeout_s: float = 5.0) -> None:  # a SparkSession
    """Stop Spark and wait for the JVM: afterwards the lake's lock is free."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 pyspark offers no other way to the process it started
    process = gateway.proc
    try:
        spark.stop()
        gateway.shutdown()
    except Exception:  # noqa: BLE001, S110 a JVM that is gone cannot be asked to stop
        pass
    process.stdin.close()
    try:
        process.wait(timeout=timeout_s)
    except Exception:  # noqa: BLE001 it hangs at its end: everything is committed by now
        process.kill()
        process.wait()
