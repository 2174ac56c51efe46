"""How a service that only a restart can repair ends its process, however deep in an application it was started."""

from __future__ import annotations

import contextvars
from collections.abc import Callable

__all__ = ["context_that_hears", "failure_listener"]

_LISTENER: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "hailbus_failure_listener", default=None
)


def failure_listener() -> Callable[[str], None] | None:
    """The function to call with the reason of a failure, None where nobody ends the process."""
    return _LISTENER.get()


def context_that_hears(listener: Callable[[str], None]) -> contextvars.Context:
    """A copy of the current context, for a task: services that start in it report their failures to `listener`."""
    context = contextvars.copy_context()
    context.run(_LISTENER.set, listener)
    return context
