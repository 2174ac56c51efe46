"""What a follower asks of a leader, and what it does with the answer."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.replication.fetcher import (
    FIRST_BACKOFF_MS,
    Diverged,
    Fetched,
    Fetcher,
    FetcherSettings,
    OutOfRange,
    Refused,
    truncation_offset,
)
from hailbus_broker.protocol.definitions.fetch_request import FetchRequest
from hailbus_broker.protocol.definitions.fetch_response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from hailbus_broker.protocol.errors import ErrorCode

TOPIC = b"t" * 16
FIRST, SECOND = (TOPIC, 0), (TOPIC, 1)
NOW_MS = 5_000


def fetcher(*keys: tuple[bytes, int]) -> Fetcher:
    made = Fetcher(2, FetcherSettings(max_bytes=100, response_max_bytes=1_000, wait_max_ms=50, backoff_ms=100))
    for key in keys:
        made.add(key, leader_epoch=3, offset=10, last_fetched_epoch=2, log_start_offset=0)
    return made


def request(made: Fetcher, now_ms: int = NOW_MS) -> FetchRequest:
    found = made.request(broker_epoch=40, now_ms=now_ms)
    assert found is not None
    return found


def asked(found: FetchRequest) -> list[tuple[int, int]]:
    return [(one.partition, one.fetch_offset) for topic in found.topics for one in topic.partitions]


def forgotten(found: FetchRequest) -> list[int]:
    return [index for topic in found.forgotten_topics_data for index in topic.partitions]


def response(*partitions: PartitionData, session_id: int = 77) -> FetchResponse:
    return FetchResponse(
        session_id=session_id, responses=[FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))]
    )


def data(index: int, records: bytes = b"", code: ErrorCode = ErrorCode.NONE) -> PartitionData:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=8, log_start_offset=1, records=records or None
    )


def test_the_first_request_says_who_asks_and_names_every_partition() -> None:
    found = request(fetcher(FIRST, SECOND))
    assert (found.replica_state.replica_id, found.replica_state.replica_epoch) == (2, 40)
    assert (found.session_id, found.session_epoch) == (0, 0)
    assert (found.max_wait_ms, found.max_bytes) == (50, 1_000)
    assert asked(found) == [(0, 10), (1, 10)]
    one = found.topics[0].partitions[0]
    assert (one.current_leader_epoch, one.last_fetched_epoch, one.partition_max_bytes) == (3, 2, 100)


def test_later_requests_of_a_session_name_what_has_changed() -> None:
    made = fetcher(FIRST, SECOND)
    request(made)
    actions = made.received(response(data(0, b"records"), data(1)), now_ms=NOW_MS)
    assert actions == [Fetched(FIRST, b"records", 8, 1), Fetched(SECOND, b"", 8, 1)]
    made.moved(FIRST, offset=12, last_fetched_epoch=3, log_start_offset=0)
    found = request(made)
    assert (found.session_id, found.session_epoch) == (77, 1)
    assert asked(found) == [(0, 12)]
    made.received(response(), now_ms=NOW_MS)
    found = request(made)
    assert found.session_epoch == 2
    assert asked(found) == []
    made.received(response(), now_ms=NOW_MS)
    made.remove(FIRST)
    made.add((TOPIC, 5), leader_epoch=1, offset=0, last_fetched_epoch=-1, log_start_offset=0)
    found = request(made)
    assert asked(found) == [(5, 0)]
    assert forgotten(found) == [0]


def test_records_are_not_acknowledged_before_the_partition_moves() -> None:
    made = fetcher(FIRST)
    request(made)
    made.received(response(data(0, b"records")), now_ms=NOW_MS)
    assert asked(request(made)) == [], "in the session the partition stays at its offset"
    made.failed()
    assert asked(request(made)) == [(0, 10)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_lost_session_begins_anew_at_once(code: ErrorCode) -> None:
    made = fetcher(FIRST)
    request(made)
    made.received(response(), now_ms=NOW_MS)
    request(made)
    assert made.received(FetchResponse(error_code=code), now_ms=NOW_MS) == []
    found = request(made)
    assert (found.session_id, found.session_epoch) == (0, 0)
    assert asked(found) == [(0, 10)]


def test_a_request_without_an_answer_closes_its_session_with_the_next_one() -> None:
    made = fetcher(FIRST)
    request(made)
    made.received(response(), now_ms=NOW_MS)
    request(made)
    made.failed()
    found = request(made)
    assert (found.session_id, found.session_epoch) == (77, 0)
    assert asked(found) == [(0, 10)]


def test_a_leader_without_sessions_gets_full_requests_and_those_that_were_served_come_last() -> None:
    made = fetcher(FIRST, SECOND)
    request(made)
    made.received(response(data(0, b"records"), session_id=0), now_ms=NOW_MS)
    made.moved(FIRST, offset=12, last_fetched_epoch=3, log_start_offset=0)
    found = request(made)
    assert (found.session_id, found.session_epoch) == (0, 0)
    assert asked(found) == [(1, 10), (0, 12)]


def test_a_refused_partition_pauses_longer_each_time_and_the_others_go_on() -> None:
    made = fetcher(FIRST, SECOND)
    request(made)
    refused = response(data(0, code=ErrorCode.NOT_LEADER_OR_FOLLOWER), data(1))
    assert made.received(refused, now_ms=NOW_MS)[0] == Refused(FIRST, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    found = request(made)
    assert forgotten(found) == [0]
    made.received(response(), now_ms=NOW_MS)
    found = request(made, NOW_MS + FIRST_BACKOFF_MS)
    assert asked(found) == [(0, 10)]
    pauses = [made.pause(FIRST, now_ms=NOW_MS) for _ in range(4)]
    assert pauses == [40, 80, 100, 100]
    made.moved(FIRST, offset=11, last_fetched_epoch=3, log_start_offset=0)
    assert made.pause(FIRST, now_ms=NOW_MS) == FIRST_BACKOFF_MS


def test_the_leader_keeps_a_request_no_longer_than_until_a_pause_ends() -> None:
    made = fetcher(FIRST, SECOND)
    made.pause(FIRST, now_ms=NOW_MS)
    assert request(made).max_wait_ms == FIRST_BACKOFF_MS
    made.received(response(data(1)), now_ms=NOW_MS)
    assert request(made, NOW_MS + 5).max_wait_ms == FIRST_BACKOFF_MS - 5
    made.received(response(data(1)), now_ms=NOW_MS + FIRST_BACKOFF_MS)
    assert request(made, NOW_MS + FIRST_BACKOFF_MS).max_wait_ms == 50


def test_nothing_is_asked_while_all_partitions_pause() -> None:
    made = fetcher(FIRST)
    made.pause(FIRST, now_ms=NOW_MS)
    assert made.request(broker_epoch=40, now_ms=NOW_MS) is None
    assert made.resumes_at_ms() == NOW_MS + FIRST_BACKOFF_MS
    made.remove(FIRST)
    assert made.resumes_at_ms() is None


def test_an_answer_for_an_earlier_leader_epoch_is_ignored() -> None:
    made = fetcher(FIRST, SECOND)
    request(made)
    made.remove(FIRST)
    made.add(SECOND, leader_epoch=4, offset=10, last_fetched_epoch=2, log_start_offset=0)
    assert made.received(response(data(0, b"old"), data(1, b"old")), now_ms=NOW_MS) == []


def test_diverging_logs_and_missing_offsets_are_told_apart() -> None:
    made = fetcher(FIRST, SECOND)
    request(made)
    parted = data(0)
    parted.diverging_epoch = EpochEndOffset(epoch=1, end_offset=7)
    found = made.received(response(parted, data(1, code=ErrorCode.OFFSET_OUT_OF_RANGE)), now_ms=NOW_MS)
    assert found == [Diverged(FIRST, 1, 7), OutOfRange(SECOND)]


@pytest.mark.parametrize(
    ("own", "leader", "expected"),
    [
        pytest.param((2, 30), (2, 20), 20, id="the leader's part of the epoch ends earlier"),
        pytest.param((2, 15), (2, 20), 15, id="this node's part ends earlier"),
        pytest.param((1, 12), (2, 20), 12, id="this node has not that epoch, so an earlier one is compared next"),
        pytest.param((-1, -1), (2, 20), 20, id="this node knows no epoch so low"),
        pytest.param((2, 90), (2, 80), 40, id="never beyond the log's end"),
    ],
)
def test_where_a_log_is_cut(own: tuple[int, int], leader: tuple[int, int], expected: int) -> None:
    assert truncation_offset(own, leader, 40) == expected
