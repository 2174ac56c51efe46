"""What keeps a broker from starting: one sentence that says what to do."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start; the message is for the person who started it."""
