"""What keeps a broker from starting or from running on: one sentence that says what to do."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start; the message is for the person who started it."""


class TaskFailedError(Exception):
    """Something without which a node must not run has failed by a defect, which is the cause."""
