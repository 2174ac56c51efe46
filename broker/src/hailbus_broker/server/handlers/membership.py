"""Requests of brokers to the active controller: registration, heartbeats, in-sync replicas, ids, directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


def broker_registration(dispatcher: Dispatcher, _: Request, message: Any) -> Awaitable[Any]:
    """BrokerRegistration v0-4."""
    core = dispatcher.core
    return core.metadata.decide(
        lambda: core.controller.register(
            message,
            cluster_id=core.cluster_id,
            next_offset=core.metadata.next_offset,
            now_ms=core.clock.now_ms(),
        )
    )


def broker_heartbeat(dispatcher: Dispatcher, request: Request, message: Any) -> Awaitable[Any]:
    """BrokerHeartbeat v0-2."""
    core = dispatcher.core
    connection = getattr(request, "connection", None)  # a broker that is a controller, too, asks itself without one
    if connection is not None and core.controller_role is not None:
        core.controller_role.heard(connection, message.broker_id, message.broker_epoch)
    return core.metadata.decide(
        lambda: core.controller.heartbeat(message, next_offset=core.metadata.next_offset, now_ms=core.clock.now_ms())
    )


def controller_registration(dispatcher: Dispatcher, _: Request, message: Any) -> Awaitable[Any]:
    """ControllerRegistration v0."""
    core = dispatcher.core
    return core.metadata.decide(lambda: core.controller.register_controller(message))


def unregister_broker(dispatcher: Dispatcher, _: Request, message: Any) -> Awaitable[Any]:
    """UnregisterBroker v0."""
    core = dispatcher.core
    if core.roles.is_standalone and list(core.controller.image.brokers) == [message.broker_id]:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Broker {core.node_id} is the cluster's only broker: it stays registered."
        )
    return core.metadata.decide(lambda: core.controller.unregister(message.broker_id))


def alter_partition(dispatcher: Dispatcher, request: Request, message: Any) -> Awaitable[Any]:
    """AlterPartition v2-3."""
    core = dispatcher.core
    return core.metadata.decide(lambda: core.controller.alter_partition(message, version=request.version))


def allocate_producer_ids(dispatcher: Dispatcher, _: Request, message: Any) -> Awaitable[Any]:
    """AllocateProducerIds v0."""
    core = dispatcher.core
    return core.metadata.decide(lambda: core.controller.allocate_producer_ids_for(message))


def assign_replicas_to_dirs(dispatcher: Dispatcher, _: Request, message: Any) -> Awaitable[Any]:
    """AssignReplicasToDirs v0."""
    core = dispatcher.core
    return core.metadata.decide(lambda: core.controller.assign_replicas(message))
