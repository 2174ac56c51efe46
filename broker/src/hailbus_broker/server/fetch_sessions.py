"""Incremental fetch sessions (KIP-227): what a client fetches is remembered, so that it only says what changes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from hailbus_broker.protocol.schema import Uuid

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


@dataclass(slots=True)
class FetchEntry:
    """One partition of a fetch, and what the client was last told of it.

    Attributes:
        follower_log_start_offset: Where the log of the follower starts that fetches; -1 of a client.
    """

    topic: str
    topic_id: Uuid
    index: int
    offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    follower_log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    had_error: bool = False


@dataclass(slots=True)
class FetchSession:
    """One client's session.

    Attributes:
        epoch: What the next request must carry.
        entries: The partitions in the order in which they are read.
    """

    session_id: int
    epoch: int
    uses_ids: bool
    entries: dict[tuple[str, Uuid, int], FetchEntry] = field(default_factory=dict)

    def rotate(self, served: Sequence[FetchEntry]) -> None:
        """Move the partitions that brought records behind the others.

        Answers are bounded in bytes: in a fixed order the first partitions could use up each of them.
        """
        entries = self.entries
        if len(served) == len(entries):
            return  # the order would stay
        for entry in served:
            key = (entry.topic, entry.topic_id, entry.index)
            remembered = entries.pop(key, None)
            if remembered is not None:
                entries[key] = remembered


class FetchSessions:
    """The sessions of a broker, at most `capacity`; the one that was not used for longest gives way.

    Followers have theirs beside these: however many clients there are, a follower fetches incrementally.

    Args:
        capacity: Sessions that are remembered; 0 switches them off.
        rng: For session ids.
    """

    def __init__(self, capacity: int, rng: random.Random) -> None:
        self._capacity = capacity
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._of_followers: dict[int, FetchSession] = {}
        """By session id: one for each broker that follows."""
        self._by_follower: dict[int, int] = {}

    def open(self, entries: list[FetchEntry], *, uses_ids: bool, follower_id: int = -1) -> FetchSession | None:
        """Begin a session, if there is room for one.

        Args:
            entries: What is fetched.
            uses_ids: Whether the request names topics by their ids.
            follower_id: Of the registered broker that fetches, whose session before this one ends; -1 for a client.
        """
        if not self._capacity or not entries:
            return None
        session_id = 0
        while session_id == INVALID_SESSION_ID or session_id in self._sessions or session_id in self._of_followers:
            session_id = self._rng.randrange(1, 2**31)
        session = FetchSession(session_id, 1, uses_ids)
        session.entries = {(entry.topic, entry.topic_id, entry.index): entry for entry in entries}
        if follower_id >= 0:
            self._of_followers.pop(self._by_follower.get(follower_id, INVALID_SESSION_ID), None)
            self._by_follower[follower_id] = session_id
            self._of_followers[session_id] = session
            return session
        while len(self._sessions) >= self._capacity:
            self._sessions.popitem(last=False)
        self._sessions[session_id] = session
        return session

    def get(self, session_id: int) -> FetchSession | None:
        """A session by its id."""
        session = self._sessions.get(session_id)
        if session is None:
            return self._of_followers.get(session_id)
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        """End a session."""
        self._sessions.pop(session_id, None)
        self._of_followers.pop(session_id, None)

    def __len__(self) -> int:
        return len(self._sessions) + len(self._of_followers)
