"""Rules about the order of calls: what must be on the disk before what."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hailbus_broker.records import CorruptBatchError, iterate_batches

from tests.integration.broker.durability.account import Bookkeeper
from tests.integration.broker.durability.machine import Directory, Event, File, Machine, syncs_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.broker.durability.workload import Recording

METADATA: Final = "__cluster_metadata-0"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEAN_STOP: Final = ".kafka_cleanshutdown"

RULES: Final = (
    "record before ack",
    "names before ack",
    "topic before ack",
    "log start before ack",
    "file before rename",
    "directory after rename",
    "records before recovery point",
    "new segment before old ones are removed",
    "snapshot before what it covers is removed",
    "everything before a clean stop",
    "end of the clean stop before a write",
)


class Watcher:
    """Looks at each event of a recording.

    Attributes:
        violations: By rule, what broke it.
        checked: By rule, how often it was looked at.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine: Final = machine
        self.books: Final = Bookkeeper()
        self.violations: Final[dict[str, list[str]]] = {rule: [] for rule in RULES}
        self.checked: Final[dict[str, int]] = dict.fromkeys(RULES, 0)
        self._seen: Final[dict[tuple[str, int], set[int]]] = defaultdict(set)
        self._renamed_by: Final[dict[int, str]] = {}

    def check(self, rule: str, *, holds: bool, what: str) -> None:
        self.checked[rule] += 1
        if not holds:
            self.violations[rule].append(what)

    def begin_life(self) -> None:
        self.books.forget_connections()
        self._seen.clear()
        self._renamed_by.clear()

    def note(self, event: Event) -> None:
        match event.kind:
            case "sent" | "received":
                if self.books.note(event):
                    self._acknowledged()
            case "renames":
                self._after_rename(event)
                self._renames(event)
            case "removes":
                self._after_rename(event)
                self._removes(event)
            case "sync-begun":
                self._after_rename(event)
            case "synced":
                self._renamed_by.pop(event.call.thread, None)
            case _:
                self._changes(event)

    # ---- acknowledgements

    def _acknowledged(self) -> None:
        account = self.books.account
        for where, records in account.acked.items():
            new = {offset: sent for offset, sent in records.items() if offset not in self._seen[where]}
            self._seen[where] |= set(new)
            for offset, sent in new.items():
                value = sent.value or b""
                held = [
                    file for file in _logs(self.machine.root, where, lambda found: found.names) if value in file.durable
                ]
                named = any(
                    value in file.durable for file in _logs(self.machine.root, where, lambda found: found.durable)
                )
                what = f"{where}, offset {offset}: {value[:40]!r}"
                # compaction and retention may take a record while its answer is being sent
                is_there = any(
                    value in file.content for file in _logs(self.machine.root, where, lambda found: found.names)
                )
                if is_there:
                    self.check("record before ack", holds=bool(held), what=what)
                    if held:
                        self.check("names before ack", holds=named, what=what)
        for topic, count in account.topics.items():
            if count is not None and topic not in account.deletions_asked and (topic, -1) not in self._seen:
                self._seen[topic, -1] = set()
                metadata = self.machine.root.durable.get(METADATA)
                files = metadata.durable.values() if isinstance(metadata, Directory) else ()
                is_durable = any(topic.encode() in node.durable for node in files if isinstance(node, File))
                self.check("topic before ack", holds=is_durable, what=topic)
        checkpoint = self.machine.root.durable.get(LOG_STARTS)
        durable = _offsets(checkpoint.durable) if isinstance(checkpoint, File) else {}
        for where, offset in account.log_starts.items():
            holds = durable.get(where, 0) >= offset
            self.check("log start before ack", holds=holds, what=f"{where} begins at {offset}, synced is {durable}")

    # ---- names

    def _after_rename(self, event: Event) -> None:
        """After a file has taken another's place, the thread syncs the directory and does nothing before."""
        parent = self._renamed_by.get(event.call.thread)
        if parent is not None:
            holds = event.kind == "sync-begun" and event.path == parent
            self.check("directory after rename", holds=holds, what=f"{event.kind} of {event.path} in {parent!r}")
            if not holds:
                del self._renamed_by[event.call.thread]

    def _renames(self, event: Event) -> None:
        node = self.machine.find(event.path)
        if isinstance(node, File):
            holds = node.durable == bytes(node.content)
            self.check("file before rename", holds=holds, what=f"{event.path} to {event.target}")
        if event.path.endswith(".tmp"):
            self._renamed_by[event.call.thread] = event.path.rpartition("/")[0]
        if event.target == RECOVERY_POINTS:
            assert isinstance(node, File)
            for where, offset in _offsets(bytes(node.content)).items():
                for missing in self._unsynced_below(where, offset):
                    self.check("records before recovery point", holds=False, what=f"{where}: {missing} below {offset}")
                self.checked["records before recovery point"] += 1
        if event.target == CLEAN_STOP:
            for path, file, is_named in _all_files(self.machine.root):
                if path.endswith((".log", ".index", ".timeindex", ".txnindex", "-checkpoint")):
                    holds = is_named and file.durable == bytes(file.content)
                    self.check("everything before a clean stop", holds=holds, what=path)

    def _unsynced_below(self, where: tuple[str, int], offset: int) -> Iterator[str]:
        directory = self.machine.root.names.get(f"{where[0]}-{where[1]}")
        if not isinstance(directory, Directory):
            return  # deleted meanwhile
        for name, node in directory.names.items():
            if not name.endswith(".log") or not isinstance(node, File):
                continue
            # Recovery completes a swap that a power cut interrupts: a compacted segment may keep its name of before.
            is_named = any(directory.durable.get(found) is node for found in (name, name + ".swap"))
            position = 0
            try:
                for batch in iterate_batches(bytes(node.content), whole=False):
                    end = position + batch.size_bytes
                    if batch.header.next_offset <= offset and (
                        node.durable[position:end] != node.content[position:end] or not is_named
                    ):
                        yield f"{name} at {position}"
                    position = end
            except CorruptBatchError:
                return

    def _removes(self, event: Event) -> None:
        parent_path, _, name = event.path.rpartition("/")
        parent = self.machine.find(parent_path)
        if not isinstance(parent, Directory) or parent_path.endswith("-delete"):
            return
        if parent_path == METADATA and name.endswith((".log", ".checkpoint")):
            snapshots = [other for other in parent.durable if other.endswith(".checkpoint")]
            newest = parent.durable.get(max(snapshots, default=""))
            holds = isinstance(newest, File) and newest.durable == bytes(newest.content) and name < max(snapshots)
            self.check("snapshot before what it covers is removed", holds=holds, what=event.path)
        elif name.endswith(".log"):
            for other, node in parent.names.items():
                if other.endswith(".log.swap"):
                    holds = (
                        parent.durable.get(other) is node and isinstance(node, File) and node.durable == node.content
                    )
                    self.check("new segment before old ones are removed", holds=holds, what=event.path)

    def _changes(self, event: Event) -> None:
        if event.call.name in {"write", "writev"} and event.path.endswith(".log"):
            holds = CLEAN_STOP not in self.machine.root.durable
            self.check("end of the clean stop before a write", holds=holds, what=event.path)


