"""Sessions of followers stay, whatever clients do."""

from __future__ import annotations

import random

from hailbus_broker.server.fetch_sessions import FetchEntry, FetchSession, FetchSessions


def opened(sessions: FetchSessions, follower_id: int = -1) -> FetchSession:
    entry = FetchEntry("rides", bytes(16), 0, 0, 100, -1, -1)
    session = sessions.open([entry], uses_ids=True, follower_id=follower_id)
    assert session is not None
    return session


def test_clients_do_not_take_the_session_of_a_follower() -> None:
    sessions = FetchSessions(2, random.Random(0))
    follower = opened(sessions, follower_id=2)
    first, second, third = (opened(sessions) for _ in range(3))
    assert sessions.get(first.session_id) is None, "the oldest of the clients gives way"
    assert sessions.get(second.session_id) is second
    assert sessions.get(third.session_id) is third
    assert sessions.get(follower.session_id) is follower
    assert len(sessions) == 3


def test_a_follower_has_one_session() -> None:
    sessions = FetchSessions(2, random.Random(0))
    first, other = opened(sessions, follower_id=2), opened(sessions, follower_id=3)
    second = opened(sessions, follower_id=2)
    assert sessions.get(first.session_id) is None
    assert sessions.get(second.session_id) is second
    assert sessions.get(other.session_id) is other
    sessions.close(second.session_id)
    assert sessions.get(second.session_id) is None
