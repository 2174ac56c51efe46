"""The file of lines: appended with one fsync per batch, cut back to what is known to be committed."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hailbus import ConfigurationError

CHUNK_BYTES: Final = 1024 * 1024


class LogFile:
    """An open log file that this process alone writes.

    Raises:
        ConfigurationError: It cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(f"LOGGER_FILE {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise ConfigurationError(f"another process writes {path}; give this one a file of its own") from error
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # else a power cut may take a new file away, with all its synced lines
        finally:
            os.close(directory)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self._fd).st_size

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines, sync, and return the file's size: when it returns, they are on the disk."""
        data = memoryview(b"".join(lines))
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)
        return self.size_bytes

    def cut(self, size_bytes: int) -> int:
        """Cut the file back to a size; return how many bytes went."""
        surplus = self.size_bytes - size_bytes
        if surplus > 0:
            os.ftruncate(self._fd, size_bytes)
            os.fsync(self._fd)
        return max(surplus, 0)

    def end_of_last_line(self) -> int:
        """Return the size that the file has without a torn last line."""
        end = self.size_bytes
        while end > 0:
            start = max(0, end - CHUNK_BYTES)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines, without newlines."""
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]

    def close(self) -> None:
        """Close it, and let another process have it."""
        os.close(self._fd)
