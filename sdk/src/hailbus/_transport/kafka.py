"""`KafkaBus`: a Kafka cluster behind the ports, over aiokafka or librdkafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hailbus._extras import extra
from hailbus._transport import Consumer, Producer, RebalanceListener, Start
from hailbus._transport.cluster import ClusterSettings, ConsumerOptions

with extra("kafka"):
    from hailbus._transport.aiokafka_consumer import AiokafkaConsumer
    from hailbus._transport.aiokafka_producer import AiokafkaProducer
    from hailbus._transport.kafka_admin import KafkaAdmin

__all__ = ["KafkaBus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBus(ClusterSettings):
    """A Kafka cluster: makes producers, consumers and admins, and connects nothing itself.

    Args:
        bootstrap_servers: `host:port`, several joined by commas.
        client: The client library: `aiokafka`, or `librdkafka` after `pip install 'hailbus[librdkafka]'`.
        client_id: Prefix of the client ids; else the service's name.
        connect_timeout_s: How long a start waits for a broker that is still coming up.
        acks: `all`, or 1 or 0 for data that may be lost; idempotence needs `all`.
        idempotent: Broker-side deduplication of the client's own retries.
        compression: Of record batches.
        linger_ms: How long a lone record waits for company. 0 is right for most: batches fill while one is in flight.
        max_batch_bytes: Upper bound of one record batch.
        max_record_bytes: Larger records are refused before they are sent.
        session_timeout_ms: A consumer that is silent for so long loses its partitions.
        heartbeat_interval_ms: How often a consumer reports to its group's coordinator.
        rebalance_timeout_ms: How long the others wait for a member that is still settling its records.
        request_timeout_ms: How long the client waits for an answer before it sends the request again.
        fetch_max_wait_ms: How long the broker holds a fetch while there are no new records.
        max_partition_fetch_bytes: Upper bound of the records of one partition in one fetch.
        assignor: `range`, `roundrobin`, `sticky` (aiokafka) or `cooperative-sticky` (librdkafka).
        group_instance_id: Static membership: a restart within the session timeout causes no rebalance.
        isolation: Whether consumers see records of open and aborted transactions.
        security_protocol: `SSL` and `SASL_SSL` encrypt; `SASL_*` authenticate.
        ssl_context: A context of your own in place of the files below; for aiokafka only.
        ssl_ca_file: PEM file with the certificates to trust; else the system's.
        ssl_cert_file, ssl_key_file, ssl_key_password: This client's certificate and key.
        ssl_check_hostname: Whether the broker's certificate must name the host that was connected to.
        sasl_mechanism, sasl_username, sasl_password: How the client authenticates.
        partitioner: Where keyed records go; Java's murmur2 unless given.
    """

    @property
    def address(self) -> str:
        """The bootstrap servers."""
        return self.bootstrap_servers

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> Producer:
        """See `Bus`."""
        if self.client == "librdkafka":
            from hailbus._transport.librdkafka_producer import LibrdkafkaProducer  # an extra

            return LibrdkafkaProducer(self, client_id=client_id, transactional_id=transactional_id)
        return AiokafkaProducer(self, client_id=client_id, transactional_id=transactional_id)

    def consumer(
        self,
        *,
        client_id: str,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None = None,
        read_committed: bool = True,
    ) -> Consumer:
        """See `Bus`."""
        options = ConsumerOptions(
            client_id=client_id,
            group=group,
            topics=tuple(topics),
            start=start,
            listener=listener,
            read_committed=read_committed and self.isolation == "read_committed",
        )
        if self.client == "librdkafka":
            from hailbus._transport.librdkafka_consumer import LibrdkafkaConsumer  # an extra

            return LibrdkafkaConsumer(self, options)
        return AiokafkaConsumer(self, options)

    def admin(self, *, client_id: str) -> KafkaAdmin:
        """See `Bus`."""
        return KafkaAdmin(self, client_id=client_id)
