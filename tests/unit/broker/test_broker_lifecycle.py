"""What a broker sends to the controller, and when."""

from __future__ import annotations

from typing import Any

import pytest
from hailbus_broker.cluster.broker_lifecycle import Action, BrokerLifecycle, LifecycleState
from hailbus_broker.protocol.errors import ErrorCode

INTERVAL_MS = 2_000
SESSION_MS = 9_000


def lifecycle(**changed: Any) -> BrokerLifecycle:
    settings: dict[str, Any] = {
        "heartbeat_interval_ms": INTERVAL_MS,
        "session_timeout_ms": SESSION_MS,
        "registration_timeout_ms": 60_000,
        "patience_ms": 3_000,
        "now_ms": 0,
    }
    return BrokerLifecycle(**settings | changed)


def answer(
    broker: BrokerLifecycle, now_ms: int, *, caught_up: bool = True, fenced: bool = False, stop: bool = False
) -> None:
    assert broker.due(now_ms) is Action.HEARTBEAT
    broker.heartbeat_answered(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=stop, now_ms=now_ms)


def running() -> BrokerLifecycle:
    broker = lifecycle()
    assert broker.due(0) is Action.REGISTER
    broker.registered(7, 0)
    answer(broker, 0, fenced=True)
    broker.become_ready(0)
    answer(broker, 0)
    assert broker.state is LifecycleState.RUNNING
    return broker


def test_a_broker_registers_catches_up_and_runs_when_it_is_unfenced() -> None:
    broker = lifecycle()
    assert broker.due(0) is Action.REGISTER
    assert broker.due(0) is None  # the answer is still to come
    broker.registered(7, 10)
    assert (broker.broker_epoch, broker.wants_fence) == (7, True)
    answer(broker, 10, caught_up=False, fenced=True)
    assert LifecycleState(broker.state) is LifecycleState.STARTING
    again_ms = broker.deadline_ms()
    assert again_ms is not None
    assert 10 < again_ms < 10 + INTERVAL_MS
    answer(broker, again_ms, fenced=True)
    assert broker.state is LifecycleState.RECOVERY
    broker.become_ready(again_ms)
    assert not broker.wants_fence
    answer(broker, again_ms)
    assert (broker.state, broker.is_fenced) == (LifecycleState.RUNNING, False)
    assert broker.deadline_ms() == again_ms + INTERVAL_MS


def test_a_broker_that_is_fenced_while_it_runs_asks_again_soon() -> None:
    broker = running()
    answer(broker, INTERVAL_MS, fenced=True)
    assert (broker.is_fenced, broker.state, broker.wants_fence) == (True, LifecycleState.RUNNING, False)
    again_ms = broker.deadline_ms()
    assert again_ms is not None
    assert again_ms < 2 * INTERVAL_MS
    answer(broker, again_ms)
    assert not broker.is_fenced
    assert broker.deadline_ms() == again_ms + INTERVAL_MS


