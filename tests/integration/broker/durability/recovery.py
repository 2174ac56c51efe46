"""A broker that starts on what a power cut left, and what it then holds, compared with what was promised."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.log import Isolation
from hailbus_broker.records import iterate_batches, iterate_records
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.node import Node
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hailbus_broker.testing.simulation.threads import SimulatedThreads

if TYPE_CHECKING:
    from pathlib import Path

    from hailbus_broker.log import PartitionLog

    from tests.integration.broker.durability.account import Account, SentRecord
    from tests.integration.broker.durability.machine import State


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of data in a log, and whether a reader of committed records gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    is_transactional: bool
    is_visible: bool


@dataclass(slots=True)
class View:
    """What a started broker holds; `failure` says why it did not start."""

    failure: str = ""
    topics: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[str, int], list[FoundRecord]] = field(default_factory=dict)
    bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    commits: dict[tuple[str, str, int], int] = field(default_factory=dict)
    next_producer_id: int = 0
    damages: list[str] = field(default_factory=list)


COMPACTED: Final = frozenset({"keyed"})
EXPIRING: Final = frozenset({"expiring"})


async def start_on(state: State, directory: Path, settings: dict[str, str]) -> View:
    """Start a broker on a state, in this process and in memory, and look at what it holds."""
    disk = SimulatedDisk(random.Random(0))
    path = str(directory)
    disk.make_directory(path)
    for name, content in state.items():
        if content is None:
            disk.make_directory(f"{path}/{name}")
        elif name != ".lock":
            disk.write_whole(f"{path}/{name}", content)
    own = {"log.dirs": path, "log.cleaner.enable": "false", "log.retention.check.interval.ms": "600000"}
    machine = Machine(random=random.Random(1), disk=disk, start_threads=SimulatedThreads)
    node = Node(BrokerConfig({**settings, **own}), machine=machine)
    try:
        await node.start()
    except StartError as error:
        return View(failure=str(error))
    try:
        await node.metadata.quorum.sync()
        for groups in node.groups.active():
            await groups.committed()
        for transactions in node.transactions.active():
            await transactions.committed()
        await node.sync.drain()
        return _view_of(node)
    finally:
        await node.stop()


def _view_of(node: Node) -> View:
    view = View(next_producer_id=node.image.next_producer_id)
    for name, topic in node.image.topics.items():
        view.topics[name] = len(topic.partitions)
        for state in topic.partitions:
            partition = node.replicas.leader(name, state.index)
            assert isinstance(partition, LeaderReplica), partition
            where = name, state.index
            log = partition.log
            view.bounds[where] = log.log_start_offset, log.log_end_offset
            view.records[where] = _records(log)
            view.damages += [f"{partition.name}: {damage}" for damage in log.recovery.damages]
    for driver in node.groups.active():
        shard: Any = driver.shard
        for group_id, offsets in shard.offsets.items():
            for (topic_name, index), committed in offsets.items():
                view.commits[group_id, topic_name, index] = committed.offset
    return view


def _records(log: PartitionLog) -> list[FoundRecord]:
    found = []
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes()
        before = offset
        for batch in iterate_batches(data, whole=False):
            batch.check_crc()
            header = batch.header
            offset = header.next_offset
            if header.is_control:
                continue
            is_aborted = header.is_transactional and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            found += [
                FoundRecord(
                    record.offset,
                    record.key,
                    record.value,
                    header.is_transactional,
                    record.offset < log.last_stable_offset and not is_aborted,
                )
                for record in iterate_records(batch)
                if record.offset >= log.log_start_offset
            ]
        if offset == before:
            break
    return found


def broken_promises(account: Account, view: View) -> list[str]:
    """What was promised and does not hold, and what is there that nobody sent."""
    if view.failure:
        return [f"the broker does not start: {view.failure}"]
    broken = []
    for name, count in account.topics.items():
        if count is None:
            if name in view.topics and name not in account.topics_asked:
                broken.append(f"topic {name} is there again after its deletion")
        elif name not in account.deletions_asked and view.topics.get(name, 0) < count:
            broken.append(f"topic {name} was acknowledged with {count} partitions, there are {view.topics.get(name)}")
    invented = {name for name in view.topics if not name.startswith("__")} - account.topics_asked
    broken += [f"nobody asked for topic {name}" for name in sorted(invented)]
    for where, bounds in view.bounds.items():
        if not where[0].startswith("__"):
            broken += _broken_in(account, view, where, bounds)
    for where, acked in account.acked.items():
        if acked and where not in view.bounds and where[0] not in account.deletions_asked:
            broken.append(f"acknowledged records of {where} are gone with their partition")
    for commit, offset in account.commits.items():
        if commit[1] not in account.deletions_asked and view.commits.get(commit) not in account.commits_asked[commit]:
            broken.append(f"offset {offset} of {commit} was acknowledged, {view.commits.get(commit)} is there")
    for commit, offset in view.commits.items():
        if offset not in account.commits_asked[commit]:
            broken.append(f"nobody committed offset {offset} of {commit}")
    if account.producer_ids and view.next_producer_id <= max(account.producer_ids):
        broken.append(f"producer id {view.next_producer_id} may be given away twice")
    return broken


def _broken_in(account: Account, view: View, where: tuple[str, int], bounds: tuple[int, int]) -> list[str]:
    broken = []
    topic = where[0]
    may_be_gone = topic in account.deletions_asked
    start, end = bounds
    found = {record.offset: record for record in view.records[where]}
    if may_be_gone and not found:
        # A topic whose deletion is under way is there with all its records, or it is not there.
        broken += [f"{where} is there without its records"] if account.acked[where] else []
        return broken
    if end < account.readable.get(where, 0):
        broken.append(f"{where} ends at {end}, a reader has seen that it ends at {account.readable[where]}")
    if start < account.log_starts.get(where, 0):
        broken.append(f"{where} begins at {start}, records before {account.log_starts[where]} were deleted")
    if start > account.log_starts_asked.get(where, 0) and topic not in EXPIRING:
        broken.append(f"{where} begins at {start}, and nobody has deleted records")
    newest: dict[bytes | None, int] = {}
    for record in view.records[where]:
        newest[record.key] = record.offset
    for offset, sent in account.acked[where].items():
        if offset < start:
            continue
        record_found = found.get(offset)
        if record_found is None:
            if topic not in COMPACTED or newest.get(sent.key, -1) < offset:
                broken.append(f"{where} has lost offset {offset}, {sent.value!r}, which was acknowledged")
        elif (record_found.key, record_found.value) != (sent.key, sent.value):
            broken.append(
                f"{where} has {record_found.value!r} at offset {offset} where {sent.value!r} was acknowledged"
            )
        else:
            broken += _broken_transaction(account, where, sent, record_found)
    values = [record.value for record in view.records[where]]
    sent_values = {sent.value for sent in account.sent[where]}
    broken += [f"{where} has {value!r}, which nobody sent" for value in values if value not in sent_values]
    if len(values) != len(set(values)):
        broken.append(f"{where} has a record twice")
    return broken


def _broken_transaction(account: Account, where: tuple[str, int], sent: SentRecord, found: FoundRecord) -> list[str]:
    if sent.transaction is None:
        return []
    is_committed = account.transactions.get(sent.transaction)
    if is_committed is None and sent.transaction not in account.ends_asked and found.is_visible:
        return [f"{where} shows {sent.value!r} of a transaction that nobody has committed"]
    if is_committed is None and account.ends_asked.get(sent.transaction) is False and found.is_visible:
        return [f"{where} shows {sent.value!r} of a transaction that may only be aborted"]
    if is_committed and not found.is_visible:
        return [f"{where} hides {sent.value!r} of a committed transaction"]
    if is_committed is False and found.is_visible:
        return [f"{where} shows {sent.value!r} of an aborted transaction"]
    return []
