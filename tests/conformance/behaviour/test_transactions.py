"""Transactions on the wire: what a reader of committed records sees, and which producer is fenced when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import ControlType, iterate_records, read_control_type

from tests.conformance.behaviour.test_classic_groups import Member
from tests.conformance.conftest import Cluster, MakeTopic
from tests.conformance.wire import LAST_STABLE, RETRIED, Wire, batch_of, batches, values, wire_to
from tests.support import wait_for

NEWEST = 5
"""EndTxn and AddOffsetsToTxn's successor: version 2 of transactions, each with an epoch of its own (KIP-890)."""


class Transactional:
    """A producer with a transactional id that does each step when told. Version 1 of transactions unless `is_v2`."""

    def __init__(self, cluster: Cluster, name: str, *, is_v2: bool = False, timeout_ms: int = 60_000) -> None:
        self.wire, self.name, self.is_v2, self.timeout_ms = Wire(cluster.bootstrap), name, is_v2, timeout_ms
        self.sequences: dict[tuple[str, int], int] = {}
        self.init()

    def init(self) -> None:
        answer = self.wire.new_producer(self.name, timeout_ms=self.timeout_ms)
        assert answer.error_code == 0, answer
        self.take(answer)

    def take(self, answer: Any) -> None:
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    def add(self, topic: str, *partitions: int) -> int:
        while True:
            answer = self.wire.call(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": list(partitions or (0,))}],
            )
            code = int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
            if code not in RETRIED:
                return code

    def send(self, topic: str, *sent: bytes, partition: int = 0) -> int:
        """Write without adding the partition: as version 2 does."""
        sequence = self.sequences.get((topic, partition), 0)
        batch = batch_of(
            *sent, producer_id=self.id, producer_epoch=self.epoch, base_sequence=sequence, is_transactional=True
        )
        while True:
            part = {"index": partition, "records": bytes(batch)}
            answer = self.wire.call(
                ApiKey.PRODUCE,
                12 if self.is_v2 else 9,
                transactional_id=self.name,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[{"name": topic, "partition_data": [part]}],
            )
            code = int(answer.responses[0].partition_responses[0].error_code)
            if code in RETRIED:
                continue
            if code == 0:
                self.sequences[topic, partition] = sequence + len(sent)
            return code

    def next_batch(self, topic: str, value: bytes, *, partition: int = 0) -> bytes:
        """Build the batch that follows those before it, whether these have been answered or not."""
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + 1
        return bytes(
            batch_of(
                value, producer_id=self.id, producer_epoch=self.epoch, base_sequence=sequence, is_transactional=True
            )
        )

    def ask_to_produce(self, topic_data: list[dict[str, Any]]) -> None:
        self.wire.ask(ApiKey.PRODUCE, 12, transactional_id=self.name, acks=-1, timeout_ms=10_000, topic_data=topic_data)

    def may_begin(self) -> bool:
        """Whether the coordinator has ended the last transaction: before that it refuses the next one for a while."""
        answer = self.wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.name])
        return answer.transaction_states[0].transaction_state in {"Empty", "CompleteCommit", "CompleteAbort"}

    def write(self, topic: str, *sent: bytes, partition: int = 0) -> None:
        if not self.is_v2:
            assert self.add(topic, partition) == 0
        assert self.send(topic, *sent, partition=partition) == 0

    def send_offset(self, group: str, topic: str, offset: int, **member: Any) -> int:
        """Leave a group's offset with the transaction; return the code of TxnOffsetCommit."""
        added = 14
        while added in RETRIED:
            added = self.wire.call(
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                group_id=group,
            ).error_code
        assert added == 0
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "in a transaction"}
        while True:
            answer = self.wire.call(
                ApiKey.TXN_OFFSET_COMMIT,
                3,
                transactional_id=self.name,
                group_id=group,
                producer_id=self.id,
                producer_epoch=self.epoch,
                topics=[{"name": topic, "partitions": [part]}],
                **member,
            )
            code = int(answer.topics[0].partitions[0].error_code)
            if code not in RETRIED:  # Apache Kafka names a coordinator before it has loaded the group's partition
                return code

    def end(self, *, commit: bool) -> int:
        while True:
            answer = self.wire.call(
                ApiKey.END_TXN,
                5 if self.is_v2 else 3,
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            if answer.error_code in RETRIED:
                continue
            if self.is_v2 and answer.error_code == 0:
                self.take(answer)
            return int(answer.error_code)

    def commit(self) -> None:
        assert self.end(commit=True) == 0

    def abort(self) -> None:
        assert self.end(commit=False) == 0


NewProducer = Callable[..., Transactional]


@pytest.fixture
def new_producer(cluster: Cluster, name: str) -> Iterator[NewProducer]:
    producers: list[Transactional] = []

    def make(suffix: str = "", **more: Any) -> Transactional:
        producers.append(Transactional(cluster, name + suffix, **more))
        return producers[-1]

    yield make
    for producer in producers:
        producer.wire.close()


def committed(wire: Wire, topic: str, *, offset: int = 0, partition: int = 0) -> list[bytes | None]:
    """What a consumer with read_committed gives: up to the last stable offset, without what was aborted."""
    found = wire.fetch(topic, offset, partition=partition, isolation=LAST_STABLE)
    assert found.error_code == 0
    pending = sorted((entry.first_offset, entry.producer_id) for entry in found.aborted_transactions or [])
    aborted: set[int] = set()
    shown: list[bytes | None] = []
    for view in batches(found.records):
        producer = view.header.producer_id
        while pending and pending[0][0] <= view.header.last_offset:
            aborted.add(pending.pop(0)[1])
        if view.header.is_control:
            if read_control_type(view) is ControlType.ABORT:
                aborted.discard(producer)
        elif not (view.header.is_transactional and producer in aborted):
            shown += [record.value for record in iterate_records(view) if record.offset >= offset]
    return shown


def wait_until_stable(wire: Wire, topic: str, partition: int = 0) -> None:
    """Wait until the markers of all ended transactions are there: an answer to EndTxn does not wait for them."""

    def is_stable() -> bool:
        found = wire.fetch(topic, 0, partition=partition)
        return bool(found.last_stable_offset == found.high_watermark)

    wait_for("all markers are written", is_stable, 20)


@pytest.mark.parametrize("is_v2", [False, True], ids=["v1", "v2"])
def test_committed_is_seen_and_aborted_is_not(wire: Wire, new_producer: NewProducer, topic: str, is_v2: bool) -> None:
    producer = new_producer(is_v2=is_v2)
    producer.write(topic, b"a", b"b")
    assert committed(wire, topic) == []
    producer.commit()
    producer.write(topic, b"gone")
    producer.abort()
    producer.write(topic, b"c")
    producer.commit()
    wait_until_stable(wire, topic)
    assert committed(wire, topic) == [b"a", b"b", b"c"]
    assert values(wire.fetch(topic, 0).records) == [b"a", b"b", b"gone", b"c"]


def test_interleaved_transactions_of_several_producers(wire: Wire, new_producer: NewProducer, topic: str) -> None:
    one, two, three = (new_producer(f"-{number}") for number in (1, 2, 3))
    wire.write(topic, b"plain 0")
    one.write(topic, b"one 0")  # offset 1
    two.write(topic, b"two 0")
    wire.write(topic, b"plain 1")
    three.write(topic, b"three 0")
    two.write(topic, b"two 1")
    two.abort()
    one.write(topic, b"one 1")
    three.commit()
    assert committed(wire, topic) == [b"plain 0"]  # the first transaction is open and holds back all that follows
    assert wire.fetch(topic, 0).last_stable_offset == 1
    one.commit()
    two.write(topic, b"two 2")
    two.commit()
    wait_until_stable(wire, topic)
    expected = [b"plain 0", b"one 0", b"plain 1", b"three 0", b"one 1", b"two 2"]
    assert committed(wire, topic) == expected
    # From any offset the list of aborted transactions is right.
    for offset in range(1, wire.list_offset(topic, -1).offset):
        found = committed(wire, topic, offset=offset)
        assert found == expected[len(expected) - len(found) :], offset


def test_a_transaction_spans_partitions_and_its_markers_reach_all(
    wire: Wire, new_producer: NewProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    producer = new_producer()
    for partition in (0, 2):
        producer.write(topic, b"%d" % partition, partition=partition)
    producer.commit()
    for partition in range(3):
        wait_until_stable(wire, topic, partition)
        kinds = [
            read_control_type(view)
            for view in batches(wire.fetch(topic, 0, partition=partition).records)
            if view.header.is_control
        ]
        assert kinds == ([] if partition == 1 else [ControlType.COMMIT])
        assert committed(wire, topic, partition=partition) == ([] if partition == 1 else [b"%d" % partition])


def test_a_second_producer_with_the_id_fences_the_first_and_aborts_its_transaction(
    wire: Wire, new_producer: NewProducer, topic: str
) -> None:
    first = new_producer()
    first.write(topic, b"lost")
    second = new_producer()
    assert (second.id, second.epoch > first.epoch) == (first.id, True)
    assert first.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.end(commit=True) in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
    assert first.add(topic) in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
    second.write(topic, b"kept")
    second.commit()
    wait_until_stable(wire, topic)
    assert committed(wire, topic) == [b"kept"]


def test_a_late_commit_does_not_end_the_next_transaction(wire: Wire, new_producer: NewProducer, topic: str) -> None:
    producer = new_producer(is_v2=True)
    producer.write(topic, b"first")
    old_epoch = producer.epoch
    producer.commit()
    assert producer.epoch == old_epoch + 1
    producer.write(topic, b"second")
    late = producer.wire.call(
        ApiKey.END_TXN,
        5,
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=old_epoch,
        committed=True,
    )
    assert late.error_code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
    producer.abort()
    wait_until_stable(wire, topic)
    assert committed(wire, topic) == [b"first"]


def test_a_commit_sent_again_is_answered_again(wire: Wire, new_producer: NewProducer, topic: str) -> None:
    producer = new_producer()
    producer.write(topic, b"once")
    producer.commit()
    producer.commit()
    assert producer.end(commit=False) == ErrorCode.INVALID_TXN_STATE
    wait_until_stable(wire, topic)
    assert committed(wire, topic) == [b"once"]


def test_a_transaction_that_nobody_ends_is_aborted_after_its_timeout(
    wire: Wire, new_producer: NewProducer, topic: str
) -> None:
    producer = new_producer(timeout_ms=1000)
    producer.write(topic, b"forgotten")
    assert wire.fetch(topic, 0).last_stable_offset == 0
    wait_until_stable(wire, topic)
    assert committed(wire, topic) == []
    assert producer.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True) in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}


