"""One direction between two simulated hosts: how fast, how reliable, and whether it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hailbus_broker.testing.simulation.channel import Channel
    from hailbus_broker.testing.simulation.process import Host

_MAX_BACKOFF_S: Final = 120.0
_MIN_BACKOFF_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkQuality:
    """How one direction between two hosts behaves.

    Attributes:
        min_delay_s: Fastest delivery.
        max_delay_s: Slowest ordinary delivery.
        spike_probability: How often a segment takes longer than that.
        spike_s: How much longer, at most.
        split_probability: How often a write arrives in several parts.
        bytes_per_second: Bandwidth; None is unlimited.
    """

    min_delay_s: float = 0.000_05
    max_delay_s: float = 0.001
    spike_probability: float = 0.002
    spike_s: float = 0.05
    split_probability: float = 0.02
    bytes_per_second: float | None = None


LOOPBACK: Final = LinkQuality(min_delay_s=0.000_01, max_delay_s=0.000_1, spike_probability=0.0)


class Link:
    """One direction between two hosts.

    Attributes:
        trap: Whether a message is the one from which on its connection is blocked; None while none is.
    """

    def __init__(self, source: Host, target: Host, quality: LinkQuality) -> None:
        self.source: Final = source
        self.target: Final = target
        self.quality = quality
        self.is_cut = False
        self.cut_since_s = 0.0
        self.free_at_s = 0.0
        self.trap: Callable[[bytes], bool] | None = None
        # Insertion-ordered sets.
        self.channels: Final[dict[Channel, None]] = {}
        self.waiting: Final[dict[Callable[[], None], None]] = {}

    @property
    def is_open(self) -> bool:
        """Whether packets arrive."""
        return not self.is_cut and self.target.is_up

    def delay_s(self, rng: random.Random) -> float:
        """Draw how long a packet takes."""
        quality = self.quality
        drawn = rng.random()
        if drawn < quality.spike_probability:
            return quality.max_delay_s + quality.spike_s * rng.random()
        return quality.min_delay_s + (quality.max_delay_s - quality.min_delay_s) * drawn

    def backoff_s(self, now_s: float, rng: random.Random) -> float:
        """Draw how long after a heal a sender tries again: its time-out has doubled while the link was cut."""
        return rng.random() * min(max(now_s - self.cut_since_s, _MIN_BACKOFF_S), _MAX_BACKOFF_S)
