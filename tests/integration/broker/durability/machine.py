"""A file system that knows what of it would survive a power cut, driven by recorded calls.

What lasts is what POSIX promises and no more: data after fsync or fdatasync of the file, counted from what was written
before that call was entered; a name after fsync of its directory; neither implies the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.integration.broker.durability.calls import UNMODELLED, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

State: TypeAlias = "dict[str, bytes | None]"
"""A directory tree: relative paths with contents, None for a directory."""

SECTOR_BYTES: Final = 512
_SEEN_AT_ENTRY: Final = frozenset({"close", "fsync", "fdatasync", "write", "writev", "sendto", "sendmsg", "sendfile"})
"""Another thread may get the number of a file that is being closed, and a client an answer that is being sent."""


@dataclass(eq=False, slots=True)
class File:
    """A file: what is in the page cache, and what is on the disk."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    synced_at: int = -1
    """When the sync was begun that made it so."""


@dataclass(eq=False, slots=True)
class Directory:
    """A directory: its names now, those on the disk, and the changes between, oldest first."""

    names: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)
    pending: list[dict[str, File | Directory | None]] = field(default_factory=list)

    def change(self, names: dict[str, File | Directory | None]) -> None:
        """Set names, or remove them (None); one call of the system is one change."""
        self.pending.append(names)
        apply(self.names, names)