def test_a_timeout_above_the_limit_is_refused(wire: Wire, name: str) -> None:
    assert wire.new_producer(name, timeout_ms=1_000_000_000).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_a_write_to_a_partition_that_was_not_added_is_refused(
    wire: Wire, new_producer: NewProducer, topic: str
) -> None:
    producer = new_producer()
    assert producer.send(topic, b"stray") == ErrorCode.INVALID_TXN_STATE
    assert wire.list_offset(topic, -1).offset == 0


def test_a_producer_of_version_2_begins_with_sequence_0(new_producer: NewProducer, topic: str) -> None:
    producer = new_producer(is_v2=True)
    producer.sequences[topic, 0] = 1  # as if the batch before it had been refused
    assert producer.send(topic, b"second") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.sequences[topic, 0] = 0
    assert producer.send(topic, b"first") == 0
    assert producer.send(topic, b"second") == 0
    producer.commit()
    wait_until_stable(producer.wire, topic)
    assert committed(producer.wire, topic) == [b"first", b"second"]


def test_batches_sent_without_waiting_stay_in_order(new_producer: NewProducer, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    producer = new_producer(is_v2=True)
    rng = random.Random(20)
    written: dict[int, list[bytes | None]] = {partition: [] for partition in range(3)}
    for transaction in range(8):
        wait_for("the end of the last transaction", producer.may_begin)
        for number in range(5):
            partitions = rng.sample(range(3), rng.randint(1, 3))
            value = b"%d/%d" % (transaction, number)
            parts = [
                {"index": partition, "records": producer.next_batch(topic, value, partition=partition)}
                for partition in partitions
            ]
            producer.ask_to_produce([{"name": topic, "partition_data": parts}])
            for partition in partitions:
                written[partition].append(value)
        for _ in range(5):
            answer = producer.wire.answer(ApiKey.PRODUCE, 12)
            assert {part.error_code for part in answer.responses[0].partition_responses} == {0}, answer
        producer.commit()
    for partition, values_written in written.items():
        wait_until_stable(producer.wire, topic, partition)
        assert committed(producer.wire, topic, partition=partition) == values_written


def test_a_partition_that_does_not_exist_fails_the_request(new_producer: NewProducer, topic: str) -> None:
    producer = new_producer()
    assert producer.add("no-such-topic") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.add(topic) == 0


def test_offsets_are_committed_with_the_transaction(
    wire: Wire, new_producer: NewProducer, topic: str, name: str
) -> None:
    producer = new_producer()
    wire.find_coordinator(name)

    def offset(*, require_stable: bool) -> tuple[int, int]:
        answer = wire.call(
            ApiKey.OFFSET_FETCH,
            7,
            group_id=name,
            topics=[{"name": topic, "partition_indexes": [0]}],
            require_stable=require_stable,
        )
        part = answer.topics[0].partitions[0]
        return part.error_code, part.committed_offset

    assert producer.send_offset(name, topic, 5) == 0
    assert offset(require_stable=False) == (0, -1)
    assert offset(require_stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    producer.commit()
    wait_for("the offset is there", lambda: offset(require_stable=True) == (0, 5))
    assert producer.send_offset(name, topic, 9) == 0
    producer.abort()
    wait_for("the transaction is over", lambda: offset(require_stable=True)[0] == 0)
    assert offset(require_stable=True) == (0, 5)


def test_offsets_are_committed_in_a_transaction_during_a_rebalance(
    cluster: Cluster, new_producer: NewProducer, topic: str, name: str
) -> None:
    producer, member = new_producer(), Member(cluster, name)
    assert member.join().error_code == 0  # and the group waits for the assignment
    assert member.commit(topic, 5) == ErrorCode.REBALANCE_IN_PROGRESS
    names_it = {"member_id": member.id, "generation_id": member.generation}
    assert producer.send_offset(name, topic, 5, **names_it) == 0
    assert producer.send_offset(name, topic, 5, **names_it | {"generation_id": 7}) == ErrorCode.ILLEGAL_GENERATION
    producer.commit()
    member.wire.close()


def test_transactions_and_producers_are_described(wire: Wire, new_producer: NewProducer, topic: str, name: str) -> None:
    producer = new_producer()
    producer.write(topic, b"open")

    def transaction() -> Any:
        return wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name]).transaction_states[0]

    def listed(**filters: Any) -> dict[str, str]:
        answer = wire.call(ApiKey.LIST_TRANSACTIONS, 0, **filters)
        return {
            state.transactional_id: state.transaction_state
            for state in answer.transaction_states
            if state.transactional_id == name
        }

    found = transaction()
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == (
        "Ongoing",
        producer.id,
        producer.epoch,
    )
    assert [(place.topic, list(place.partitions)) for place in found.topics] == [(topic, [0])]
    assert listed(state_filters=["Ongoing"]) == {name: "Ongoing"}
    assert listed(state_filters=["CompleteCommit"]) == {}
    assert listed(producer_id_filters=[producer.id]) == {name: "Ongoing"}
    answer = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [0]}])
    (active,) = answer.topics[0].partitions[0].active_producers
    assert (active.producer_id, active.last_sequence, active.current_txn_start_offset) == (producer.id, 0, 0)
    producer.commit()
    wait_for("the transaction is over", lambda: transaction().transaction_state == "CompleteCommit")
    assert transaction().topics == []
    answer = wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"{name}-nobody"])
    assert answer.transaction_states[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_an_idempotent_producer_may_raise_its_own_epoch(
    cluster: Cluster, new_producer: NewProducer, topic: str
) -> None:
    """After an error a producer asks with what it has, and goes on with the next epoch (KIP-360)."""
    producer = new_producer()
    producer.write(topic, b"a")
    producer.abort()
    with wire_to(cluster) as wire:
        while True:
            answer = wire.call(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=producer.name,
                transaction_timeout_ms=60_000,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
            )
            if answer.error_code not in RETRIED:
                break
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, producer.id, producer.epoch + 1)
        stale = wire.call(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=producer.name,
            transaction_timeout_ms=60_000,
            producer_id=producer.id + 1000,
            producer_epoch=producer.epoch,
        )
        assert stale.error_code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
