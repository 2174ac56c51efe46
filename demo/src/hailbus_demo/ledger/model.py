"""What the ledger compares and what it says, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. `ok` is None for what is shown but not judged."""

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer group with an inbox.

    Args:
        group: Group id, which is also the consumer's name in `hailbus_inbox`.
        database: Name of the database that holds its inbox.
        topics: Topics that it subscribes to.
        types: Event types that it applies, of those on its topics; `None` for all of them.
    """

    group: str
    database: str
    topics: tuple[str, ...]
    types: frozenset[str] | None = None


@dataclass(slots=True)
class RideTrail:
    """A ride by the log: the sequence numbers of its events, and how it ended."""

    seqs: list[int] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Return `completed`, `cancelled`, `unmatched` or `in_flight`."""
        for kind in self.types:
            state = kind.removeprefix("ride.")
            if state in ("completed", "cancelled", "unmatched"):
                return state
        return "in_flight"


@dataclass(slots=True)
class LogContent:
    """What was read from the log, up to the ends of the moment.

    `ids` has the event ids of each topic and type; `repeated` counts records whose event id was there before;
    `sources` has the source of each event id's topic and type; `unreadable` are records without an event id.
    """

    ids: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    sources: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    repeated: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    records: Counter[Partition] = field(default_factory=Counter)
    starts: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    rides: dict[str, RideTrail] = field(default_factory=dict)

    @property
    def shortened(self) -> set[str]:
        """Topics that once held more: the broker compacted them or deleted what was past its time."""
        return {
            topic
            for (topic, partition), end in self.ends.items()
            if self.starts.get((topic, partition), 0) > 0 or self.records[topic, partition] < end
        }


@dataclass(slots=True)
class OutboxContent:
    """What an outbox says it published, and what it still owes (due, neither published nor cancelled)."""

    published: dict[str, set[str]] = field(default_factory=dict)
    owed: int = 0
    waiting: int = 0
    failed: int = 0


@dataclass(slots=True)
class InboxContent:
    """What a consumer applied: event ids, inbox rows and deliveries seen, by topic."""

    applied: dict[str, set[str]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def judged(self, exempt: Collection[str]) -> tuple[int, int, int]:
        """Return distinct events, rows and deliveries of all topics but the exempt ones."""
        distinct = sum(len(ids) for topic, ids in self.applied.items() if topic not in exempt)
        rows = sum(n for topic, n in self.rows.items() if topic not in exempt)
        return distinct, rows, sum(n for topic, n in self.seen.items() if topic not in exempt)


def some(items: set[str], *, most: int = 3) -> str:
    """Return a few of many names, for a message."""
    shown = ", ".join(sorted(items)[:most])
    return shown + (f" and {len(items) - most:,} more" if len(items) > most else "")


def five(states: Mapping[str, str]) -> dict[str, int]:
    """Return requested, completed, cancelled, unmatched and in flight of ride id → state."""
    ended = ("completed", "cancelled", "unmatched")
    tally = Counter(state if state in ended else "in_flight" for state in states.values())
    return {
        "requested": len(states),
        **{name: tally[name] for name in ("completed", "cancelled", "unmatched", "in_flight")},
    }
