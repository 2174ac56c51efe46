"""Tells the active controller where this node's controller listens, and which features it supports (KIP-919)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.features import REGISTERED
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.controller_registration_request import (
    ControllerRegistrationRequest,
    Feature,
    Listener,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.controller_channel import ControllerChannel

if TYPE_CHECKING:
    from hailbus_broker.runtime.node_core import NodeCore

log: Any = get_logger()

ATTEMPT_S: Final = 10.0
RETRY_S: Final = 1.0


async def register_controller(core: NodeCore) -> None:
    """Register this node's controller, and try until it is: another node, or this one, may be elected meanwhile.

    Args:
        core: Of the node; its listeners are bound.
    """
    channel = ControllerChannel(core, "registration")
    request = ControllerRegistrationRequest(
        controller_id=core.node_id,
        incarnation_id=core.rng.randbytes(16),
        zk_migration_ready=False,
        listeners=[
            Listener(name=one.name, host=one.advertised_host, port=one.advertised_port, security_protocol=0)
            for one in core.controller_listeners or core.listeners
        ],
        features=[
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(REGISTERED.items())
        ],
    )
    try:
        while True:
            try:
                response = await channel.ask(ApiKey.CONTROLLER_REGISTRATION, request, timeout_s=ATTEMPT_S)
            except (UnreachableError, ApiError) as error:
                reason = str(error)
            else:
                if not response.error_code:
                    return
                reason = ErrorCode(response.error_code).name
            log.info("controller_not_registered", error=reason)
            await asyncio.sleep(RETRY_S)
    finally:
        await channel.close()