def watch(recording: Recording, is_synced: Callable[[str, str], bool] = syncs_everything) -> Watcher:
    """Look at a whole recording; `is_synced` says of a sync, by call and path, whether it does anything."""
    watcher = Watcher(Machine(str(recording.directory), is_synced=is_synced))
    for calls in recording.lives:
        watcher.begin_life()
        for event in watcher.machine.replay(calls):
            watcher.note(event)
    return watcher


def _logs(
    root: Directory, where: tuple[str, int], names: Callable[[Directory], dict[str, File | Directory]]
) -> list[File]:
    directory = names(root).get(f"{where[0]}-{where[1]}")
    if not isinstance(directory, Directory):
        return []
    return [
        node
        for name, node in names(directory).items()
        if isinstance(node, File) and name.endswith((".log", ".log.swap"))
    ]


def _offsets(checkpoint: bytes) -> dict[tuple[str, int], int]:
    found = {}
    for line in checkpoint.decode().splitlines()[2:]:
        topic, partition, offset = line.split()
        found[topic, int(partition)] = int(offset)
    return found


def _all_files(root: Directory, prefix: str = "") -> Iterator[tuple[str, File, bool]]:
    for name, node in root.names.items():
        if isinstance(node, File):
            yield prefix + name, node, root.durable.get(name) is node
        elif not name.endswith("-delete"):
            yield from _all_files(node, f"{prefix}{name}/")
