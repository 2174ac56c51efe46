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
    """One partition of a fetch, and what the client was last told of it."""

    topic: str
    topic_id: Uuid
    index: int
    offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
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

    Args:
        capacity: Sessions that are remembered; 0 switches them off.
        rng: For session ids.
    """

    def __init__(self, capacity: int, rng: random.Random) -> None:
        self._capacity = capacity
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def open(self, entries: list[FetchEntry], *, uses_ids: bool) -> FetchSession | None:
        """Begin a session, if there is room for one."""
        if not self._capacity or not entries:
            return None
        while len(self._sessions) >= self._capacity:
            self._sessions.popitem(last=False)
        session_id = 0
        while session_id == INVALID_SESSION_ID or session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = FetchSession(session_id, 1, uses_ids)
        session.entries = {(entry.topic, entry.topic_id, entry.index): entry for entry in entries}
        self._sessions[session_id] = session
        return session

    def get(self, session_id: int) -> FetchSession | None:
        """A session by its id."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        """End a session."""
        self._sessions.pop(session_id, None)

    def __len__(self) -> int:
        return len(self._sessions)
