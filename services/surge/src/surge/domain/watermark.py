"""Event time: up to which moment everything that will count has been seen."""

from collections.abc import Collection, Iterable, Mapping

LATENESS_MS = 30_000
"""How far behind the newest event of its partition an event may be and still count."""
IDLE_AFTER_MS = 3_000
"""A partition that has brought nothing for this long, on the wall clock, is not waited for."""


SILENCE_SHARE = 6
"""Of a silence of all partitions, a sixth of the idle time at most counts towards any one being idle."""


PATIENCE = 10
"""A partition that is known to hold more is waited for so many times longer: the broker may be restarting. Not for
ever, because what it holds may be a transaction's marker, which nobody ever reads."""


class Watermark:
    """The lowest of the partitions' newest event times, less the allowed lateness; it never retreats.

    The minimum is what keeps a catch-up right: after a pause one partition is read hours ahead of another, and
    the maximum would declare the slower one late. A partition that is idle is left out, or a quiet topic would stop
    the city's clock. When every partition is idle, everything was read, and the newest event decides.

    A partition is idle that brings nothing while others do: when all are silent, because the broker restarts or this
    process is starved, the partition that comes back first must not make the others late.

    Plain state: wall-clock moments are arguments, in milliseconds of any steady clock; event times are Unix
    milliseconds.
    """

    __slots__ = (
        "_awaited_since",
        "_current",
        "_discounted_ms",
        "_heard_at",
        "_idle_after_ms",
        "_last_sign_ms",
        "_lateness_ms",
        "_newest",
    )

    def __init__(self, *, lateness_ms: int = LATENESS_MS, idle_after_ms: int = IDLE_AFTER_MS) -> None:
        self._lateness_ms = lateness_ms
        self._idle_after_ms = idle_after_ms
        self._newest: dict[str, int] = {}
        self._heard_at: dict[str, int] = {}  # in busy time, as `_awaited_since`
        self._awaited_since: dict[str, int] = {}
        self._last_sign_ms: int | None = None  # of any partition
        self._discounted_ms = 0
        self._current: int | None = None

    def _busy_ms(self, now_ms: int) -> int:
        """The time without what of silences does not count."""
        silent_ms = 0 if self._last_sign_ms is None else now_ms - self._last_sign_ms
        return now_ms - self._discounted_ms - max(0, silent_ms - self._idle_after_ms // SILENCE_SHARE)

    def _sign(self, now_ms: int) -> int:
        busy_ms = self._busy_ms(now_ms)
        self._discounted_ms = now_ms - busy_ms
        self._last_sign_ms = now_ms
        return busy_ms

    def assign(self, partitions: Iterable[str], *, now_ms: int) -> None:
        """These partitions are read from now on: each is waited for until it brings something or proves idle."""
        busy_ms = self._sign(now_ms)
        assigned = set(partitions)
        for known in (self._newest, self._heard_at, self._awaited_since):
            for gone in [partition for partition in known if partition not in assigned]:
                del known[gone]
        for partition in assigned:
            self._awaited_since.setdefault(partition, busy_ms)

    def observe(self, partition: str, event_ms: int, *, now_ms: int) -> None:
        """A record of `partition` with this event time was read."""
        newest = self._newest.get(partition)
        if newest is None or event_ms > newest:
            self._newest[partition] = event_ms
        self._heard_at[partition] = self._sign(now_ms)

    def restore(self, newest: Mapping[str, int], *, floor_ms: int | None) -> None:
        """Continue from what an earlier process had seen; `floor_ms` is how far time had come."""
        for partition, event_ms in newest.items():
            self._newest[partition] = max(event_ms, self._newest.get(partition, event_ms))
        if floor_ms is not None:
            self._current = floor_ms if self._current is None else max(self._current, floor_ms)

    @property
    def newest(self) -> Mapping[str, int]:
        """Per partition, the newest event time seen."""
        return self._newest

    def has_silent(self, *, now_ms: int) -> bool:
        """Whether some partition has been silent for the idle time, so that it matters which of them hold more."""
        if self.is_idle(now_ms=now_ms):
            return True
        busy_ms = self._busy_ms(now_ms)
        return any(
            busy_ms - self._heard_at.get(partition, self._awaited_since.get(partition, busy_ms)) >= self._idle_after_ms
            for partition in self._newest.keys() | self._awaited_since.keys()
        )

    def is_idle(self, *, now_ms: int, behind: Collection[str] = ()) -> bool:
        """Whether all partitions have been silent for the idle time; longer, if some are known to hold more."""
        patience_ms = self._idle_after_ms * (PATIENCE if behind else 1)
        return self._last_sign_ms is not None and now_ms - self._last_sign_ms >= patience_ms

    def current(self, *, now_ms: int, behind: Collection[str] = ()) -> int | None:
        """How far event time has come, None before the first event; `behind` are partitions known to hold more."""
        if not self._newest:
            return self._current
        awaited: list[int] = []
        if not self.is_idle(now_ms=now_ms, behind=behind):
            busy_ms = self._busy_ms(now_ms)
            for partition in self._newest.keys() | self._awaited_since.keys():
                alive_at = self._heard_at.get(partition, self._awaited_since.get(partition))
                patience_ms = self._idle_after_ms * (PATIENCE if partition in behind else 1)
                if alive_at is None or busy_ms - alive_at >= patience_ms:
                    continue
                event_ms = self._newest.get(partition)
                if event_ms is None or partition not in self._heard_at:
                    return self._current  # assigned a moment ago: it may hold older events than all others
                awaited.append(event_ms)
        low = min(awaited) if awaited else max(self._newest.values())
        candidate = low - self._lateness_ms
        if self._current is None or candidate > self._current:
            self._current = candidate
        return self._current

    def advance_to(self, event_ms: int) -> None:
        """Let time itself move on, for a city whose event time is the wall clock."""
        if self._current is None or event_ms > self._current:
            self._current = event_ms
