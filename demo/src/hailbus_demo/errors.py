"""Errors that are for the person at the keyboard."""


class UsageError(Exception):
    """Something that the user can put right: one sentence that says what to do. The command exits with 2."""


class RunFailedError(Exception):
    """The run cannot continue. The message says why, with the last log lines of the process that failed.

    The command exits with 1.
    """
