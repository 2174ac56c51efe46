"""The requests that a replica has sent and that nobody has answered yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.cluster.raft.messages import Request


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A request without an answer.

    Attributes:
        number: By which the answer names it.
        to: Node id of the receiver, negative for a bootstrap server.
    """

    number: int
    to: int
    request: Request


class Requests:
    """At most one request of a kind to a node at a time, and a pause after one that failed."""

    def __init__(self) -> None:
        self._last_number = 0
        self._outstanding: dict[tuple[int, type[Request]], Outstanding] = {}
        self._not_before_ms: dict[tuple[int, type[Request]], int] = {}
        self._unanswered: dict[tuple[int, type[Request]], int] = {}
        """How many requests got no response, one after another."""

    def clear(self) -> None:
        """Forget all: what is answered from now on was asked in another role."""
        self._outstanding.clear()
        self._not_before_ms.clear()
        self._unanswered.clear()

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        for key in [key for key, time_ms in self._not_before_ms.items() if time_ms <= now_ms]:
            del self._not_before_ms[key]

    def deadlines_ms(self) -> Iterable[int]:
        """When pauses end."""
        return self._not_before_ms.values()

    def is_free(self, to: int, kind: type[Request]) -> bool:
        """Whether a request of this kind may be sent to a node now."""
        return (to, kind) not in self._outstanding and (to, kind) not in self._not_before_ms

    def has(self, kind: type[Request]) -> bool:
        """Whether a request of this kind waits for its answer."""
        return any(other is kind for _, other in self._outstanding)

    def begin(self, to: int, request: Request) -> int:
        """A request is sent; its number."""
        self._last_number += 1
        self._outstanding[to, type(request)] = Outstanding(self._last_number, to, request)
        return self._last_number

    def end(self, number: int) -> Outstanding | None:
        """A request was answered, or failed; None if it is forgotten."""
        for key, outstanding in self._outstanding.items():
            if outstanding.number == number:
                del self._outstanding[key]
                return outstanding
        return None

    def answered(self, outstanding: Outstanding) -> None:
        """A request got a response."""
        self._unanswered.pop((outstanding.to, type(outstanding.request)), None)

    def unanswered(self, outstanding: Outstanding) -> int:
        """Count a request that got no response; return how many there were before it, one after another."""
        key = (outstanding.to, type(outstanding.request))
        before = self._unanswered.get(key, 0)
        self._unanswered[key] = before + 1
        return before

    def pause(self, to: int, kind: type[Request], until_ms: int) -> None:
        """Send no request of this kind to a node before a time."""
        self._not_before_ms[to, kind] = until_ms
