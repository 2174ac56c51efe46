"""Since when a client has no broker."""

from __future__ import annotations

__all__ = ["Reachability"]


class Reachability:
    """Remembers when a client lost its last broker, on the event loop's clock."""

    def __init__(self) -> None:
        self.since_s: float | None = None

    def observe(self, *, is_connected: bool, now_s: float) -> float | None:
        """Note whether a broker is connected; since when none is."""
        if is_connected:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = now_s
        return self.since_s
