"""Where streams come from: Kafka for bronze, the bronze table for silver, the silver tables for gold."""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from analytics_spark.tables import TableSpec

__all__ = ["existing_topics", "iceberg_stream", "kafka_stream", "topic_ids", "topic_pattern"]


def topic_pattern(topics: tuple[str, ...]) -> str:
    """A regular expression that matches these topics and no others.

    By a pattern, topics that do not exist yet are simply absent, and are picked up from their first record when they
    come; by a list, Spark refuses to start until the last one exists. The anchors matter: Spark looks for the pattern
    anywhere in a name, and `rides.v1` is found in `rides.v1.surge-dlt`, too.
    """
    names = "|".join(re.escape(topic).replace("\\-", "-") for topic in topics)
    return f"^(?:{names})$"


def kafka_stream(spark: Any, *, bootstrap_servers: str, topics: tuple[str, ...], max_offsets_per_trigger: int) -> Any:
    """The records of these topics, from the first one on; committed ones only.

    *Out:* Spark's Kafka columns: `key, value binary; topic string; partition int; offset long; timestamp timestamp;
    timestampType int; headers array<struct<key string, value binary>>`.
    """
    options = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribePattern": topic_pattern(topics),
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        "groupIdPrefix": "lake",
        # The consumer's default is read_uncommitted, which would land aborted records.
        "kafka.isolation.level": "read_committed",
        # A broker that is away is noticed in seconds, and the supervisor decides how long to try.
        "kafka.default.api.timeout.ms": "15000",
        "kafka.request.timeout.ms": "10000",
        "kafka.reconnect.backoff.max.ms": "1000",
        "kafkaConsumer.pollTimeoutMs": "20000",
        "fetchOffset.numRetries": "2",
    }
    return spark.readStream.format("kafka").options(**options).load()


def existing_topics(spark: Any, *, bootstrap_servers: str, timeout_ms: int) -> frozenset[str]:
    """Names of the topics that the cluster has, asked by the client that will read them.

    Raises:
        ConnectionError: No broker answered in `timeout_ms`.
    """
    with _admin(spark, bootstrap_servers=bootstrap_servers, timeout_ms=timeout_ms) as admin:
        return frozenset(admin.listTopics().names().get())


def topic_ids(spark: Any, topics: Iterable[str], *, bootstrap_servers: str, timeout_ms: int) -> dict[str, str]:
    """Topic → id, of those that the cluster has. A topic that is deleted and created again gets another id.

    Raises:
        ConnectionError: No broker answered in `timeout_ms`.
    """
    with _admin(spark, bootstrap_servers=bootstrap_servers, timeout_ms=timeout_ms) as admin:
        wanted = sorted(frozenset(topics).intersection(admin.listTopics().names().get()))
        described = admin.describeTopics(wanted).allTopicNames().get() if wanted else {}
        return {name: str(described[name].topicId().toString()) for name in wanted}


@contextmanager
def _admin(spark: Any, *, bootstrap_servers: str, timeout_ms: int) -> Generator[Any]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types

    jvm = spark._jvm  # noqa: SLF001 pyspark has no public way to the class path's own clients
    properties = jvm.java.util.Properties()
    properties.setProperty("bootstrap.servers", bootstrap_servers)
    properties.setProperty("request.timeout.ms", str(timeout_ms))
    properties.setProperty("default.api.timeout.ms", str(timeout_ms))
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    except Py4JJavaError as error:
        raise ConnectionError(_cause(error)) from error
    try:
        yield admin
    except Py4JJavaError as error:
        raise ConnectionError(_cause(error)) from error
    finally:
        admin.close(jvm.java.time.Duration.ofSeconds(1))


def _cause(error: Any) -> str:  # a Py4JJavaError
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage() or cause.toString())


def iceberg_stream(spark: Any, spec: TableSpec, *, max_rows_per_trigger: int) -> Any:
    """The rows that are appended to a table, snapshot by snapshot, from its first one on. Compactions add no rows."""
    return (
        spark.readStream.format("iceberg")
        .option("streaming-max-rows-per-micro-batch", str(max_rows_per_trigger))
        # Batches are small files: cut so that both cores have some, not joined into one task of 128 MB.
        .option("split-size", str(2 << 20))
        .option("file-open-cost", str(256 << 10))
        .option("streaming-skip-overwrite-snapshots", "true")
        .load(spec.qualified)
    )
