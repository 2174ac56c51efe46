"""Records of a large commit are made before the decision, and are those that the decision would make."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.offsets import CommittedOffset, OffsetToCommit
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch

from tests.unit.broker.tokens import Token

if TYPE_CHECKING:
    from hailbus_broker.coordinators.group.decision import GroupDecision
    from hailbus_broker.coordinators.outcome import PreparedRecords

LONGEST_METADATA = 20
PRODUCER = (9, 3)
NOBODY = (-1, -1)


def make_shard() -> GroupShard:
    config = GroupConfig(offset_metadata_max_bytes=LONGEST_METADATA)
    return GroupShard(config, image=MetadataImage(), group_settings=lambda _: (45_000, 5_000), rng=random.Random(1))


def some_entries(rng: random.Random) -> list[OffsetToCommit]:
    refusals = [ErrorCode.NONE] * 8 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    return [
        OffsetToCommit(
            topic=rng.choice(["rides", "trips"]),
            topic_id=rng.choice([b"", rng.randbytes(16)]),
            partition=number,
            offset=rng.randrange(2**40),
            leader_epoch=rng.randint(-1, 5),
            metadata="m" * rng.randint(0, LONGEST_METADATA + 2),
            refusal=rng.choice(refusals),
        )
        for number in range(rng.randint(1, 60))
    ]


def without_order(shard: GroupShard) -> dict[str, dict[tuple[str, int], CommittedOffset]]:
    """Offsets without their numbers: prepared ones of a batch share one."""
    return {
        group: {place: committed._replace(order=0) for place, committed in offsets.items()}
        for group, offsets in shard.offsets.items()
    }


def decide(
    shard: GroupShard,
    entries: list[OffsetToCommit],
    prepared: PreparedRecords | None,
    *,
    generation: int = -1,
    is_transactional: bool,
) -> GroupDecision:
    if not is_transactional:
        return shard.commit(
            "g", generation, "", None, entries, Token("token"), now_ms=5, wall_ms=700, prepared=prepared
        )
    request = TxnOffsetCommitRequest(
        group_id="g", producer_id=PRODUCER[0], producer_epoch=PRODUCER[1], generation_id=generation
    )
    return shard.commit_in_transaction(request, entries, Token("token"), now_ms=5, wall_ms=700, prepared=prepared)


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_prepared_records_are_those_of_the_decision(seed: int, *, is_transactional: bool) -> None:
    print("seed", seed)
    entries = some_entries(random.Random(seed))
    usual, quick = make_shard(), make_shard()
    producer_id, producer_epoch = PRODUCER if is_transactional else NOBODY
    prepared = quick.prepare_commit("g", entries, wall_ms=700, producer=(producer_id, producer_epoch))
    expected = decide(usual, entries, None, is_transactional=is_transactional)
    decision = decide(quick, entries, prepared, is_transactional=is_transactional)
    assert decision.replies == expected.replies
    assert decision.is_atomic
    assert decision.records == []
    assert (prepared is None) == (not expected.records)
    if prepared is None:
        return
    assert decision.prepared is prepared
    encoded = [(record.encode_key(), record.encode_value()) for record in expected.records]
    assert prepared.batch == build_batch(
        [RecordToWrite(key=key, value=value, timestamp=700) for key, value in encoded],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=is_transactional,
    )
    for key, value in encoded:
        usual.replay(key, value, now_ms=5, producer_id=producer_id)
    prepared.apply(producer_id)
    for shard in (usual, quick):
        if is_transactional:
            assert not shard.offsets
            shard.replay_end_transaction(producer_id, is_commit=True)
    assert without_order(usual) == without_order(quick)
    assert len(quick.offsets["g"]) == len(expected.records)


@pytest.mark.parametrize("is_transactional", [False, True])
def test_prepared_records_of_a_refused_commit_are_not_written(*, is_transactional: bool) -> None:
    shard = make_shard()
    entries = [OffsetToCommit(topic="rides", topic_id=b"", partition=0, offset=1, leader_epoch=-1, metadata="")]
    prepared = shard.prepare_commit("g", entries, wall_ms=700)
    decision = decide(shard, entries, prepared, generation=4, is_transactional=is_transactional)
    assert decision.prepared is None
    ((_, response),) = decision.replies
    assert response.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION  # type: ignore[attr-defined]  # of a known kind


@pytest.mark.parametrize("is_later", [False, True])
def test_the_end_of_a_transaction_does_not_replace_a_later_commit(*, is_later: bool) -> None:
    shard = make_shard()

    def prepare(offset: int, producer: tuple[int, int]) -> PreparedRecords:
        entry = OffsetToCommit(topic="t", topic_id=b"", partition=0, offset=offset, leader_epoch=-1, metadata="")
        prepared = shard.prepare_commit("g", [entry], wall_ms=700, producer=producer)
        assert prepared is not None
        return prepared

    in_transaction, outside = prepare(1, PRODUCER), prepare(2, NOBODY)
    if is_later:
        in_transaction.apply(PRODUCER[0])
        outside.apply(-1)
    else:
        outside.apply(-1)
        in_transaction.apply(PRODUCER[0])
    shard.replay_end_transaction(PRODUCER[0], is_commit=True)
    assert shard.offsets["g"]["t", 0].offset == (2 if is_later else 1)
