"""The real disk: POSIX calls, each failure as a `StorageError`."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from contextlib import contextmanager, suppress
from errno import EIO, EMFILE, ENFILE
from typing import TYPE_CHECKING, ClassVar, Final

from hailbus_broker.log.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hailbus_broker.log.disk import Buffer

_IOV_MAX: Final = 1024
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)
_COPY_BYTES: Final = 1024 * 1024
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_SAMPLE_BYTES: Final = 64 * 1024
"""One byte in so many is looked for: the system reads ahead, and forgets, in larger pieces."""


class RealFile:
    """A file on the disk; see `log.disk.File`. Its descriptor is closed with the last reference."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path: Final = path
        self._descriptor: Final = descriptor

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor; valid while the object is held."""
        return self._descriptor

    def size(self) -> int:
        """Bytes in the file."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _storage_error("cannot look at the file", self.path, error) from error

    def append(self, data: Buffer) -> None:
        """Write all of the data at the end."""
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                self._append_rest(memoryview(data)[written:])
        except OSError as error:
            raise _storage_error("cannot write", self.path, error) from error

    def _append_rest(self, rest: memoryview) -> None:
        while rest:
            written = os.write(self._descriptor, rest)
            if not written:
                raise StorageError("a write of the system wrote nothing", path=self.path, errno=EIO)
            rest = rest[written:]

    def append_all(self, buffers: Sequence[Buffer]) -> None:
        """Write several buffers at the end, with one call of the system where that is possible."""
        try:
            for start in range(0, len(buffers), _IOV_MAX):
                part = buffers[start : start + _IOV_MAX]
                written = os.writev(self._descriptor, part)
                for buffer in part:
                    if written < len(buffer):
                        self._append_rest(memoryview(buffer)[written:])
                        written = 0
                    else:
                        written -= len(buffer)
        except OSError as error:
            raise _storage_error("cannot write", self.path, error) from error

    def read(self, position: int, length: int) -> bytes:
        """The bytes from a position, fewer when the file ends."""
        try:
            data = os.pread(self._descriptor, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            found = len(data)
            while found < length:
                data = os.pread(self._descriptor, length - found, position + found)
                if not data:
                    break
                parts.append(data)
                found += len(data)
            return b"".join(parts)
        except OSError as error:
            raise _storage_error("cannot read", self.path, error) from error

    def read_cached(self, position: int, length: int) -> bytearray | None:
        """The bytes if the page cache has them all."""
        if _NO_WAIT is None:
            return None
        buffer = bytearray(length)
        try:
            count = os.preadv(self._descriptor, [buffer], position, _NO_WAIT)
        except OSError:
            return None
        return buffer if count == length else None

    def is_cached(self, position: int, length: int) -> bool:
        """Whether the page cache has the bytes, as far as a few samples tell."""
        if _NO_WAIT is None:
            return False
        byte, last = bytearray(1), position + length - 1
        try:
            for sample in (*range(position, last, _SAMPLE_BYTES), last):
                if os.preadv(self._descriptor, [byte], sample, _NO_WAIT) != 1:
                    return False
        except OSError:
            return False
        return True

    def truncate(self, size: int) -> None:
        """Cut the file."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise _storage_error("cannot truncate", self.path, error) from error

    def rewrite(self, position: int) -> None:
        """Write the bytes from a position on again."""
        with failing("cannot write", self.path):
            # The file's own descriptor is open for appending, so `pwrite` ignores the position.
            target = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                while data := os.pread(self._descriptor, _COPY_BYTES, position):
                    position += os.pwrite(target, data, position)
            finally:
                os.close(target)

    def sync(self) -> None:
        """fdatasync: the data and, when it has grown, the size."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _storage_error("cannot sync", self.path, error) from error


class _Reserve:
    """Descriptors that are held back, for work that opens a file and closes it again at once."""

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._held: Final[list[int]] = []
        self._lock: Final = threading.Lock()
        self._fill()

    def __del__(self) -> None:
        for descriptor in self._held:
            with suppress(OSError):
                os.close(descriptor)

    def _fill(self) -> None:
        with self._lock, suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """A descriptor of a file, closed at the end of the block; one that is held back goes when there is no other."""
        descriptor = self._open(path, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            if len(self._held) < self._count:
                self._fill()

    def _open(self, path: str, flags: int) -> int:
        while True:
            try:
                return os.open(path, flags, 0o644)
            except OSError as error:
                with self._lock:
                    if error.errno not in {EMFILE, ENFILE} or not self._held:
                        raise
                    os.close(self._held.pop())  # another thread may be faster: then the next one goes


class RealLock:
    """An advisory lock (flock) on a file in the directory."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor

    def release(self) -> None:
        """See `log.disk.DirectoryLock`."""
        os.close(self._descriptor)


class RealDisk:
    """The file system of this machine; see `log.disk.Disk`.

    Args:
        reserved_descriptors: Held back for `write_whole` and `sync_directory`, which then work when no other is left.

    Attributes:
        file_class: Of the files that it opens.
    """

    file_class: ClassVar[type[RealFile]] = RealFile
    _reserve = _Reserve(0)

    def __init__(self, *, reserved_descriptors: int = 0) -> None:
        if reserved_descriptors:
            self._reserve = _Reserve(reserved_descriptors)

    def boot_id(self) -> str:
        """Linux names each of its starts; other systems do not."""
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def lock(self, directory: str) -> RealLock | None:
        """Lock the directory's `.lock` file."""
        with failing("cannot lock", directory):
            descriptor = os.open(f"{directory}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            return RealLock(descriptor)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """Open a file to read and append."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with failing("cannot open", path):
            return self.file_class(path, os.open(path, flags, 0o644))

    def read_bytes(self, path: str) -> bytes | None:
        """A whole small file, None when there is none."""
        with failing("cannot read", path):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def write_whole(self, path: str, data: bytes) -> None:
        """Write beside the file, sync, rename over it, sync the directory."""
        temporary = path + ".tmp"
        with failing("cannot write", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with self._reserve.opened(temporary, flags) as descriptor:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        with failing("cannot list", directory):
            try:
                return sorted(os.listdir(directory))
            except FileNotFoundError:
                return []

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return os.path.exists(path)

    def size(self, path: str) -> int:
        """Bytes of a file."""
        with failing("cannot look at", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """When a file was last written, in ms since 1970."""
        with failing("cannot look at", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        with failing("cannot create the directory", path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory."""
        with failing("cannot rename", source):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; fine when there is none."""
        with failing("cannot remove", path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it."""
        with failing("cannot remove", path), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        """Fsync of a directory."""
        with failing("cannot sync the directory", path):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            with self._reserve.opened(path or ".", flags) as descriptor:
                os.fsync(descriptor)


@contextmanager
def failing(what: str, path: str) -> Iterator[None]:
    """Raise what the system refuses as a `StorageError` that says what could not be done, and where."""
    try:
        yield
    except OSError as error:
        raise _storage_error(what, path, error) from error


def _storage_error(what: str, path: str, error: OSError) -> StorageError:
    return StorageError(f"{what} ({error.strerror or error})", path=path, errno=error.errno or EIO)
