"""What the reasons and warnings of a service's `/readyz` mean, and what to do about each."""

from __future__ import annotations

import re

__all__ = ["explained"]

_EXPLANATIONS = (
    (
        r"has not reached the broker",
        (
            "No broker answers this process. Check the address, the network and the broker; the service reconnects "
            "by itself."
        ),
    ),
    (
        r"could not commit offsets",
        (
            "Events are handled, but their progress is not saved: a restart would handle them again. Check the group's "
            "coordinator with `hailbus groups --describe --group GROUP --state`."
        ),
    ),
    (
        r"group .* waits for .* paused",
        (
            "Something that the handlers need is away. The partitions continue by themselves when it is back; nothing "
            "becomes a dead letter meanwhile."
        ),
    ),
    (
        r"has made no progress",
        (
            "A handler hangs, or all its attempts fail. Look at that offset with `hailbus consume --topic TOPIC "
            "--partition N --offset OFFSET --max-messages 1`, and give the handler a deadline."
        ),
    ),
    (
        r"reads no more",
        "The subscriber has ended and does not return by itself. Correct the cause, then restart the process.",
    ),
    (
        r"a task of service .* has died",
        "A task has ended and does not return by itself. Correct the cause, then restart the process.",
    ),
    (
        r"the outbox relay has failed",
        "Stored events are not published. They are safe in the outbox, and the relay tries again by itself.",
    ),
    (
        r"the outbox holds",
        "Events are stored faster than they are published, or no relay runs. See `hailbus relay`, and the rows' error.",
    ),
    (
        r"the outbox's database",
        "The service cannot read its outbox. Check the database's address, its load and the network.",
    ),
    (
        r"parked keys",
        (
            "A handler failed for good on these keys, and their later events wait. Correct the cause, then "
            "`hailbus parked release`."
        ),
    ),
    (
        r"the service does not run",
        "The process is still starting, or it stops. If this lasts, its log says what it waits for.",
    ),
)
"""A part of the reason, and what it means. A test raises each reason and looks for it here."""


def explained(reason: str) -> str:
    """Return what a reason means and what to do; empty for one that the application itself added."""
    return next((text for pattern, text in _EXPLANATIONS if re.search(pattern, reason)), "")
