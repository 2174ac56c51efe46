"""What a broker acknowledges is on the disk: shown by the system calls that it makes, and by power cuts after each.

One broker is recorded through three lives (SIGKILL, a stop in order, SIGKILL again) while clients do everything that
writes; see `durability/workload.py`. Needs strace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.integration.broker.durability.account import Bookkeeper
from tests.integration.broker.durability.machine import Machine
from tests.integration.broker.durability.power_cut import cut_after_every_call
from tests.integration.broker.durability.rules import CLEAN_STOP, RULES, Watcher, watch
from tests.integration.broker.durability.workload import SETTINGS, Recording, record, record_produce_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("strace")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def watcher(recording: Recording) -> Watcher:
    return watch(recording)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Brokers that start on hundreds of states say little that is of interest."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def test_the_bytes_on_the_sockets_say_what_the_clients_were_told(recording: Recording) -> None:
    machine, books = Machine(str(recording.directory)), Bookkeeper()
    told: dict[tuple[str, int, int], bytes] = {}
    for calls in recording.lives:
        books.forget_connections()
        for event in machine.replay(calls):
            if books.note(event):
                for (topic, partition), records in books.account.acked.items():
                    told |= {(topic, partition, offset): sent.value or b"" for offset, sent in records.items()}
    assert len(recording.acked) > 100
    assert told == recording.acked
    assert sum(books.account.transactions.values()) >= 3
    assert not all(books.account.transactions.values())
    assert len(books.account.commits) >= 2
    assert books.account.log_starts == {("trimmed", 0): 5}


def test_the_recording_holds_every_kind_of_write(recording: Recording) -> None:
    machine = Machine(str(recording.directory))
    seen: set[str] = set()
    for calls in recording.lives:
        for event in machine.replay(calls):
            if event.kind == "renames":
                seen.add("rename to " + event.target.rpartition("/")[2].lstrip("0123456789-"))
                seen.add("deletion" if event.target.endswith("-delete") else "")
            if event.kind == "removes":
                seen.add("removal of " + event.path.rpartition("/")[2].lstrip("0123456789-"))
    assert {
        "rename to .log.swap",
        "rename to .log",
        "rename to .checkpoint",
        "rename to leader-epoch-checkpoint",
        "rename to recovery-point-offset-checkpoint",
        "rename to log-start-offset-checkpoint",
        "rename to .kafka_cleanshutdown",
        "deletion",
        "removal of .log",
        "removal of .kafka_cleanshutdown",
        "removal of partition.metadata",
    } <= seen


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_calls(watcher: Watcher, rule: str) -> None:
    assert watcher.checked[rule] > 0, "the recording holds nothing that the rule is about"
    assert watcher.violations[rule] == []


def no_data(call: str, path: str) -> bool:
    """`RealFile.sync` does nothing."""
    return call != "fdatasync"


def no_replaced_file(_: str, path: str) -> bool:
    """`RealDisk.write_whole` renames without syncing first."""
    return not path.endswith(".tmp")


def no_directory(call: str, path: str) -> bool:
    """`RealDisk.sync_directory` does nothing."""
    return call == "fdatasync" or path.endswith(".tmp")


def no_compacted_segment(_: str, path: str) -> bool:
    return ".cleaned" not in path


def no_directory_of_all(_: str, path: str) -> bool:
    return path != ""


def no_directory_of_a_partition(call: str, path: str) -> bool:
    return call == "fdatasync" or path == "" or path.endswith(".tmp")


@pytest.mark.parametrize(
    ("is_synced", "rules"),
    [
        (no_data, {"record before ack", "topic before ack", "records before recovery point"}),
        (no_replaced_file, {"file before rename"}),
        (no_directory, {"names before ack", "directory after rename", "log start before ack"}),
        (no_compacted_segment, {"file before rename"}),
        (no_directory_of_all, {"names before ack", "directory after rename"}),
        (
            no_directory_of_a_partition,
            {
                "names before ack",
                "directory after rename",
                "new segment before old ones are removed",
                "snapshot before what it covers is removed",
            },
        ),
    ],
)
def test_a_sync_that_is_taken_away_breaks_its_rules(
    recording: Recording, is_synced: Callable[[str, str], bool], rules: set[str]
) -> None:
    watcher = watch(recording, is_synced)
    assert rules <= {rule for rule, broken in watcher.violations.items() if broken}


def test_a_clean_stop_that_is_forgotten_without_a_sync_breaks_its_rule(recording: Recording) -> None:
    watcher = Watcher(Machine(str(recording.directory)))
    for calls in recording.lives:
        watcher.begin_life()
        for event in watcher.machine.replay(calls):
            if event.kind == "removes" and event.path == CLEAN_STOP:
                watcher.machine.is_synced = no_directory_of_all
            watcher.note(event)
    assert watcher.violations["end of the clean stop before a write"]


ADAPTERS = {
    "fdatasync does nothing": (
        """
from hailbus_broker.runtime.disk import RealFile
RealFile.sync = lambda self: None
""",
        "record before ack",
    ),
    "write_whole renames without syncing": (
        """
import os, stat
real = os.fsync
os.fsync = lambda descriptor: None if stat.S_ISREG(os.fstat(descriptor).st_mode) else real(descriptor)
""",
        "file before rename",
    ),
    "syncing a directory does nothing": (
        """
from hailbus_broker.runtime.disk import RealDisk
RealDisk.sync_directory = lambda self, path: None
""",
        "names before ack",
    ),
    "acknowledged before the sync": (
        """
from hailbus_broker.runtime.replica import LeaderReplica
real = LeaderReplica.append
def append(self, *arguments, **keywords):
    result = real(self, *arguments, **keywords)
    self._advance(self.log.log_end_offset)
    return result
LeaderReplica.append = append
""",
        "record before ack",
    ),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_broken_disk_adapter_breaks_its_rule(tmp_path: Path, adapter: str) -> None:
    source, rule = ADAPTERS[adapter]
    watcher = watch(record_produce_only(tmp_path, adapter=source))
    assert watcher.violations[rule]


@pytest.mark.usefixtures("quiet")
def test_a_power_cut_after_every_call_breaks_no_promise(recording: Recording, tmp_path: Path) -> None:
    seed = 20_260_101
    outcome = cut_after_every_call(recording, tmp_path / "data", SETTINGS, seed=seed)
    print(f"{outcome.cut_count} cuts, {outcome.start_count} different states, seed {seed}")
    assert outcome.broken == []
    assert outcome.cut_count > 500
    assert outcome.start_count > 200


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("is_synced", [no_data, no_directory, no_replaced_file])
def test_a_power_cut_finds_what_was_not_synced(
    recording: Recording, tmp_path: Path, is_synced: Callable[[str, str], bool]
) -> None:
    outcome = cut_after_every_call(recording, tmp_path / "data", SETTINGS, is_synced=is_synced)
    assert outcome.broken
