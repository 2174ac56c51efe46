"""Since when a client has no broker."""

from __future__ import annotations

import asyncio

__all__ = ["Reachability"]


class Reachability:
    """Remembers when a client lost its last broker, on the event loop's clock."""

    def __init__(self) -> None:
        self.since_s: float | None = None

    def observe(self, *, is_connected: bool) -> float | None:
        """Note whether a broker is connected; since when none is."""
        if is_connected:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = asyncio.get_running_loop().time()
        return self.since_s
