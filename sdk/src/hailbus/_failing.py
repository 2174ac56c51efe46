"""How a service that only a restart can repair ends its process, however deep in an application it was started."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

__all__ = ["Failures", "failure_listener"]

_LISTENER: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "hailbus_failure_listener", default=None
)


def failure_listener() -> Callable[[str], None] | None:
    """The function to call with the reason of a failure, None where nobody ends the process."""
    return _LISTENER.get()


class Failures:
    """Notes the failures of services that start in its context; the first one sets `stop`."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.reasons: list[str] = []
        self._stop = stop

    def context(self) -> contextvars.Context:
        """A copy of the current context, for the task in which the services start."""
        context = contextvars.copy_context()
        context.run(_LISTENER.set, self._note)
        return context

    def _note(self, reason: str) -> None:
        if self.reasons or not self._stop.is_set():  # what fails while everything stops needs no restart
            self.reasons.append(reason)
            self._stop.set()
