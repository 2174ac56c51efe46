"""Everything that hailbus uses of aiokafka beside its public interface, in one place.

aiokafka may rename these attributes in any release. `missing` says which ones it has renamed; a test calls it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.producer.sender import Sender
from aiokafka.protocol.metadata import MetadataRequest

__all__ = [
    "PRIVATE",
    "close_connections",
    "close_producer",
    "cluster_metadata",
    "has_connections",
    "is_connected",
    "membership_ended",
    "missing",
    "partitions_when_known",
    "request_metadata",
    "send_to_node",
    "sender_ended",
    "try_connection",
]

PRIVATE: Sequence[tuple[type[Any], str, str]] = (  # Any: aiokafka is untyped
    (AIOKafkaProducer, "client", "to close a producer's connections"),
    (AIOKafkaProducer, "_sender", "to see whether a producer still sends"),
    (Sender, "sender_task", "to see whether a producer still sends"),
    (Sender, "close", "to close a producer that waits for a dead broker"),
    (AIOKafkaConsumer, "_client", "to close a consumer's connections"),
    (AIOKafkaConsumer, "_coordinator", "to see whether a consumer is still a member of its group"),
    (GroupCoordinator, "_coordination_task", "to see whether a consumer is still a member of its group"),
    (AIOKafkaAdminClient, "_client", "to ask for metadata"),
    (AIOKafkaAdminClient, "_get_cluster_metadata", "to list topics without creating them"),
    (AIOKafkaAdminClient, "_send_request_to_node", "to send requests that aiokafka does not have"),
    (AIOKafkaClient, "_conns", "to see whether a broker is connected"),
    (AIOKafkaClient, "_wait_on_metadata", "to wait for a topic's partitions"),
    (AIOKafkaClient, "close", "to close connections"),
    (AIOKafkaClient, "force_metadata_update", "to ask for metadata that was lost with a broker"),
)


def missing(private: Sequence[tuple[type[Any], str, str]] = PRIVATE) -> list[str]:  # Any: as above
    """One sentence for each attribute that the installed aiokafka no longer has."""
    return [
        f"aiokafka {version('aiokafka')} has no {owner.__module__}.{owner.__name__}.{name}, which "
        f"hailbus._transport.aiokafka_private needs {use}"
        for owner, name, use in private
        # An attribute of the class, or one that its constructor sets.
        if not hasattr(owner, name) and name not in owner.__init__.__code__.co_names
    ]


# Arguments and results below are aiokafka's, which is untyped: its classes stand for Any.


async def try_connection(host: str, port: int, arguments: Mapping[str, Any]) -> None:  # Any: as above
    """Connect, authenticate and ask for metadata, as a client does first; raise whatever fails, and disconnect."""
    wanted = {
        name: value for name, value in arguments.items() if name not in {"bootstrap_servers", "metadata_max_age_ms"}
    }
    connection = await create_conn(host, port, **wanted)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()


def sender_ended(producer: AIOKafkaProducer) -> bool:
    """Whether the task that sends a producer's records has died."""
    task = producer._sender.sender_task
    return task is not None and bool(task.done())


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Close a producer without waiting for records that no broker takes."""
    await producer._sender.close()
    await producer.client.close()


async def close_connections(consumer: AIOKafkaConsumer) -> None:
    """Close a consumer's connections, which ends the wait for answers on them."""
    await consumer._client.close()


def membership_ended(consumer: AIOKafkaConsumer) -> bool:
    """Whether the task that keeps a consumer in its group has died."""
    coordinator = consumer._coordinator
    task = getattr(coordinator, "_coordination_task", None)  # a reader without a group has no such task
    return task is not None and bool(task.done())


async def partitions_when_known(consumer: AIOKafkaConsumer, topic: str) -> Collection[int]:
    """A topic's partitions; waits for the first metadata."""
    found: Collection[int] = await consumer._client._wait_on_metadata(topic)
    return found


def request_metadata(consumer: AIOKafkaConsumer) -> None:
    """Ask for metadata now, at most once at a time; nobody waits for the answer."""
    consumer._client.force_metadata_update()


async def cluster_metadata(admin: AIOKafkaAdminClient) -> Any:  # Any: as above
    """Metadata of every topic; a request by name would create the topics that are missing."""
    return await admin._get_cluster_metadata()


async def send_to_node(admin: AIOKafkaAdminClient, node: int, request: object) -> Any:  # Any: as above
    """Send a request to one broker and return its answer."""
    return await admin._send_request_to_node(node, request)


def _connections(client: AIOKafkaProducer | AIOKafkaConsumer) -> Collection[Any]:  # Any: as above
    network = client.client if isinstance(client, AIOKafkaProducer) else client._client
    found: Collection[Any] = network._conns.values()
    return found


def has_connections(client: AIOKafkaProducer | AIOKafkaConsumer) -> bool:
    """Whether a client holds connections, be they alive or broken."""
    return bool(_connections(client))


def is_connected(client: AIOKafkaProducer | AIOKafkaConsumer) -> bool:
    """Whether a client is connected to at least one broker."""
    return any(connection.connected() for connection in _connections(client))
