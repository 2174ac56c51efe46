"""The order of requests and answers on a connection, without a socket or a loop."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.server.pipeline import PRODUCE, QUEUED_BYTES, QUEUED_FRAMES, Pipeline

if TYPE_CHECKING:
    from hailbus_broker.server.request import Part

FETCH = 1


@dataclass
class Exchange:
    frame: memoryview
    api_key: int
    is_done: bool = False
    has_files: bool = False
    parts: list[Part] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return len(self.frame)


def request(api_key: int, payload: bytes = b"") -> bytes:
    return struct.pack(">ih", 2 + len(payload), api_key) + payload


def new_pipeline() -> Pipeline[Exchange]:
    return Pipeline(memoryview(bytearray(256 * 1024)), max_request_bytes=100 * 1024 * 1024)


def feed(pipeline: Pipeline[Exchange], data: bytes) -> None:
    while data:
        buffer = pipeline.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        pipeline.received(count)


def start_all(pipeline: Pipeline[Exchange]) -> list[Exchange]:
    """Start what may be started now."""
    begun = []
    while (frame := pipeline.next_frame()) is not None:
        exchange = Exchange(frame, int.from_bytes(frame[:2], "big"))
        pipeline.started(exchange)
        begun.append(exchange)
    return begun


def answer(pipeline: Pipeline[Exchange], exchange: Exchange, *parts: bytes, has_files: bool = False) -> None:
    exchange.is_done, exchange.has_files, exchange.parts = True, has_files, list(parts)
    pipeline.answered()


def test_one_request_at_a_time_is_in_work() -> None:
    pipeline = new_pipeline()
    feed(pipeline, request(FETCH, b"1") + request(FETCH, b"2"))
    (first,) = start_all(pipeline)
    assert bytes(first.frame[2:]) == b"1"
    assert start_all(pipeline) == []
    answer(pipeline, first, b"a")
    assert pipeline.take_answers() == ([b"a"], None, 3)
    (second,) = start_all(pipeline)
    assert bytes(second.frame[2:]) == b"2"


def test_a_produce_request_that_is_still_being_begun_is_not_overtaken() -> None:
    pipeline = new_pipeline()
    feed(pipeline, request(PRODUCE, b"1") + request(PRODUCE, b"2"))
    frame = pipeline.next_frame()
    assert frame is not None
    pipeline.started(Exchange(frame, PRODUCE))
    pipeline.is_beginning = True
    assert start_all(pipeline) == []
    pipeline.is_beginning = False
    (second,) = start_all(pipeline)
    assert bytes(second.frame[2:]) == b"2"


def test_produce_requests_begin_while_earlier_ones_wait_and_are_answered_in_order() -> None:
    pipeline = new_pipeline()
    feed(pipeline, request(PRODUCE, b"1") + request(PRODUCE, b"2") + request(FETCH, b"3") + request(PRODUCE, b"4"))
    first, second = start_all(pipeline)
    answer(pipeline, second, b"b")
    assert not pipeline.has_answers
    answer(pipeline, first, b"a")
    assert pipeline.take_answers().parts == [b"a", b"b"]
    (fetch,) = start_all(pipeline)
    assert fetch.api_key == FETCH
    answer(pipeline, fetch, b"c")
    pipeline.take_answers()
    assert len(start_all(pipeline)) == 1


def test_so_many_produce_requests_may_be_in_work() -> None:
    pipeline = new_pipeline()
    feed(pipeline, request(PRODUCE) * (QUEUED_FRAMES + 10))
    assert len(start_all(pipeline)) == QUEUED_FRAMES


def test_nothing_is_started_for_a_client_that_does_not_read() -> None:
    pipeline = new_pipeline()
    pipeline.is_writable = False
    feed(pipeline, request(FETCH))
    assert start_all(pipeline) == []
    pipeline.is_writable = True
    assert len(start_all(pipeline)) == 1


@pytest.mark.parametrize("payload", [b"", bytes(100_000)])
def test_a_client_that_pipelines_too_much_is_not_read_until_all_of_it_is_started(payload: bytes) -> None:
    pipeline = new_pipeline()
    assert not pipeline.flow(is_full=False)
    while not pipeline.has_queued_too_much:
        feed(pipeline, request(FETCH, payload))
        assert pipeline.queued_bytes <= QUEUED_BYTES + 2 + len(payload)
    assert pipeline.flow(is_full=True)
    assert pipeline.is_paused
    while pipeline.has_requests:
        assert not pipeline.flow(is_full=pipeline.has_queued_too_much)
        for exchange in start_all(pipeline):
            answer(pipeline, exchange)
        pipeline.take_answers()
    assert pipeline.queued_bytes == 0
    assert pipeline.flow(is_full=False)
    assert not pipeline.is_paused


def test_nothing_passes_an_answer_that_is_sent_from_files() -> None:
    pipeline = new_pipeline()
    feed(pipeline, request(PRODUCE) * 3 + request(FETCH))
    first, second, third = start_all(pipeline)
    answer(pipeline, first, b"a")
    answer(pipeline, second, has_files=True)
    answer(pipeline, third, b"c")
    parts, from_files, request_bytes = pipeline.take_answers()
    assert (parts, request_bytes) == ([b"a"], 4)
    assert from_files is second
    assert not pipeline.has_answers
    assert start_all(pipeline) == []
    pipeline.files_sent()
    assert pipeline.take_answers().parts == [b"c"]
    assert len(start_all(pipeline)) == 1


@pytest.mark.parametrize("from_files", [False, True])
def test_a_client_that_ends_gets_what_it_is_owed(from_files: bool) -> None:
    pipeline = new_pipeline()
    assert not pipeline.end()
    feed(pipeline, request(FETCH))
    assert pipeline.end()
    (exchange,) = start_all(pipeline)
    answer(pipeline, exchange, b"a", has_files=from_files)
    pipeline.take_answers()
    assert pipeline.is_idle is not from_files
    assert pipeline.end() is from_files  # as when the client ends while the answer is sent
    pipeline.files_sent()
    assert pipeline.is_idle


def test_what_a_lost_connection_held_is_counted() -> None:
    pipeline = new_pipeline()
    feed(pipeline, request(FETCH, b"in work") + request(FETCH, b"queued"))
    begun = start_all(pipeline)
    assert pipeline.clear() == (2 + 7 + 2 + 6, begun)


def test_bytes_that_are_no_requests_are_refused() -> None:
    with pytest.raises(ProtocolError):
        feed(new_pipeline(), b"\xff\xff\xff\xff")


@pytest.mark.parametrize("seed", range(50))
def test_answers_come_in_the_order_of_the_requests(seed: int) -> None:
    rng = random.Random(seed)
    pipeline = new_pipeline()
    count = 200
    data = b"".join(request(rng.choice([PRODUCE, PRODUCE, FETCH]), b"%d" % number) for number in range(count))
    open_exchanges: list[Exchange] = []
    answered: list[Part] = []
    while len(answered) < count:
        step = rng.randint(0, 40)
        feed(pipeline, data[:step])
        data = data[step:]
        open_exchanges += start_all(pipeline)
        assert len({exchange.api_key for exchange in open_exchanges}) <= 1
        assert len(open_exchanges) <= 1 or open_exchanges[0].api_key == PRODUCE
        rng.shuffle(open_exchanges)
        for _ in range(rng.randint(0, len(open_exchanges))):
            exchange = open_exchanges.pop()
            answer(pipeline, exchange, bytes(exchange.frame[2:]), has_files=rng.random() < 0.2)
        while pipeline.has_answers:
            parts, from_files, _ = pipeline.take_answers()
            answered += parts
            if from_files is not None:
                answered += from_files.parts
                pipeline.files_sent()
    assert answered == [b"%d" % number for number in range(count)], seed
