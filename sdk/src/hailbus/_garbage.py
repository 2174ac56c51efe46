"""The garbage collector of a process that serves: it looks at what the process makes, not at what it has imported."""

from __future__ import annotations

import gc

__all__ = ["freeze_imports"]

THRESHOLDS = (10_000, 10, 10)
"""Containers made and not freed before the young are looked at; CPython's own is 700. Reference counts free nearly all
that a request or an event leaves behind."""


def freeze_imports() -> None:
    """Keep the collector from all that exists, and let it look more rarely at the rest.

    Modules, models and compiled statements are some 130,000 objects that live as long as the process. A full
    collection looks at each of them, and stops the event loop for 0.1 to 0.2 s, every few seconds under load.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
