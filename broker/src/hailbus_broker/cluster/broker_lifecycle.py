"""What a broker tells the controller, and when: registration, heartbeats, controlled shutdown (KIP-631)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from hailbus_broker.protocol.errors import ErrorCode

FIRST_BACKOFF_MS: Final = 100
SOON_MS: Final = 20
"""A broker that the controller is about to unfence or to let stop asks again after this, then twice as long, and so on
up to the interval of heartbeats."""

_FINAL: Final = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "its data directory belongs to another cluster than the controllers: correct "
    "controller.quorum.voters, or format an empty directory with the cluster id of the controllers",
    ErrorCode.INVALID_REGISTRATION: "the controller refuses its listeners or its log directories: each listener needs "
    "a name of its own, and no two brokers may have the same directory id",
    ErrorCode.UNSUPPORTED_VERSION: "it does not support a feature level that the cluster has finalised: install the "
    "version that the other brokers have",
}
"""Refusals that no repetition changes, and what to do about them."""


class LifecycleState(IntEnum):
    """What the broker is doing; the numbers are those of Kafka's `BrokerState`."""

    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Action(IntEnum):
    """What the driver sends to the active controller."""

    REGISTER = 1
    HEARTBEAT = 2


class BrokerLifecycle:
    """Decides what a broker sends to the controller, from what the controller answers.

    | In state | after | it becomes |
    |---|---|---|
    | STARTING | a heartbeat's answer that says "caught up" | RECOVERY |
    | RECOVERY | a heartbeat's answer that says "not fenced" | RUNNING |
    | any of these | `begin_shutdown`, if it is registered | PENDING_CONTROLLED_SHUTDOWN |
    | PENDING_CONTROLLED_SHUTDOWN | an answer that lets it stop, none for too long, or a lost quorum | SHUTTING_DOWN |

    A broker that is fenced while it runs stays RUNNING and sends heartbeats, and the controller unfences it.

    Args:
        heartbeat_interval_ms: `broker.heartbeat.interval.ms`.
        session_timeout_ms: `broker.session.timeout.ms`.
        registration_timeout_ms: `initial.broker.registration.timeout.ms`.
        patience_ms: A broker that stops waits so long for an answer of a controller.
        now_ms: Time.

    Attributes:
        broker_epoch: That the controller has given; -1 before.
        is_fenced: As the controller said last.
        failure: Why the broker must stop: a sentence for the person who started it.
    """

    def __init__(
        self,
        *,
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        registration_timeout_ms: int,
        patience_ms: int,
        now_ms: int,
    ) -> None:
        self.state = LifecycleState.STARTING
        self.broker_epoch = -1
        self.is_fenced = True
        self.failure: str | None = None
        self._heartbeat_interval_ms: Final = heartbeat_interval_ms
        self._session_timeout_ms: Final = session_timeout_ms
        self._longest_backoff_ms: Final = max(session_timeout_ms // 2, FIRST_BACKOFF_MS)
        self._registration_timeout_ms: Final = registration_timeout_ms
        self._patience_ms: Final = patience_ms
        self._began_ms: Final = now_ms
        self._next_ms = now_ms
        self._sent_ms = now_ms
        self._session_began_ms = now_ms
        self._failed_count = 0
        self._impatience_count = 0
        self._is_in_flight = False
        self._is_ready = False
        self._give_up_ms: int | None = None

    # ------------------------------------------------------------------ what the driver asks

    @property
    def wants_fence(self) -> bool:
        """Whether the broker cannot lead yet."""
        return not self._is_ready

    @property
    def wants_shut_down(self) -> bool:
        """Whether the broker is about to stop."""
        return self.state is LifecycleState.PENDING_CONTROLLED_SHUTDOWN

    @property
    def is_over(self) -> bool:
        """Whether nothing is sent any more."""
        return self.failure is not None or self.state is LifecycleState.SHUTTING_DOWN

    def may_be_deposed(self, now_ms: int) -> bool:
        """Return whether other brokers may lead by now what this broker believes that it leads.

        The session counts from when the last answered heartbeat was sent, so it ends here no later than it does for the
        controller.
        """
        return self.is_fenced or now_ms - self._session_began_ms >= self._session_timeout_ms

    def deadline_ms(self) -> int | None:
        """Return when `due` has something to do; None while a request is under way, or nothing is sent any more."""
        if self.is_over:
            return None
        if self._give_up_ms is not None:
            return self._give_up_ms if self._is_in_flight else min(self._next_ms, self._give_up_ms)
        return None if self._is_in_flight else self._next_ms

    def due(self, now_ms: int) -> Action | None:
        """Return what to send now; its answer, or that there is none, has to be reported before the next."""
        if self._give_up_ms is not None and now_ms >= self._give_up_ms:
            self.state = LifecycleState.SHUTTING_DOWN
        if self.is_over or self._is_in_flight or now_ms < self._next_ms:
            return None
        self._is_in_flight = True
        self._sent_ms = now_ms
        return Action.REGISTER if self.broker_epoch < 0 else Action.HEARTBEAT

    # ------------------------------------------------------------------ answers

    def registered(self, broker_epoch: int, now_ms: int) -> None:
        """Take in the controller's answer to the registration."""
        self._answered()
        self.broker_epoch = broker_epoch
        self._next_ms = now_ms

    def registration_failed(self, code: ErrorCode | None, reason: str, now_ms: int) -> None:
        """Take in that the controller has refused the registration, or that nobody has answered (no code)."""
        advice = None if code is None else _FINAL.get(code)
        if advice is not None:
            self.failure = f"cannot join the cluster: {advice}"
        elif now_ms - self._began_ms >= self._registration_timeout_ms:
            self.failure = f"cannot join the cluster within {self._registration_timeout_ms} ms: {_reason(code, reason)}"
        self._failed(now_ms)

    def heartbeat_answered(self, *, is_caught_up: bool, is_fenced: bool, should_shut_down: bool, now_ms: int) -> None:
        """Take in the controller's answer to a heartbeat."""
        self._answered()
        self._session_began_ms = self._sent_ms
        self.is_fenced = is_fenced
        self._next_ms = now_ms + self._heartbeat_interval_ms
        match self.state:
            case LifecycleState.STARTING:
                if is_caught_up:
                    self.state = LifecycleState.RECOVERY
                if self._is_ready or not is_caught_up:
                    self._ask_again_soon(now_ms)
            case LifecycleState.RECOVERY if not is_fenced:
                self.state = LifecycleState.RUNNING
            case LifecycleState.RECOVERY | LifecycleState.RUNNING if is_fenced and self._is_ready:
                self._ask_again_soon(now_ms)
            case LifecycleState.PENDING_CONTROLLED_SHUTDOWN:
                if should_shut_down:
                    self.state = LifecycleState.SHUTTING_DOWN
                    return
                self._give_up_ms = now_ms + self._patience_ms
                self._ask_again_soon(now_ms)
            case _:
                self._impatience_count = 0

    def heartbeat_failed(self, now_ms: int) -> None:
        """Take in that the controller has refused a heartbeat, or that nobody has answered."""
        self._failed(now_ms)

    def replaced(self) -> None:
        """Another process has registered with this broker's id: two must not run."""
        self.failure = (
            "another broker has registered with the same node.id, and this one stops: give each node of the cluster an "
            "id of its own"
        )

    # ------------------------------------------------------------------ what the broker decides

    def become_ready(self, now_ms: int) -> None:
        """The broker can lead: its logs are open, and clients can connect."""
        self._is_ready = True
        self._next_ms = now_ms

    def begin_shutdown(self, now_ms: int) -> None:
        """Stop as soon as the controller has moved the leaderships away."""
        if self.is_over or self.wants_shut_down:
            return
        if self.broker_epoch < 0:
            self.state = LifecycleState.SHUTTING_DOWN
            return
        self.state = LifecycleState.PENDING_CONTROLLED_SHUTDOWN
        self._give_up_ms = now_ms + self._patience_ms
        self._impatience_count = 0
        self._next_ms = now_ms

    def quorum_lost(self) -> None:
        """No majority of the controllers runs, so a broker that stops waits for nothing any more."""
        if self.wants_shut_down:
            self.state = LifecycleState.SHUTTING_DOWN

    def _answered(self) -> None:
        self._is_in_flight = False
        self._failed_count = 0

    def _failed(self, now_ms: int) -> None:
        self._is_in_flight = False
        self._next_ms = now_ms + min(FIRST_BACKOFF_MS << min(self._failed_count, 16), self._longest_backoff_ms)
        self._failed_count += 1

    def _ask_again_soon(self, now_ms: int) -> None:
        self._next_ms = now_ms + min(SOON_MS << min(self._impatience_count, 16), self._heartbeat_interval_ms)
        self._impatience_count += 1


def _reason(code: ErrorCode | None, reason: str) -> str:
    if code is None:
        return f"{reason}; check that controllers run where controller.quorum.voters says"
    if code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
        return "another broker with the same node.id is registered and sends heartbeats; give this one another node.id"
    return f"the controller refuses it: {code.name}"
