"""One driver per lake: a file lock that the operating system drops when the last process that holds it is gone."""

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from analytics_spark.errors import LakeInUseError

__all__ = ["hold_lock", "lock_holder"]


@contextmanager
def hold_lock(path: Path, *, timeout_s: float) -> Generator[int]:
    """Hold the lock, and give its file descriptor.

    The JVM inherits the descriptor: when the Python driver dies by SIGKILL, the lock stays taken until the JVM has gone
        too, so that no second driver writes beside a dying one. Waits up to `timeout_s` for that.

    Raises:
        LakeInUseError: Somebody else held it for all this time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
                if time.monotonic() >= deadline:
                    raise LakeInUseError(lock=str(path), holder=_read(descriptor)) from None
                time.sleep(0.2)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> str | None:
    """Process id of the driver that holds the lock, or None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(descriptor) or "unknown"
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip()
