"""What ends the worker."""


class WorkerError(Exception):
    """The worker cannot go on; the text says what to do."""
