"""What ends the worker."""


class WorkerError(Exception):
    """The worker cannot continue; the text says what to do."""
