"""Numbers of a running node in Prometheus' text format, on an HTTP listener of its own; off unless asked for.

Names that dashboards for Apache Kafka know (those of kafka_exporter) are used where they fit; the rest begins with
`hailbus_broker_`. All numbers are read in the broker's own loop when somebody asks.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from hailbus_broker.log import FileSlice
from hailbus_broker.protocol.api import APIS
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.replica import HostedReplica, LeaderReplica, OfflineReplica

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from hailbus_broker.runtime.node import Node
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_HEAD_BYTES: Final = 16_384
HEAD_TIMEOUT_S: Final = 5.0
LATENCIES_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """Counts requests and reads the state of a node.

    Args:
        dispatcher: Reports each request from now on: that of clients, or that of a controller without a broker.
        max_partitions: With more partitions than this, none gets numbers of its own.
    """

    def __init__(self, dispatcher: Dispatcher, *, max_partitions: int) -> None:
        self._core: Final = dispatcher.core
        self._node: Final[Node] = dispatcher.node  # None on a controller without a broker, where nothing reads it
        self._dispatcher: Final = dispatcher
        self._max_partitions: Final = max_partitions
        self._registry: Final = CollectorRegistry()
        self._seconds: Final = Histogram(
            "hailbus_broker_request_seconds",
            "Time from a request's arrival to its response; a Fetch includes the wait for data.",
            ["api"],
            buckets=LATENCIES_S,
            registry=self._registry,
        )
        self._received: Final = CounterMetric(
            "hailbus_broker_request_bytes", "Bytes of requests.", ["api"], registry=self._registry
        )
        self._sent: Final = CounterMetric(
            "hailbus_broker_response_bytes", "Bytes of responses.", ["api"], registry=self._registry
        )
        self._registry.register(self)  # `collect` is asked as well
        # Labels are looked up once per API: a lookup costs more than the counting.
        self._by_api: Final[dict[int, tuple[Any, Any, Any]]] = {}
        dispatcher.observe = self._arrived

    def _arrived(self, request: Request) -> None:
        found = self._by_api.get(request.api_key)
        if found is None:
            api = APIS.get(request.api_key)
            if api is None:
                return  # the connection is about to be closed
            found = self._by_api[request.api_key] = (
                self._seconds.labels(api.name),
                self._received.labels(api.name),
                self._sent.labels(api.name),
            )
        seconds, received, sent = found
        started_s = time.perf_counter()
        received.inc(len(request.frame))

        def answered(request: Request) -> None:
            seconds.observe(time.perf_counter() - started_s)
            sent.inc(sum(part.length if isinstance(part, FileSlice) else len(part) for part in request.parts))

        request.on_answer = answered

    def text(self) -> bytes:
        """All metrics as they are now."""
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """Yield every metric, those that count requests and those that are read from the broker's state."""
        return iter(self._registry.collect())

    def collect(self) -> Iterator[Metric]:
        """What is read from the node's state; Prometheus' library calls it."""
        yield from self._cluster()
        yield from self._quorum()
        if not self._core.roles.is_broker:
            return
        yield CounterMetricFamily(
            "hailbus_broker_sync_rounds",
            "Rounds of fsync; each round makes many appends durable.",
            value=self._node.sync.round_count,
        )
        yield from self._topics()
        yield from self._replication()
        yield from self._groups()
        yield from self._transactions()

    def _cluster(self) -> Iterator[Metric]:
        core = self._core
        fenced_count = sum(broker.fenced for broker in core.image.brokers.values())
        yield GaugeMetricFamily(
            "kafka_brokers", "Brokers of the cluster that are not fenced.", value=len(core.image.brokers) - fenced_count
        )
        yield GaugeMetricFamily(
            "hailbus_broker_fenced_brokers",
            "Registered brokers that do not run, or cannot lead.",
            value=fenced_count,
        )
        yield GaugeMetricFamily(
            "hailbus_broker_offline_log_directories",
            "Log directories that failed; the broker needs a restart.",
            value=int(core.failure is not None),
        )
        yield GaugeMetricFamily(
            "hailbus_broker_connections", "Connections of clients.", value=len(self._dispatcher.connections)
        )
        yield GaugeMetricFamily(
            "hailbus_broker_requests_bytes_in_work",
            "Bytes of requests that wait or are processed; queued.max.request.bytes is the limit.",
            value=self._dispatcher.bytes_in_work,
        )

    def _quorum(self) -> Iterator[Metric]:
        core, quorum = self._core, self._core.metadata.quorum
        is_active = core.roles.is_controller and core.metadata.is_active
        yield GaugeMetricFamily(
            "hailbus_broker_active_controller",
            "1 on the node whose controller is active; the sum over all nodes is 1.",
            value=int(is_active),
        )
        yield GaugeMetricFamily(
            "hailbus_broker_quorum_epoch", "Epoch of the controllers' quorum; each election adds 1.", value=quorum.epoch
        )
        yield GaugeMetricFamily(
            "hailbus_broker_metadata_log_end_offset",
            "Log end offset of __cluster_metadata.",
            value=quorum.log.log_end_offset,
        )
        yield GaugeMetricFamily(
            "hailbus_broker_metadata_lag_records",
            "Committed records of __cluster_metadata that this node has not applied yet.",
            value=max(quorum.high_watermark - core.publisher.applied_end_offset, 0),
        )
        yield GaugeMetricFamily(
            "hailbus_broker_leaderless_partitions",
            "Partitions that nobody leads, as the active controller counts them; 0 on other nodes.",
            value=sum(state.leader < 0 for topic in core.image.topics.values() for state in topic.partitions)
            if is_active
            else 0,
        )

    def _topics(self) -> Iterator[Metric]:
        partitions = GaugeMetricFamily("kafka_topic_partitions", "Partitions of a topic.", labels=["topic"])
        size = GaugeMetricFamily("hailbus_broker_log_size_bytes", "Bytes of a topic's logs.", labels=["topic"])
        offline = 0
        for name, found in sorted(self._node.replicas.topics.items()):
            partitions.add_metric([name], len(found))
            hosted = [replica for replica in found if isinstance(replica, HostedReplica)]
            size.add_metric([name], sum(replica.log.size_bytes() for replica in hosted))
            offline += sum(
                isinstance(replica, (HostedReplica, OfflineReplica)) and replica.error is not None for replica in found
            )
        yield partitions
        yield size
        yield GaugeMetricFamily(
            "hailbus_broker_offline_partitions", "Partitions that cannot be written.", value=offline
        )
        places = list(self._node.replicas.leaders())
        if len(places) > self._max_partitions:
            return
        labels = ["topic", "partition"]
        ends = GaugeMetricFamily("kafka_topic_partition_current_offset", "High watermark.", labels=labels)
        starts = GaugeMetricFamily("kafka_topic_partition_oldest_offset", "Log start offset.", labels=labels)
        stable = GaugeMetricFamily(
            "hailbus_broker_partition_last_stable_offset",
            "Last stable offset: consumers with read_committed read up to it.",
            labels=labels,
        )
        for partition in places:
            where = [partition.topic, str(partition.index)]
            starts.add_metric(where, partition.log.log_start_offset)
            ends.add_metric(where, partition.log.high_watermark)
            stable.add_metric(where, partition.log.last_stable_offset)
        yield from (starts, ends, stable)

    def _replication(self) -> Iterator[Metric]:
        replicas = self._node.replicas
        leader_count = under_replicated = under_min_isr = max_lag = 0
        for leader in replicas.leaders():
            leader_count += 1
            if leader.followers is None:
                continue
            in_sync = leader.followers.in_sync
            under_replicated += len(in_sync.isr) <= len(in_sync.followers)
            under_min_isr += not leader.has_min_isr
            ends = [one.end_offset for one in in_sync.followers.values() if one.end_offset >= 0]
            max_lag = max(max_lag, leader.log.log_end_offset - min(ends, default=leader.log.log_end_offset))
        yield GaugeMetricFamily(
            "hailbus_broker_leader_partitions", "Partitions that this broker leads.", value=leader_count
        )
        yield GaugeMetricFamily(
            "hailbus_broker_under_replicated_partitions",
            "Partitions that this broker leads with replicas that are not in sync.",
            value=under_replicated,
        )
        yield GaugeMetricFamily(
            "hailbus_broker_under_min_isr_partitions",
            "Partitions that this broker leads with fewer replicas in sync than min.insync.replicas: acks=all fails.",
            value=under_min_isr,
        )
        yield GaugeMetricFamily(
            "hailbus_broker_replica_lag_records_max",
            "Records that the slowest follower of a partition that this broker leads has not stored.",
            value=max_lag,
        )
        for name, text, count in (
            ("isr_shrinks", "Replicas left the ISR of a partition that this broker leads.", "shrink_count"),
            ("isr_expands", "Replicas joined the ISR of a partition that this broker leads.", "expand_count"),
        ):
            value = getattr(replicas.isr_changes, count)
            yield CounterMetricFamily(f"hailbus_broker_{name}", text, value=value)

    def _groups(self) -> Iterator[Metric]:
        states: Counter[tuple[str, str]] = Counter()
        causes: Counter[str] = Counter()
        members = GaugeMetricFamily("kafka_consumergroup_members", "Members of a group.", labels=["consumergroup"])
        lag = GaugeMetricFamily(
            "kafka_consumergroup_lag_sum",
            "Records between the committed offset and the high watermark, in partitions with a committed offset.",
            labels=["consumergroup", "topic"],
        )
        for shard in self._node.groups.shards():
            causes.update({cause.value: count for cause, count in shard.rebalance_counts.items()})
            for listed in shard.list_groups():
                states[listed.group_type, listed.group_state] += 1
                group = shard.consumer_groups.get(listed.group_id) or shard.groups.get(listed.group_id)
                members.add_metric([listed.group_id], 0 if group is None else len(group.members))
                for topic, behind in self._lags(shard.all_committed(listed.group_id)).items():
                    lag.add_metric([listed.group_id, topic], behind)
        by_state = GaugeMetricFamily("hailbus_broker_groups", "Groups by protocol and state.", labels=["type", "state"])
        for (kind, state), count in sorted(states.items()):
            by_state.add_metric([kind, state], count)
        rebalances = CounterMetricFamily("hailbus_broker_group_rebalances", "Rebalances by cause.", labels=["cause"])
        for cause, count in sorted(causes.items()):
            rebalances.add_metric([cause], count)
        yield from (members, lag, by_state, rebalances)

    def _lags(self, committed: Any) -> Counter[str]:  # offsets by (topic, partition)
        lags: Counter[str] = Counter()
        for (topic, index), offset in committed.items():
            partition = self._node.replicas.leader(topic, index)
            if isinstance(partition, LeaderReplica):
                lags[topic] += max(partition.log.high_watermark - offset.offset, 0)
        return lags

    def _transactions(self) -> Iterator[Metric]:
        now_ms = self._node.clock.wall_ms()
        states: Counter[str] = Counter()
        oldest_ms = 0
        for shard in self._node.transactions.shards():
            for transaction in shard.transactions.values():
                states[transaction.state.label] += 1
                if transaction.start_ms >= 0 and transaction.state.is_open:
                    oldest_ms = max(oldest_ms, now_ms - transaction.start_ms)
        by_state = GaugeMetricFamily("hailbus_broker_transactions", "Transactional ids by state.", labels=["state"])
        for state, count in sorted(states.items()):
            by_state.add_metric([state], count)
        yield by_state
        yield GaugeMetricFamily(
            "hailbus_broker_oldest_open_transaction_seconds",
            "Age of the oldest open transaction; consumers with read_committed wait for it.",
            value=oldest_ms / 1000,
        )


