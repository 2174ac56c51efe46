"""A node asks the active controller through its channel, wherever that is, and asks again when it has changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.client import UnreachableError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions import broker_registration_request, unregister_broker_request
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.controller_channel import ControllerChannel
from hailbus_broker.testing.simulation import simulated
from hailbus_broker.testing.simulation.loop import SimulatedLoop

from tests.integration.broker.simulation.controllers import CLUSTER_ID, Controllers

if TYPE_CHECKING:
    from tests.integration.broker.simulation.controllers import SimulatedController


def controllers() -> Controllers:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return Controllers(loop.world, 3)


def registration(node_id: int) -> broker_registration_request.BrokerRegistrationRequest:
    endpoint = broker_registration_request.Listener(
        name="PLAINTEXT", host=f"broker{node_id}", port=9092, security_protocol=0
    )
    return broker_registration_request.BrokerRegistrationRequest(
        broker_id=node_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=bytes([node_id]) * 16,
        listeners=[endpoint],
        log_dirs=[bytes([node_id]) * 16],
    )


async def ask(node: SimulatedController, key: ApiKey, message: Any, *, timeout_s: float = 30) -> Any:
    """Ask as the node does."""

    async def run() -> Any:
        channel = ControllerChannel(node.core, "test")
        try:
            return await channel.ask(key, message, timeout_s=timeout_s)
        finally:
            await channel.close()

    return await node.process.start(run())


@simulated(seeds=range(3))
async def test_every_node_reaches_the_active_controller() -> None:
    quorum = controllers()
    await quorum.start()
    active = await quorum.until_one_is_active()
    for number, node in enumerate(quorum.all):
        response = await ask(node, ApiKey.BROKER_REGISTRATION, registration(11 + number))
        assert (response.error_code, 11 + number in active.core.image.brokers) == (ErrorCode.NONE, True)


@simulated(seeds=range(3))
async def test_a_refusal_is_a_response_with_a_code_on_every_node() -> None:
    quorum = controllers()
    await quorum.start()
    request = unregister_broker_request.UnregisterBrokerRequest(broker_id=77)
    await quorum.until_one_is_active()
    codes = [(await ask(node, ApiKey.UNREGISTER_BROKER, request)).error_code for node in quorum.all]
    assert codes == [ErrorCode.BROKER_ID_NOT_REGISTERED] * 3


@simulated(seeds=range(5))
async def test_a_request_survives_the_death_of_the_controller() -> None:
    quorum = controllers()
    await quorum.start()
    first = await quorum.until_one_is_active()
    other = next(node for node in quorum.all if node is not first)
    first.kill()
    response = await ask(other, ApiKey.BROKER_REGISTRATION, registration(11))
    assert response.error_code == ErrorCode.NONE
    second = await quorum.until_one_is_active()
    assert list(second.core.image.brokers) == [11]


@simulated(seeds=range(3))
async def test_a_request_survives_a_controller_that_is_cut_off() -> None:
    quorum = controllers()
    await quorum.start()
    first = await quorum.until_one_is_active()
    others = [node for node in quorum.all if node is not first]
    for node in others:
        quorum.world.network.cut(first.name, node.name)
    # The one that is cut off believes to be active for a while; its request waits for the end of the cut.
    waiting = asyncio.ensure_future(ask(first, ApiKey.BROKER_REGISTRATION, registration(12), timeout_s=60))
    response = await ask(others[0], ApiKey.BROKER_REGISTRATION, registration(11))
    assert response.error_code == ErrorCode.NONE
    assert not waiting.done()
    quorum.world.network.heal_all()
    assert (await waiting).error_code == ErrorCode.NONE
    active = await quorum.until_one_is_active()
    assert sorted(active.core.image.brokers) == [11, 12]


@simulated()
async def test_without_a_quorum_a_request_ends_in_time() -> None:
    quorum = controllers()
    await quorum.start()
    first = await quorum.until_one_is_active()
    others = [node for node in quorum.all if node is not first]
    for node in others:
        node.kill()
    began_s = quorum.world.loop.now_s
    with pytest.raises(UnreachableError, match=r"no controller has answered BROKER_REGISTRATION within 20 s"):
        await ask(first, ApiKey.BROKER_REGISTRATION, registration(11), timeout_s=20)
    assert 19.99 < quorum.world.loop.now_s - began_s < 21
