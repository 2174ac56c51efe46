"""Why groups are rebalanced: a cause that can be counted, and a sentence for a person."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

REMEMBERED: Final = 10
"""Rebalances that are remembered per group."""


TAG: Final = 10_000
"""Number of our own tagged field in a described group (KIP-482): clients skip the tags that they do not know.

Its value is JSON: the group's rebalances, the oldest first.
"""


class RebalanceCause(StrEnum):
    """What began a rebalance."""

    MEMBER_JOINED = "member-joined"
    MEMBER_REJOINED = "member-rejoined"
    MEMBER_LEFT = "member-left"
    SESSION_EXPIRED = "session-expired"
    SYNC_TIMED_OUT = "sync-timed-out"
    REVOCATION_TIMED_OUT = "revocation-timed-out"
    SUBSCRIPTION_CHANGED = "subscription-changed"
    ASSIGNOR_CHANGED = "assignor-changed"
    STATIC_MEMBER_RETURNED = "static-member-returned"
    TOPICS_CHANGED = "topics-changed"
    PROTOCOL_CHANGED = "protocol-changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance.

    Attributes:
        at_ms: When it began.
        generation: Of the group then; under the consumer protocol the group epoch that it brings.
        members: How many there were.
    """

    at_ms: int
    generation: int
    members: int
    cause: RebalanceCause
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "at_ms": self.at_ms,
            "generation": self.generation,
            "members": self.members,
            "cause": self.cause.value,
            "reason": self.reason,
        }


@dataclass(slots=True)
class RebalanceHistory:
    """The last rebalances of one group. Not durable: it is empty after a restart."""

    entries: deque[Rebalance] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def last_reason(self) -> str:
        """Why the last one began; empty when there was none."""
        return self.entries[-1].reason if self.entries else ""


def rebalances_tag(history: RebalanceHistory) -> dict[int, bytes] | None:
    """The tagged field for a described group; None when there is nothing to tell."""
    if not history.entries:
        return None
    return {TAG: json.dumps([entry.as_json() for entry in history.entries], ensure_ascii=False).encode()}
