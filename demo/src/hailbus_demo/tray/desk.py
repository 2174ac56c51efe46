"""Decides which fault may begin and when the city has recovered from it: plain state, no I/O.

| State | Event | Next state |
|---|---|---|
| idle, recovered, failed | begin | running |
| running | recover | recovered |
| running | fail | failed |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

State = Literal["idle", "running", "recovered", "failed"]
Event = Literal["begin", "recover", "fail"]
TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    ("idle", "begin"): "running",
    ("recovered", "begin"): "running",
    ("failed", "begin"): "running",
    ("running", "recover"): "recovered",
    ("running", "fail"): "failed",
}
LAG_BOUND_S: Final = 5.0
"""A group that is less far behind keeps up: the bound of the health strip."""
GIVES_UP_AFTER_S: Final = 180.0
"""A city that has not recovered by then has failed; the page names what is still wrong."""
_EXACT_S: Final = 0.001
"""Looks at the cluster are a second apart; this only covers the rounding of their times."""


class UnknownFaultError(Exception):
    """Nobody offers a fault of that id."""


class FaultRefusedError(Exception):
    """The fault cannot begin now; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A fault that can be caused.

    Attributes:
        id: Its name in addresses.
        label: What the button says.
        expected: What is expected to happen, in words.
        processes: The processes that must serve before it can begin.
    """

    id: str
    label: str
    expected: str
    processes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the demo's own watch knows of the city.

    Attributes:
        at_s: When it last saw the cluster, in monotonic seconds.
        away: Each process that does not serve, with its state.
        behind_s: The age of the oldest record that each group has not applied; 0 for a group that has read everything.
    """

    at_s: float
    away: Mapping[str, str]
    behind_s: Mapping[str, float]


@dataclass(slots=True)
class _Record:
    """One offered fault, and how its last run went."""

    offer: Offer
    state: State = "idle"
    began_s: float = 0.0
    took_s: float | None = None
    words: str = ""
    done_s: float | None = None
    """When the fault itself was over: the process killed, the outage ended."""
    ready_s: float | None = None
    """Since when every process has served again."""
    mark_s: float | None = None
    """The first look after that. What the log held then is what every group must apply."""


class FaultDesk:
    """Runs one fault at a time.

    A city has recovered when every process serves again, every group has applied all that the log held at that
    moment, and no group is `LAG_BOUND_S` behind. No timer decides it.
    """

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._records = {offer.id: _Record(offer) for offer in offers}
        self._closed: str | None = "the city is still starting: wait until its rides begin"

    @property
    def running(self) -> Offer | None:
        """The fault that runs now."""
        return next((record.offer for record in self._records.values() if record.state == "running"), None)

    @property
    def closed(self) -> str | None:
        """Why no fault can begin; None while one can."""
        return self._closed

    def open(self) -> None:
        """Let faults begin."""
        self._closed = None

    def close(self, why: str) -> None:
        """Let no further fault begin. The one that runs continues."""
        self._closed = why

    def begin(self, fault_id: str, look: Look, *, now_s: float) -> Offer:
        """Begin a fault.

        Raises:
            UnknownFaultError: There is none of that id.
            FaultRefusedError: The desk is closed, another fault runs, or a process that the fault needs is away.
        """
        record = self._records.get(fault_id)
        if record is None:
            raise UnknownFaultError(f"there is no fault {fault_id!r}: choose one of {', '.join(self._records)}")
        if self._closed is not None:
            raise FaultRefusedError(self._closed)
        running = self.running
        if running is not None:
            raise FaultRefusedError(f"{running.label!r} still runs: wait until the city has recovered")
        for name in record.offer.processes:
            if name in look.away:
                raise FaultRefusedError(f"{name} is {look.away[name]}: wait until it serves")
        self._move(record, "begin")
        record.began_s, record.took_s, record.words = now_s, None, "the fault is on"
        record.done_s = record.ready_s = record.mark_s = None
        return record.offer

    def done(self, *, now_s: float) -> None:
        """Note that the fault itself is over: from now on the city recovers."""
        record = self._current()
        record.done_s, record.words = now_s, ""

    def fail(self, why: str, *, now_s: float) -> None:
        """Note that the fault could not be caused or undone, or that the city does not recover."""
        record = self._current()
        self._move(record, "fail")
        record.took_s, record.words = now_s - record.began_s, why

    def judge(self, look: Look, *, now_s: float) -> None:
        """Decide whether the city has recovered from the fault that runs."""
        record = self._current()
        if record.done_s is None:
            return
        given_up = [name for name, state in look.away.items() if state == "failed"]
        if given_up:
            self.fail(f"{', '.join(given_up)} does not come back", now_s=now_s)
            return
        if look.away:
            record.ready_s = record.mark_s = None
        elif record.ready_s is None:
            record.ready_s = now_s
        if record.ready_s is not None and record.mark_s is None and look.at_s > record.ready_s:
            record.mark_s = look.at_s
        if record.mark_s is not None and look.at_s > record.mark_s and not self._late(look, record.mark_s):
            self._move(record, "recover")
            record.took_s, record.words = look.at_s - record.began_s, ""
            return
        record.words = self._wrong(record, look, now_s=now_s)
        if now_s - record.began_s >= GIVES_UP_AFTER_S:
            self.fail(record.words, now_s=now_s)

    def as_json(self, *, now_s: float) -> dict[str, Any]:
        """Return every fault with its state as JSON values, and why none can begin."""
        return {"closed": self._closed, "faults": [_as_json(record, now_s) for record in self._records.values()]}

    def _current(self) -> _Record:
        return next(record for record in self._records.values() if record.state == "running")

    def _move(self, record: _Record, event: Event) -> None:
        record.state = TRANSITIONS[record.state, event]

    def _late(self, look: Look, mark_s: float) -> list[str]:
        """Return the groups that are too far behind, or have not applied all that the log held at the mark."""
        return [
            group
            for group, behind_s in look.behind_s.items()
            if behind_s >= LAG_BOUND_S or (behind_s > 0 and look.at_s - behind_s <= mark_s + _EXACT_S)
        ]

    def _wrong(self, record: _Record, look: Look, *, now_s: float) -> str:
        if look.away:
            return ", ".join(f"{name} is {state}" for name, state in look.away.items())
        if now_s - look.at_s >= LAG_BOUND_S:
            return "the cluster does not answer"
        late = [] if record.mark_s is None else self._late(look, record.mark_s)
        if not late:
            return "the processes are back, the groups have not read everything yet"
        worst = max(late, key=lambda group: look.behind_s[group])
        return f"{worst} is {look.behind_s[worst]:.0f} s behind"


def _as_json(record: _Record, now_s: float) -> dict[str, Any]:
    is_running = record.state == "running"
    return {
        "id": record.offer.id,
        "label": record.offer.label,
        "expected": record.offer.expected,
        "state": record.state,
        "running_s": round(now_s - record.began_s, 1) if is_running else None,
        "took_s": None if record.took_s is None else round(record.took_s, 1),
        "words": record.words,
    }


__all__ = ["TRANSITIONS", "FaultDesk", "FaultRefusedError", "Look", "Offer", "UnknownFaultError"]