def apply(names: dict[str, File | Directory], change: dict[str, File | Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(slots=True)
class Descriptor:
    """What a number stands for: a file or directory of the data directory, or a connection."""

    node: File | Directory | None = None
    path: str = ""
    connection: int = -1
    appends: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One moment of the recording.

    Attributes:
        kind: change (of data or names), renames and removes (before the change), sync-begun, synced, sent, received.
        call: That it belongs to.
        path: Relative to the data directory; the connection's number for what was sent and received.
        target: Of a rename.
        data: Sent or received.
    """

    kind: str
    call: Call
    path: str
    target: str = ""
    data: bytes = b""


def syncs_everything(name: str, path: str) -> bool:
    """Every sync does what it says; a test has other ideas."""
    del name, path
    return True


class Machine:
    """Replays calls.

    Args:
        directory: Absolute path of the recorded data directory.
        is_synced: Of the name of a sync and the path of its file: whether it does anything.

    Attributes:
        root: Of the data directory.
        durable_version: Grows whenever what is durable may have changed.
    """

    def __init__(self, directory: str, *, is_synced: Callable[[str, str], bool] = syncs_everything) -> None:
        self._directory: Final = directory
        self.is_synced = is_synced
        self.root: Final = Directory()
        self.durable_version = 0
        self._descriptors: dict[int, Descriptor] = {}
        self._syncing: dict[tuple[int, int], Callable[[], None]] = {}
        self._connection_count = 0

    def replay(self, calls: Iterable[Call]) -> Iterator[Event]:
        """One life of the process. Each event comes after it was applied; of renames and removals one before, too."""
        self._descriptors.clear()
        self._syncing.clear()
        for file in _files(self.root):
            file.synced_at = -1  # of another trace
        moments: list[tuple[int, int, Call]] = []
        for call in calls:
            if call.name in _SEEN_AT_ENTRY:
                moments.append((call.begun, 0, call))
            if call.name != "close":
                moments.append((call.ended, 1, call))
        moments.sort(key=lambda moment: moment[:2])
        for _, is_end, call in moments:
            yield from self._end(call) if is_end else self._begin(call)

    # ---- paths

    def _relative(self, path: str) -> str | None:
        if path == self._directory:
            return ""
        return path[len(self._directory) + 1 :] if path.startswith(self._directory + "/") else None

    def _path(self, call: Call, number: int = 0) -> str | None:
        """The n-th path of a call, relative to the data directory; None elsewhere."""
        text = call.strings()[number].decode()
        if not text.startswith("/") and call.name.endswith("at"):
            parent = self._descriptors.get(call.number(0))
            return f"{parent.path}/{text}" if parent is not None and isinstance(parent.node, Directory) else None
        return self._relative(text)

    def find(self, path: str) -> File | Directory | None:
        """What has a path now."""
        node: File | Directory | None = self.root
        for name in filter(None, path.split("/")):
            node = node.names.get(name) if isinstance(node, Directory) else None
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        found = self.find(parent)
        assert isinstance(found, Directory), path
        return found, name

    # ---- calls

    def _begin(self, call: Call) -> Iterator[Event]:
        if call.name == "close":
            self._descriptors.pop(call.number(0), None)
            return
        descriptor = self._descriptors.get(call.number(0))
        if descriptor is None:
            return
        if descriptor.connection >= 0:
            said = b"\0" * call.result if call.name == "sendfile" else b"".join(call.strings())
            data = said[: call.result]
            yield Event(kind="sent", call=call, path=str(descriptor.connection), data=data)
        elif call.name in {"fsync", "fdatasync"} and self.is_synced(call.name, descriptor.path):
            self._syncing[call.thread, call.begun] = self._sync_of(descriptor.node, call.begun)
            yield Event(kind="sync-begun", call=call, path=descriptor.path)

    @staticmethod
    def _sync_of(node: File | Directory | None, begun: int) -> Callable[[], None]:
        """What a sync that begins now makes durable when it has returned."""
        if isinstance(node, File):
            content = bytes(node.content)

            def end() -> None:
                if begun > node.synced_at:  # else a later sync was faster
                    node.durable, node.synced_at = content, begun

            return end
        assert isinstance(node, Directory)
        covered = list(node.pending)

        def end_directory() -> None:
            for change in covered:
                if node.pending and node.pending[0] is change:
                    apply(node.durable, node.pending.pop(0))

        return end_directory

    def _end(self, call: Call) -> Iterator[Event]:
        match call.name:
            case "open" | "openat":
                path = self._path(call)
                if path is not None:
                    yield from self._open(call, path)
            case "accept" | "accept4":
                self._descriptors[call.result] = Descriptor(connection=self._connection_count)
                self._connection_count += 1
            case "dup":
                found = self._descriptors.get(call.number(0))
                if found is not None:
                    self._descriptors[call.result] = found
            case "read" | "recvfrom" | "recvmsg":
                found = self._descriptors.get(call.number(0))
                if found is not None and found.connection >= 0 and call.result:
                    data = b"".join(call.strings())[: call.result]
                    yield Event(kind="received", call=call, path=str(found.connection), data=data)
            case "write" | "writev" | "pwrite64":
                found = self._descriptors.get(call.number(0))
                if found is not None and isinstance(found.node, File):
                    self._write(call, found, found.node)
                    yield Event(kind="change", call=call, path=found.path)
            case "ftruncate":
                found = self._descriptors.get(call.number(0))
                if found is not None and isinstance(found.node, File):
                    size = call.last_number()
                    del found.node.content[size:]
                    found.node.content.extend(bytes(size - len(found.node.content)))
                    yield Event(kind="change", call=call, path=found.path)
            case "fsync" | "fdatasync":
                found = self._descriptors.get(call.number(0))
                end = self._syncing.pop((call.thread, call.begun), None)
                if found is not None and end is not None:
                    end()
                    self.durable_version += 1
                    yield Event(kind="synced", call=call, path=found.path)
            case "mkdir" | "mkdirat":
                path = self._path(call)
                if path:
                    parent, name = self._parent(path)
                    parent.change({name: Directory()})
                    yield Event(kind="change", call=call, path=path)
            case "rename" | "renameat" | "renameat2":
                yield from self._rename(call)
            case "unlink" | "unlinkat" | "rmdir":
                path = self._path(call)
                if path:
                    yield Event(kind="removes", call=call, path=path)
                    parent, name = self._parent(path)
                    parent.change({name: None})
                    yield Event(kind="change", call=call, path=path)
            case name if name in UNMODELLED:
                text = b" ".join(call.strings())
                numbers = call.arguments.split(",")[0]
                touched = numbers.isdigit() and int(numbers) in self._descriptors
                assert not touched, f"{name} on a file of the broker is not modelled"
                assert self._directory.encode() not in text, f"{name} in the data directory is not modelled"
                assert name != "sync", "sync is not modelled"
            case _:
                pass

    def _open(self, call: Call, path: str) -> Iterator[Event]:
        node = self.find(path)
        flags = call.arguments
        if node is None:
            assert "O_CREAT" in flags, path
            node = File()
            parent, name = self._parent(path)
            parent.change({name: node})
            yield Event(kind="change", call=call, path=path)
        elif "O_TRUNC" in flags and isinstance(node, File):
            node.content.clear()
            yield Event(kind="change", call=call, path=path)
        self._descriptors[call.result] = Descriptor(node=node, path=path, appends="O_APPEND" in flags)

    @staticmethod
    def _write(call: Call, descriptor: Descriptor, file: File) -> None:
        data = b"".join(call.strings())[: call.result]
        if call.name == "pwrite64":
            position = call.last_number()
        else:
            position = len(file.content) if descriptor.appends else descriptor.position
            descriptor.position = position + len(data)
        file.content.extend(bytes(max(position - len(file.content), 0)))
        file.content[position : position + len(data)] = data

    def _rename(self, call: Call) -> Iterator[Event]:
        source, target = self._path(call, 0), self._path(call, 1)
        if source is None or target is None:
            assert source is target is None, "a rename into or out of the data directory"
            return
        yield Event(kind="renames", call=call, path=source, target=target)
        (before, old), (after, new) = self._parent(source), self._parent(target)
        assert before is after, "a rename from one directory to another is not modelled"
        before.change({old: None, new: before.names[old]})
        for descriptor in self._descriptors.values():
            if descriptor.path == source or descriptor.path.startswith(source + "/"):
                descriptor.path = target + descriptor.path[len(source) :]
        yield Event(kind="change", call=call, path=source, target=target)

    # ---- what a power cut leaves

    def durable(self) -> State:
        """What is guaranteed to be on the disk: every name and every byte that was synced, and nothing else."""
        return _state(self.root, lambda directory: directory.durable, lambda file: file.durable)

    def written(self) -> State:
        """Everything that was written, as the death of the process alone leaves it."""
        return _state(self.root, lambda directory: directory.names, lambda file: bytes(file.content))

    def arrived(self, rng: random.Random) -> State:
        """What was synced, and of the rest what may have arrived.

        Changes of names in one directory arrive in order, and so do the bytes of a file; the last sector may hold
        anything.
        """

        def names(directory: Directory) -> dict[str, File | Directory]:
            found = dict(directory.durable)
            for change in directory.pending[: rng.randint(0, len(directory.pending))]:
                apply(found, change)
            return found

        def content(file: File) -> bytes:
            current = bytes(file.content)
            if current == file.durable or rng.random() < 0.3:
                return file.durable
            if not current.startswith(file.durable):
                return current if rng.random() < 0.5 else file.durable
            left = bytearray(current[: rng.randint(len(file.durable), len(current))])
            start = max(len(file.durable), (len(left) - 1) // SECTOR_BYTES * SECTOR_BYTES)
            match rng.randint(0, 2):
                case 0:
                    left[start:] = bytes(max(len(left) - start, 0))
                case 1:
                    left[start:] = rng.randbytes(max(len(left) - start, 0))
                case _:
                    pass
            return bytes(left)

        return _state(self.root, names, content)


def _files(directory: Directory) -> Iterator[File]:
    for node in directory.names.values():
        if isinstance(node, File):
            yield node
        else:
            yield from _files(node)


def _state(
    root: Directory,
    names: Callable[[Directory], dict[str, File | Directory]],
    content: Callable[[File], bytes],
) -> State:
    found: State = {}

    def visit(directory: Directory, prefix: str) -> None:
        for name, node in sorted(names(directory).items()):
            path = f"{prefix}{name}"
            if isinstance(node, File):
                found[path] = content(node)
            else:
                found[path] = None
                visit(node, path + "/")

    visit(root, "")
    return found
