"""How well the city is: the worst truth in words, and one chip for each process and group.

The demo's terminal uses the same words and bounds (`hailbus_demo.health`); a test compares the two.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dashboard.domain.cluster import Cluster

Level = Literal["ok", "late", "bad"]
LATE_S: Final = 5.0
"""A group that is further behind than this is late."""
VERY_LATE_S: Final = 60.0
"""A group that is further behind than this is in trouble."""
UNREAD_SHOWN: Final = 5_000
"""Records that the page itself may have to read without saying so."""
CLUSTER_FRESH_S: Final = 5.0
PROGRESS_OVER_S: Final = 8.0
"""How long back a group's position is compared with now."""
_RANK: Final = {"bad": 0, "late": 1, "ok": 2}
_PROCESS_LEVEL: Final[dict[str, Level]] = {"failed": "bad", "restarting": "late", "starting": "late"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A consumer group: how many seconds behind, and what `Progress.words` says."""

    group: str
    seconds: float
    progress: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """A process as who started it describes it: ready, starting, restarting, failed or stopped."""

    name: str
    state: str
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One thing that is known to be wrong. `subject` stays the same while it is the same thing."""

    level: Level
    subject: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One process or group. `words` is empty while nothing is wrong with it; "off" is a process that was stopped."""

    name: str
    level: Level | Literal["off"]
    words: str
    about: str
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All truths, worst first, and the chips."""

    truths: tuple[Truth, ...]
    chips: tuple[Chip, ...]

    @property
    def level(self) -> Level:
        """The level of the worst truth."""
        return self.truths[0].level if self.truths else "ok"

    @property
    def words(self) -> str:
        """The worst truth in words."""
        return self.truths[0].words if self.truths else "up to date"

    @property
    def subject(self) -> str:
        """What changes when another thing is the worst one."""
        return self.truths[0].subject if self.truths else "none"


def level_of_lag(seconds: float) -> Level:
    """Return "late" above five seconds, "bad" above sixty."""
    return "bad" if seconds > VERY_LATE_S else "late" if seconds > LATE_S else "ok"


def span(seconds: float) -> str:
    """Return a time in words: seconds below five minutes, minutes below two hours."""
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def lag_words(group: GroupState) -> str:
    """Return a late group's truth: "surge 107 s behind, catching up"."""
    progress = f", {group.progress}" if group.progress else ""
    return f"{group.group} {span(group.seconds)} behind{progress}"


def belongs(group: str, process: str) -> bool:
    """Return whether a process reads for a group: payment for payment-saga."""
    return group == process or group.startswith(f"{process}-")


def judge(
    *,
    broker: Literal["connecting", "up", "down"],
    cluster: Cluster | None,
    cluster_age_s: float | None,
    groups: Sequence[GroupState],
    processes: Sequence[ProcessState],
    unread: int,
    is_unbalanced: bool = False,
) -> Health:
    """Return how well the city is.

    Args:
        broker: Whether the leaders of all partitions answer.
        cluster: The cluster's last description of itself.
        cluster_age_s: How old that is.
        groups: The consumer groups.
        processes: What the demo says of the processes that it started, empty without it.
        unread: Records that the page itself has to read.
        is_unbalanced: Whether an audit found accounts that disagree.
    """
    truths = [*_of_cluster(broker, cluster, cluster_age_s)]
    if is_unbalanced:
        truths.append(Truth(level="bad", subject="ledger", words="the ledger does not balance"))
    for process in processes:
        level = _PROCESS_LEVEL.get(process.state)
        if level is not None:
            truths.append(Truth(level=level, subject=process.name, words=f"{process.name} {process.state}"))
    for group in sorted(groups, key=lambda group: -group.seconds):
        level = level_of_lag(group.seconds)
        if level != "ok":
            truths.append(Truth(level=level, subject=f"lag of {group.group}", words=lag_words(group)))
    if unread > UNREAD_SHOWN:
        truths.append(
            Truth(level="late", subject="page", words=f"this page is catching up, {unread:,} records to read")
        )
    truths.sort(key=lambda truth: _RANK[truth.level])  # stable: the order above decides between equals
    return Health(truths=tuple(truths), chips=tuple(_chips(groups, processes)))


def _of_cluster(
    broker: Literal["connecting", "up", "down"], cluster: Cluster | None, age_s: float | None
) -> list[Truth]:
    if broker == "connecting":
        return [Truth(level="late", subject="broker", words="waiting for the broker")]
    is_described = cluster is not None and age_s is not None and age_s < CLUSTER_FRESH_S
    if broker == "down" and not is_described:
        return [Truth(level="bad", subject="broker", words="broker down")]
    if cluster is None:
        return []
    found = []
    offline = sum(partition.is_offline for partition in cluster.partitions)
    if offline:
        words = f"{offline:,} partition{'' if offline == 1 else 's'} without a leader"
        found.append(Truth(level="bad", subject="leaders", words=words))
    away = sum(not node.is_up for node in cluster.brokers)
    if away:
        words = f"{away:,} of {len(cluster.brokers):,} brokers away"
        found.append(Truth(level="late", subject="brokers", words=words))
    elif broker == "down":
        found.append(Truth(level="late", subject="brokers", words="some partitions do not answer"))
    behind = sum(partition.is_under_replicated for partition in cluster.partitions)
    if behind and not away:
        words = f"{behind:,} partition{'' if behind == 1 else 's'} under-replicated"
        found.append(Truth(level="late", subject="replicas", words=words))
    return found


def _chips(groups: Sequence[GroupState], processes: Sequence[ProcessState]) -> list[Chip]:
    """Return a chip for each process, with its groups, and one for each group that no known process reads for."""
    chips = []
    left = list(groups)
    for process in processes:
        own = [group for group in left if belongs(group.group, process.name)]
        left = [group for group in left if group not in own]
        chips.append(_chip(process.name, own, process))
    chips += [_chip(group.group, [group], None) for group in left]
    return chips


def _chip(name: str, groups: Sequence[GroupState], process: ProcessState | None) -> Chip:
    worst = max(groups, key=lambda group: group.seconds, default=None)
    of_lag = "ok" if worst is None else level_of_lag(worst.seconds)
    level: Level | Literal["off"] = of_lag
    words = "" if worst is None or of_lag == "ok" else span(worst.seconds)
    about = [] if process is None else [process.state]
    if process is not None and process.state != "ready":
        of_state = _PROCESS_LEVEL.get(process.state)
        if _RANK[of_state or "ok"] <= _RANK[of_lag]:
            level, words = of_state or "off", process.state
    about += [lag_words(group) for group in groups if level_of_lag(group.seconds) != "ok"]
    if process is not None and process.restarts:
        about.append(f"restarted {process.restarts:,}×")
    restarts = 0 if process is None else process.restarts
    return Chip(name=name, level=level, words=words, about=", ".join(about) or "up to date", restarts=restarts)


__all__ = [
    "Chip",
    "GroupState",
    "Health",
    "Level",
    "ProcessState",
    "Progress",
    "Truth",
    "belongs",
    "judge",
    "lag_words",
    "level_of_lag",
    "span",
]
