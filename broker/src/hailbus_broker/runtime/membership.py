"""This node's membership in its cluster: registers it as a broker, sends heartbeats, and takes it out when it stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.broker_lifecycle import Action, BrokerLifecycle, LifecycleState
from hailbus_broker.cluster.features import REGISTERED
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.broker_heartbeat_request import BrokerHeartbeatRequest
from hailbus_broker.protocol.definitions.broker_registration_request import BrokerRegistrationRequest, Feature, Listener
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.controller_channel import ControllerChannel
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.quorum_probe import is_majority_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.runtime.node_core import NodeCore

log: Any = get_logger()

ATTEMPT_S: Final = 2.0
"""How long one registration or heartbeat looks for a controller before the lifecycle decides what is next.

The answer waits for a commit, so with slow disks or links a shorter time would never be enough.
"""
PATIENCE_MS: Final = 3_000
"""A broker that stops waits so long for an answer of a controller: a new one is elected in less."""
QUORUM_PROBE_S: Final = 0.1
"""Pause between two looks at the voters of a broker that stops."""
NO_CONTROLLED_SHUTDOWN_S: Final = 300.0
"""As Apache Kafka: a broker whose leaderships cannot be moved stops all the same after five minutes."""


class Membership:
    """Drives a `BrokerLifecycle`.

    Args:
        core: Of this node.
    """

    def __init__(self, core: NodeCore) -> None:
        config = core.config
        self._core: Final = core
        self._channel: Final = ControllerChannel(core, "heartbeats")
        self._incarnation_id: Final = core.rng.randbytes(16)
        self._lifecycle: Final = BrokerLifecycle(
            heartbeat_interval_ms=config["broker.heartbeat.interval.ms"],
            session_timeout_ms=config["broker.session.timeout.ms"],
            registration_timeout_ms=config["initial.broker.registration.timeout.ms"],
            patience_ms=PATIENCE_MS,
            now_ms=core.clock.now_ms(),
        )
        self._changed: Final = asyncio.Event()
        self._waiters: Final[dict[asyncio.Future[None], Callable[[], bool]]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def broker_epoch(self) -> int:
        """Of this incarnation; -1 before it is registered."""
        return self._lifecycle.broker_epoch

    @property
    def state(self) -> LifecycleState:
        """What the broker is doing."""
        return self._lifecycle.state

    @property
    def is_fenced(self) -> bool:
        """As the controller said last."""
        return self._lifecycle.is_fenced

    @property
    def may_be_deposed(self) -> bool:
        """Whether other brokers may lead by now what this broker believes that it leads."""
        return self._lifecycle.may_be_deposed(self._core.clock.now_ms())

    def start(self) -> None:
        """Register, and send heartbeats from then on."""
        self._task = self._core.spawn_vital(self._run(), "membership")

    async def until_caught_up(self) -> None:
        """Wait until this node is registered, and has applied the metadata up to its registration.

        Raises:
            StartError: It cannot be registered.
        """
        await self._until(lambda: self._lifecycle.state is not LifecycleState.STARTING)

    async def until_unfenced(self) -> None:
        """Tell the controller that this broker can lead, and wait until it may.

        Raises:
            StartError: Another broker has taken its place.
        """
        self._lifecycle.become_ready(self._core.clock.now_ms())
        self._changed.set()
        await self._until(lambda: not self._lifecycle.is_fenced)

    async def leave(self) -> None:
        """Wait until the controller has moved the leaderships of this broker, or until no controller can answer."""
        if self._task is None or self._task.done():
            return
        self._lifecycle.begin_shutdown(self._core.clock.now_ms())
        self._changed.set()
        watching = self._core.spawn(self._watch_quorum(), "quorum-probe")
        try:
            async with asyncio.timeout(NO_CONTROLLED_SHUTDOWN_S):
                await self._until(lambda: self._lifecycle.state is LifecycleState.SHUTTING_DOWN)
        except (StartError, TimeoutError) as error:
            log.warning("controlled_shutdown_given_up", reason=str(error) or "leaderships cannot be moved")
        finally:
            watching.cancel()

    async def _watch_quorum(self) -> None:
        """Wait for the controller no longer once no majority of the voters runs: the last node of a cluster stops."""
        while not await is_majority_gone(self._core):  # noqa: ASYNC110 looks at other processes
            await asyncio.sleep(QUORUM_PROBE_S)
        log.info("controlled_shutdown_given_up", reason="no majority of the controllers runs")
        self._lifecycle.quorum_lost()
        self._notify()

    async def close(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    # ------------------------------------------------------------------ the driver

    async def _until(self, condition: Callable[[], bool]) -> None:
        done: asyncio.Future[None] = self._core.loop.create_future()
        self._waiters[done] = condition
        self._notify()
        try:
            await done
        finally:
            self._waiters.pop(done, None)

    def _notify(self) -> bool:
        """Wake those whose condition is true, fail the others if it never will be, and return whether one has."""
        failure, has_failed = self._lifecycle.failure, False
        for done, condition in list(self._waiters.items()):
            if done.done():
                continue
            if condition():
                done.set_result(None)
            elif failure is not None:
                done.set_exception(StartError(failure))
                has_failed = True
        return has_failed

    async def _run(self) -> None:
        lifecycle, clock = self._lifecycle, self._core.clock
        while True:
            self._changed.clear()
            action = lifecycle.due(clock.now_ms())
            is_reported = self._notify()
            if lifecycle.failure is not None and not is_reported:
                self._core.become_unfit(StartError(lifecycle.failure))
            if lifecycle.is_over:
                return
            if action is not None:
                await self._do(action)
                continue
            deadline_ms = lifecycle.deadline_ms()
            assert deadline_ms is not None
            try:
                async with asyncio.timeout(max(deadline_ms - clock.now_ms(), 1) / 1_000):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _do(self, action: Action) -> None:
        key, request = (
            (ApiKey.BROKER_REGISTRATION, self._registration())
            if action is Action.REGISTER
            else (ApiKey.BROKER_HEARTBEAT, self._heartbeat())
        )
        code: ErrorCode | None = None
        reason, response = "", None
        try:
            response = await self._channel.ask(key, request, timeout_s=ATTEMPT_S)
            code = ErrorCode(response.error_code)
        except (UnreachableError, ApiError) as error:
            reason = str(error)
            if self._core.metadata.quorum.is_of_other_cluster:
                code = ErrorCode.INCONSISTENT_CLUSTER_ID
        now_ms = self._core.clock.now_ms()
        if response is None or code:
            self._failed(action, code, reason, now_ms)
        elif action is Action.REGISTER:
            self._lifecycle.registered(response.broker_epoch, now_ms)
            log.info("broker_registered", broker_epoch=response.broker_epoch)
        else:
            was_fenced = self._lifecycle.is_fenced
            self._lifecycle.heartbeat_answered(
                is_caught_up=response.is_caught_up,
                is_fenced=response.is_fenced,
                should_shut_down=response.should_shut_down,
                now_ms=now_ms,
            )
            if was_fenced != response.is_fenced:
                log.info("broker_fenced" if response.is_fenced else "broker_unfenced", broker_epoch=self.broker_epoch)

    def _failed(self, action: Action, code: ErrorCode | None, reason: str, now_ms: int) -> None:
        refusal = None if code is None else code.name
        if action is Action.REGISTER:
            if refusal is None:
                log.info("registration_not_answered", error=reason)  # as long as the quorum elects its first leader
            else:
                log.warning("registration_refused", error=refusal)
            self._lifecycle.registration_failed(code, reason, now_ms)
            return
        log.warning("heartbeat_failed", error=refusal or reason)
        if code is ErrorCode.STALE_BROKER_EPOCH:
            registered = self._core.image.brokers.get(self._core.node_id)
            if (
                registered is not None
                and registered.broker_epoch > self.broker_epoch
                and registered.incarnation_id != self._incarnation_id
            ):
                self._lifecycle.replaced()
        self._lifecycle.heartbeat_failed(now_ms)

    # ------------------------------------------------------------------ requests

    def _registration(self) -> BrokerRegistrationRequest:
        core = self._core
        return BrokerRegistrationRequest(
            broker_id=core.node_id,
            cluster_id=core.cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(name=one.name, host=one.advertised_host, port=one.advertised_port, security_protocol=0)
                for one in core.listeners
            ],
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(REGISTERED.items())
            ],
            rack=core.config["broker.rack"],
            log_dirs=[core.data.directory_id],
            previous_broker_epoch=core.data.previous_broker_epoch,
        )

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        core, lifecycle = self._core, self._lifecycle
        return BrokerHeartbeatRequest(
            broker_id=core.node_id,
            broker_epoch=lifecycle.broker_epoch,
            current_metadata_offset=core.publisher.applied_end_offset - 1,
            want_fence=lifecycle.wants_fence,
            want_shut_down=lifecycle.wants_shut_down,
        )
