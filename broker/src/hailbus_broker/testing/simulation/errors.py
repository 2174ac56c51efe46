"""Errors of the simulator itself."""

from __future__ import annotations


class SimulationError(Exception):
    """The simulation cannot continue."""


class EscapedError(SimulationError):
    """A simulated process called something outside its world: a real socket, thread, file descriptor or signal."""


class DeadlockError(SimulationError):
    """Nothing can happen any more, and the main coroutine still waits."""


class SimulatedCrashError(BaseException):
    """The machine stopped. Not an Exception, so that no handler catches it by mistake."""
