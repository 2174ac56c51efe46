"""The transaction coordinator, driven at random with restarts between any two writes."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite, TransactionOutcome
from hailbus_broker.coordinators.transaction.shard import TransactionConfig, TransactionShard
from hailbus_broker.log import LogConfig, LogError, Origin, PartitionLog
from hailbus_broker.protocol.definitions.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import ControlType, RecordToWrite, build_batch, build_control_batch
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.tokens import Token

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]


class Client:
    """One producer with the transactional id; there may be an older one, a zombie."""

    def __init__(self, *, is_v2: bool) -> None:
        self.is_v2 = is_v2
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}
        self.data: list[tuple[tuple[str, int], int]] = []  # of the open transaction


class World:
    """A coordinator, real partition logs, and what was promised to clients."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk(self.chance)
        self.logs = {
            where: PartitionLog.open(self.disk, f"d/{where[0]}-{where[1]}", LogConfig(), now_ms=0, clean=False)
            for where in PARTITIONS
        }
        self.records: list[tuple[bytes, bytes | None]] = []
        self.ids = count(1)
        self.now = 0
        self.committed: set[tuple[tuple[str, int], int]] = set()
        self.shard = TransactionShard(TransactionConfig(), coordinator_epoch=0)
        self.clients: list[Client] = []
        self.crash_in: int | None = None

    @property
    def wall(self) -> int:
        return 1_700_000_000_000 + self.now

    def crash_point(self) -> bool:
        if self.crash_in is None:
            return False
        self.crash_in -= 1
        return self.crash_in < 0

    def run(self, outcome: TransactionOutcome) -> Any:
        outcome.install()
        for record in outcome.records:
            key, value = record.encode_key(), record.encode_value()
            self.records.append((key, value))
            self.shard.replay(key, value, now_ms=self.now)
        if self.crash_point():
            raise Crash
        for markers in outcome.markers:
            self.write(markers)
            self.run(self.shard.markers_written(markers, now_ms=self.now, wall_ms=self.wall))
        return outcome.replies[0][1] if outcome.replies else None

    def write(self, markers: MarkersToWrite) -> None:
        for where in markers.partitions:
            log = self.logs[where]
            if markers.is_resumed and not log.needs_marker(markers.producer_id, markers.producer_epoch):
                continue
            data = build_control_batch(
                ControlType.COMMIT if markers.is_commit else ControlType.ABORT,
                producer_id=markers.producer_id,
                producer_epoch=markers.producer_epoch,
                coordinator_epoch=markers.coordinator_epoch,
                timestamp=0,
            )
            log.append(data, now_ms=0, origin=Origin.COORDINATOR, must_marker_be_newer=markers.must_be_newer)
            if self.crash_point():
                raise Crash

    def restart(self) -> None:
        self.crash_in = None
        self.shard = TransactionShard(TransactionConfig(), coordinator_epoch=0)
        for key, value in self.records:
            self.shard.replay(key, value, now_ms=self.now, wall_ms=self.wall)
        self.run(self.shard.resume())

    def init(self, *, is_v2: bool) -> None:
        for _ in range(2):
            response = self.run(
                self.shard.init_producer_id(
                    "x", 1000, -1, -1, Token.new(), new_producer_id=lambda: next(self.ids), wall_ms=self.wall
                )
            )
            if response.error_code == ErrorCode.NONE:
                client = Client(is_v2=is_v2)
                client.producer_id, client.producer_epoch = response.producer_id, response.producer_epoch
                self.clients.append(client)
                return
            assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS

    def produce(self, client: Client, where: tuple[str, int]) -> None:
        log = self.logs[where]
        if not log.has_open_transaction(client.producer_id, client.producer_epoch):
            response = self.run(
                self.shard.add_partitions(
                    "x",
                    client.producer_id,
                    client.producer_epoch,
                    [where],
                    Token.new(),
                    lambda error: AddOffsetsToTxnResponse(error_code=error),
                    is_v2=client.is_v2,
                    wall_ms=self.wall,
                )
            )
            if response.error_code:
                return
            if self.shard.verify("x", client.producer_id, client.producer_epoch, *where) is not ErrorCode.NONE:
                return
        sequence = client.sequences.get(where, 0)
        data = build_batch(
            [RecordToWrite(key=None, value=b"v", timestamp=0)],
            producer_id=client.producer_id,
            producer_epoch=client.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        try:
            offset = log.append(data, now_ms=0).base_offset
        except LogError:
            return
        client.sequences[where] = sequence + 1
        client.data.append((where, offset))

    def end(self, client: Client, *, commit: bool) -> None:
        response = self.run(
            self.shard.end(
                "x",
                client.producer_id,
                client.producer_epoch,
                commit,
                Token.new(),
                is_v2=client.is_v2,
                new_producer_id=lambda: next(self.ids),
                wall_ms=self.wall,
            )
        )
        if response.error_code == ErrorCode.NONE:
            if commit:
                self.committed |= set(client.data)
            if client.is_v2:
                if (response.producer_id, response.producer_epoch) != (client.producer_id, client.producer_epoch):
                    client.sequences.clear()
                client.producer_id, client.producer_epoch = response.producer_id, response.producer_epoch
        client.data = []

    def visible(self) -> set[tuple[tuple[str, int], int]]:
        """Offsets of data that a reader of committed records gets."""
        found = set()
        for where, log in self.logs.items():
            log.advance_high_watermark(log.log_end_offset)
            end = log.last_stable_offset
            aborted = log.aborted_transactions(0, log.log_end_offset)
            for client_data in self.all_data[where]:
                offset, producer_id = client_data
                hidden = any(
                    item.producer_id == producer_id and item.first_offset <= offset <= item.last_offset
                    for item in aborted
                )
                if offset < end and not hidden:
                    found.add((where, offset))
        return found

    @property
    def all_data(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        from hailbus_broker.log import Isolation
        from hailbus_broker.records import iterate_batches

        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for where, log in self.logs.items():
            result = log.read(0, 1 << 24, isolation=Isolation.LOG_END)
            found[where] = [
                (view.header.base_offset, view.header.producer_id)
                for view in iterate_batches(result.to_bytes())
                if not view.header.is_control
            ]
        return found


class Crash(BaseException):
    """The node stopped between two writes."""


@settings(max_examples=250, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**16), is_v2=st.booleans())
def test_committed_is_seen_and_nothing_else(data: st.DataObject, seed: int, is_v2: bool) -> None:
    world = World(seed)
    world.init(is_v2=is_v2)
    steps = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["produce", "produce", "produce", "commit", "abort", "init", "timeout", "crash"]),
                st.integers(0, 2),
                st.integers(0, 2),
                st.integers(0, 3),
            ),
            max_size=30,
        )
    )
    unknown: set[tuple[tuple[str, int], int]] = set()  # whose client never got an answer
    for name, which, where, crash_in in steps:
        client = world.clients[max(len(world.clients) - 1 - which, 0)]
        if name == "crash":
            world.crash_in = crash_in
            continue
        attempted = set(client.data)
        try:
            match name:
                case "produce":
                    world.produce(client, PARTITIONS[where])
                case "commit" | "abort":
                    world.end(client, commit=name == "commit")
                case "init":
                    world.init(is_v2=is_v2)
                case "timeout":
                    world.now += 2000
                    for outcome in world.shard.tick(world.now, wall_ms=world.wall):
                        world.run(outcome)
        except Crash:
            if name == "commit":
                unknown |= attempted
                client.data = []
            world.restart()
            world.init(is_v2=is_v2)
        assert world.committed <= world.visible() | {
            item for item in world.committed if item[1] >= world.logs[item[0]].last_stable_offset
        }
        assert world.visible() <= world.committed | unknown
    world.restart()
    world.init(is_v2=is_v2)  # aborts what is open
    visible = world.visible()
    assert world.committed <= visible <= world.committed | unknown
    for log in world.logs.values():
        assert log.last_stable_offset == log.log_end_offset
