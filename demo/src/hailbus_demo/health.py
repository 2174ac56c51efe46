"""How well the city is, for the terminal: the worst truth in words.

The city page uses the same words and bounds (`dashboard.domain.health`); a test compares the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

Level = Literal["ok", "late", "bad"]
LATE_S: Final = 5.0
VERY_LATE_S: Final = 60.0
PROGRESS_OVER_S: Final = 8.0
COLOURS: Final[Mapping[Level, str]] = {"ok": "green", "late": "yellow", "bad": "red"}
_RANK: Final = {"bad": 0, "late": 1, "ok": 2}
_PROCESS_LEVEL: Final[Mapping[str, Level]] = {"failed": "bad", "restarting": "late", "starting": "late"}


class Progress:
    """Whether a group catches up: its position and its lag of the last eight seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque(maxlen=32)

    def note(self, now_s: float, *, position: int, lag: int) -> None:
        """Note the sum of a group's positions and the records that it has not taken."""
        self._seen.append((now_s, position, lag))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - PROGRESS_OVER_S:
            self._seen.popleft()

    def words(self) -> str:
        """Return "catching up", "falling behind" or "reading nothing"; empty before it is known."""
        if len(self._seen) < 2:
            return ""
        (_, position, lag), (_, position_now, lag_now) = self._seen[0], self._seen[-1]
        if position_now <= position:
            return "reading nothing"
        return "catching up" if lag_now < lag else "falling behind"


def level_of_lag(seconds: float) -> Level:
    """Return "late" above five seconds, "bad" above sixty."""
    return "bad" if seconds > VERY_LATE_S else "late" if seconds > LATE_S else "ok"


def span(seconds: float) -> str:
    """Return a time in words: seconds below five minutes, minutes below two hours."""
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def lag_words(group: Mapping[str, Any]) -> str:
    """Return a late group's truth: "surge 107 s behind, catching up"."""
    progress = f", {group['progress']}" if group.get("progress") else ""
    return f"{group['group']} {span(group['lag_s'])} behind{progress}"


def health(state: Mapping[str, Any]) -> tuple[Level, str]:
    """Return the worst truth of a run's state (`Figures.as_json`)."""
    truths: list[tuple[Level, str]] = []
    if state["balanced"] is False:
        truths.append(("bad", "the ledger does not balance"))
    for process in state["processes"]:
        level = _PROCESS_LEVEL.get(process["state"])
        if level is not None:
            truths.append((level, f"{process['name']} {process['state']}"))
    for group in sorted(state["groups"], key=lambda group: -group["lag_s"]):
        level = level_of_lag(group["lag_s"])
        if level != "ok":
            truths.append((level, lag_words(group)))
    return min(truths, key=lambda truth: _RANK[truth[0]], default=("ok", "up to date"))


def process_state(process: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Level | None, str]:
    """Return a process's state, with how far its groups are behind. None: it is stopped, neither well nor unwell."""
    own = [group for group in state["groups"] if belongs(group["group"], process["name"])]
    worst = max(own, key=lambda group: group["lag_s"], default=None)
    level = "ok" if worst is None else level_of_lag(worst["lag_s"])
    if process["state"] != "ready":
        return _PROCESS_LEVEL.get(process["state"]), process["state"]
    if worst is None or level == "ok":
        return "ok", "ready"
    return level, f"{span(worst['lag_s'])} behind"


def belongs(group: str, process: str) -> bool:
    """Return whether a process reads for a group: payment for payment-saga."""
    return group == process or group.startswith(f"{process}-")


__all__ = ["COLOURS", "Progress", "belongs", "health", "lag_words", "level_of_lag", "process_state", "span"]
