"""The port to a disk. `runtime.disk` is the real one, `testing` has one that forgets, tears and fails.

Every method raises `StorageError` when the machine fails; a file that is not there is a StorageError with errno ENOENT.
Paths are strings with `/`, as the disk understands them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview


class File(Protocol):
    """One open file: written at its end, read anywhere.

    A file stays readable while anybody holds it, even after `Disk.remove`: its descriptor is closed when the last
    reference to the object goes, so that a response that is being sent cannot end up in another file.
    """

    @property
    def path(self) -> str:
        """Where it was opened."""
        ...

    def fileno(self) -> int:
        """The descriptor, for sendfile. Only valid while the object is held."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def append(self, data: Buffer) -> None:
        """Write all of the data at the end, or raise; after raising, any part of it may be there."""
        ...

    def append_all(self, buffers: Sequence[Buffer]) -> None:
        """As `append`, for several buffers in one call."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """The bytes from a position, fewer when the file ends."""
        ...

    def read_cached(self, position: int, length: int) -> Buffer | None:
        """The bytes if the system has all of them in memory; None if the disk would have to be waited for."""
        ...

    def is_cached(self, position: int, length: int) -> bool:
        """Whether the system has the bytes in memory, as far as a few samples tell."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to a size, in bytes."""
        ...

    def rewrite(self, position: int) -> None:
        """Write the bytes from a position on again, in place, so that the next sync brings them to the disk.

        After a failed sync the system may keep pages that are marked as clean and were never written.
        """
        ...

    def sync(self) -> None:
        """Return when the data (not every timestamp) of the file is on stable storage: fdatasync.

        Any thread may call it.
        """
        ...


class DirectoryLock(Protocol):
    """A directory that this process owns."""

    def release(self) -> None:
        """Give it back."""
        ...


class Disk(Protocol):
    """The files and directories."""

    def boot_id(self) -> str:
        """Names what the system's page cache belongs to: it changes when the machine restarts. Empty for unknown."""
        ...

    def lock(self, directory: str) -> DirectoryLock | None:
        """Take a directory for this process; None when another process has it."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file to read and append; with `create`, make it when it is not there."""
        ...

    def read_bytes(self, path: str) -> bytes | None:
        """A whole small file, None when there is none."""
        ...

    def write_whole(self, path: str, data: bytes) -> None:
        """Replace a small file so that a crash leaves the old or the new one.

        Write beside it, sync, rename, sync the directory.
        """
        ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file."""
        ...

    def modified_ms(self, path: str) -> int:
        """When a file was last written, in ms since 1970."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless it is there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a target file. Lasting only after `sync_directory`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine when there is none."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it; fine when there is none."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory last."""
        ...
