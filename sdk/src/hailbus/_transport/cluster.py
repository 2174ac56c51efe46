"""How to reach a Kafka cluster: the settings of `KafkaBus`, checked, for either client library."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from ssl import SSLContext
from typing import Literal, get_args

from hailbus._transport import RebalanceListener, Start
from hailbus.errors import ConfigurationError
from hailbus.partitioner import Murmur2, Partitioner

__all__ = ["ClusterSettings", "ConsumerOptions"]

ClientName = Literal["aiokafka", "librdkafka"]
RETRY_BACKOFF_S = 0.1
STOP_TIMEOUT_S = 10.0
"""How long a consumer's stop waits for the broker before it closes the connections."""
_TLS_FILES = ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What one consumer reads, and for whom; see `Bus.consumer`."""

    client_id: str
    group: str | None
    topics: tuple[str, ...]
    start: Start
    listener: RebalanceListener | None
    read_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The settings of `KafkaBus`, which documents them; checked when they are made."""

    bootstrap_servers: str
    client: ClientName = "aiokafka"
    client_id: str | None = None
    connect_timeout_s: float = 60.0
    acks: Literal["all", 1, 0] = "all"
    idempotent: bool = True
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    linger_ms: int = 0
    max_batch_bytes: int = 262_144
    max_record_bytes: int = 1_048_576
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 2_000
    rebalance_timeout_ms: int = 30_000
    request_timeout_ms: int = 30_000
    fetch_max_wait_ms: int = 250
    max_partition_fetch_bytes: int = 1_048_576
    assignor: Literal["range", "roundrobin", "sticky", "cooperative-sticky"] = "roundrobin"
    group_instance_id: str | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_context: SSLContext | None = None
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    partitioner: Partitioner = field(default_factory=Murmur2)

    def __post_init__(self) -> None:
        for server in self.bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                message = f"bootstrap server {server.strip()!r} is not like 'host:9092'"
                raise ConfigurationError(message)
        problem = self._contradiction() or self._beyond_the_client()
        if problem is not None:
            raise ConfigurationError(problem)

    def _contradiction(self) -> str | None:
        if self.idempotent and self.acks != "all":
            return f"acks={self.acks} and idempotent=True exclude each other; give idempotent=False or acks='all'"
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            return (
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} is not shorter than "
                f"session_timeout_ms={self.session_timeout_ms}, so the group would expel this member between two "
                "heartbeats; a third of it is usual"
            )
        files = [name for name in _TLS_FILES if getattr(self, name) is not None]
        if self.ssl_context is not None and files:
            return f"ssl_context= and {files[0]}= exclude each other; load the file into the context"
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            return "ssl_cert_file= and ssl_key_file= belong together; give both"
        if (files or self.ssl_context is not None) and not self.security_protocol.endswith("SSL"):
            given = files[0] if files else "ssl_context"
            return (
                f"{given}= is given, but security_protocol={self.security_protocol!r} does not encrypt; "
                "give security_protocol='SSL' or 'SASL_SSL'"
            )
        has_user = self.sasl_username is not None and self.sasl_password is not None
        if self.security_protocol.startswith("SASL") and not has_user:
            return f"security_protocol={self.security_protocol!r} needs sasl_username= and sasl_password="
        if self.sasl_username is not None and not self.security_protocol.startswith("SASL"):
            return (
                f"sasl_username= is given, but security_protocol={self.security_protocol!r} does not authenticate; "
                "give security_protocol='SASL_SSL' or 'SASL_PLAINTEXT'"
            )
        return None

    def _beyond_the_client(self) -> str | None:
        """What the chosen client library cannot do."""
        if self.client not in get_args(ClientName):
            return f"client={self.client!r} is neither 'aiokafka' nor 'librdkafka'"
        if self.client == "aiokafka":
            if self.assignor == "cooperative-sticky":
                return (
                    "assignor='cooperative-sticky' needs client='librdkafka'; "
                    "aiokafka has 'range', 'roundrobin' and 'sticky'"
                )
            return None
        if find_spec("confluent_kafka") is None:
            return "client='librdkafka' needs the package confluent-kafka: pip install 'hailbus[librdkafka]'"
        if self.assignor == "sticky":
            return (
                "assignor='sticky' needs client='aiokafka'; "
                "librdkafka has 'range', 'roundrobin' and 'cooperative-sticky'"
            )
        if self.ssl_context is not None:
            return "librdkafka cannot use ssl_context=; give ssl_ca_file=, ssl_cert_file= and ssl_key_file="
        if self.rebalance_timeout_ms < self.session_timeout_ms:
            return (
                f"librdkafka cannot have rebalance_timeout_ms={self.rebalance_timeout_ms} shorter than "
                f"session_timeout_ms={self.session_timeout_ms}; lengthen the one or shorten the other"
            )
        return None

    @property
    def rebalance_timeout(self) -> timedelta:
        """See `Bus`."""
        return timedelta(milliseconds=self.rebalance_timeout_ms)

    def client_id_of(self, client_id: str) -> str:
        """The id under which a client reports to the broker."""
        return f"{self.client_id}-{client_id}" if self.client_id else client_id
