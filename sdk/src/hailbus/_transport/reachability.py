"""Since when a client has no broker."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Reachability"]


class Reachability:
    """Remembers when a client lost its last broker, on the event loop's clock.

    Args:
        on_return: Called when a client that had none is connected to a broker again.
    """

    def __init__(self, on_return: Callable[[], None] | None = None) -> None:
        self.since_s: float | None = None
        self._on_return = on_return

    def observe(self, *, is_connected: bool, now_s: float) -> float | None:
        """Note whether a broker is connected; since when none is."""
        if is_connected:
            was_away, self.since_s = self.since_s is not None, None
            if was_away and self._on_return is not None:
                self._on_return()
        elif self.since_s is None:
            self.since_s = now_s
        return self.since_s