def test_heartbeats_without_an_answer_are_sent_again_after_a_longer_and_longer_wait() -> None:
    broker = running()
    now_ms, waits = INTERVAL_MS, []
    for _ in range(8):
        assert broker.due(now_ms) is Action.HEARTBEAT
        broker.heartbeat_failed(now_ms)
        again_ms = broker.deadline_ms()
        assert again_ms is not None
        waits.append(again_ms - now_ms)
        now_ms = again_ms
    assert waits == [100, 200, 400, 800, 1_600, 3_200, SESSION_MS // 2, SESSION_MS // 2]
    answer(broker, now_ms)
    assert broker.deadline_ms() == now_ms + INTERVAL_MS


def test_a_broker_may_be_deposed_when_its_session_is_over_until_it_is_unfenced_again() -> None:
    broker = lifecycle()
    assert broker.may_be_deposed(0), "it is not unfenced yet"
    broker = running()
    assert broker.due(INTERVAL_MS) is Action.HEARTBEAT
    late_ms = 2 * INTERVAL_MS
    broker.heartbeat_answered(is_caught_up=True, is_fenced=False, should_shut_down=False, now_ms=late_ms)
    # The controller has heard of it when the heartbeat was sent, or later.
    assert not broker.may_be_deposed(INTERVAL_MS + SESSION_MS - 1)
    assert broker.may_be_deposed(INTERVAL_MS + SESSION_MS)
    assert broker.due(INTERVAL_MS + SESSION_MS) is Action.HEARTBEAT
    broker.heartbeat_failed(INTERVAL_MS + SESSION_MS)
    assert broker.may_be_deposed(INTERVAL_MS + SESSION_MS)
    now_ms = 3 * SESSION_MS
    answer(broker, now_ms, fenced=True)
    assert broker.may_be_deposed(now_ms)
    again_ms = broker.deadline_ms()
    assert again_ms is not None
    answer(broker, again_ms)
    assert not broker.may_be_deposed(again_ms)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "belongs to another cluster"),
        (ErrorCode.INVALID_REGISTRATION, "its listeners or its log directories"),
        (ErrorCode.UNSUPPORTED_VERSION, "feature level"),
    ],
)
def test_a_refusal_that_stays_ends_the_start_with_advice(code: ErrorCode, advice: str) -> None:
    broker = lifecycle()
    assert broker.due(0) is Action.REGISTER
    broker.registration_failed(code, "", 0)
    assert broker.is_over
    assert advice in (broker.failure or "")
    assert broker.due(100_000) is None


@pytest.mark.parametrize(
    ("code", "advice"),
    [(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "give this one another node.id"), (None, "check that controllers run")],
)
def test_a_broker_that_cannot_register_gives_up_in_time(code: ErrorCode | None, advice: str) -> None:
    broker = lifecycle(registration_timeout_ms=5_000)
    now_ms = 0
    while broker.failure is None:
        assert broker.due(now_ms) is Action.REGISTER
        broker.registration_failed(code, "nobody answers", now_ms)
        if broker.failure is None:
            again_ms = broker.deadline_ms()
            assert again_ms is not None
            now_ms = again_ms
    assert 5_000 <= now_ms < 10_000
    assert advice in broker.failure


def test_a_broker_stops_when_the_controller_lets_it() -> None:
    broker = running()
    broker.begin_shutdown(500)
    assert broker.wants_shut_down
    answer(broker, 500)
    assert not broker.is_over
    again_ms = broker.deadline_ms()
    assert again_ms is not None
    answer(broker, again_ms, fenced=True, stop=True)
    assert (broker.state, broker.deadline_ms()) == (LifecycleState.SHUTTING_DOWN, None)


def test_a_broker_that_gets_no_answer_stops_by_itself() -> None:
    broker = running()
    broker.begin_shutdown(500)
    assert broker.due(500) is Action.HEARTBEAT
    assert broker.deadline_ms() == 3_500  # also while the request is under way
    broker.heartbeat_failed(600)
    assert broker.due(3_499) is Action.HEARTBEAT
    broker.heartbeat_failed(3_499)
    assert broker.due(3_500) is None
    assert broker.state is LifecycleState.SHUTTING_DOWN


def test_a_broker_stops_at_once_when_the_quorum_is_lost() -> None:
    broker = running()
    broker.quorum_lost()
    assert broker.state is LifecycleState.RUNNING  # it may come back
    broker.begin_shutdown(500)
    broker.quorum_lost()
    assert broker.is_over
    assert broker.due(500) is None


def test_a_broker_that_was_never_registered_stops_at_once() -> None:
    broker = lifecycle()
    broker.begin_shutdown(0)
    assert broker.state is LifecycleState.SHUTTING_DOWN


def test_a_broker_that_was_replaced_says_why_it_stops() -> None:
    broker = running()
    broker.replaced()
    assert broker.is_over
    assert "same node.id" in (broker.failure or "")