class MetricsServer:
    """Answers GET /metrics.

    Args:
        metrics: What to tell.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._server: asyncio.Server | None = None

    async def start(self, listen: str) -> str:
        """Listen on HOST:PORT; port 0 takes a free one.

        Returns:
            Where it listens.

        Raises:
            StartError: With one sentence that says what to do.
        """
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise StartError(f"metrics.listen {listen} is not HOST:PORT, for example 127.0.0.1:9308")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]") or None, int(port), limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise StartError(
                f"cannot listen on {listen} for metrics: {error}; choose another metrics.listen"
            ) from error
        return f"{host or '127.0.0.1'}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, body = "400 Bad Request", b"This speaks HTTP: GET /metrics\n"
            with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(HEAD_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                path = rest.partition(b" ")[0].partition(b"?")[0]
                if method not in {b"GET", b"HEAD"}:
                    status, body = "405 Method Not Allowed", b"GET /metrics\n"
                elif path != b"/metrics":
                    status, body = "404 Not Found", b"GET /metrics\n"
                else:
                    status, body = "200 OK", self._metrics.text()
                if method == b"HEAD":
                    body = b""
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            writer.write(body)
            await writer.drain()
        except (TimeoutError, ConnectionError):
            pass  # the client is gone, or never sent its request
        finally:
            writer.close()
