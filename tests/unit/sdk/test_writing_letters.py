"""A letter is written in the largest form that its topic takes, and a record without a letter is not settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hailbus import DeliveryError
from hailbus._consuming.failure import Stage, StageError
from hailbus._consuming.path import ProducerOutlet, checked_verdict
from hailbus._consuming.transactions import TransactionOutlet
from hailbus._transport import Outgoing
from hailbus.delivery import Done, Reject, Retry, Skip
from hailbus.errors import RecordTooLargeError, VerdictError

FORMS: tuple[Outgoing, ...] = ((b"k", b"x" * 30, []), (b"k", b"x" * 20, []), (b"k", b"x" * 10, []))


class Topic:
    """A producer for a topic of three partitions that takes values up to a size, or refuses all."""

    def __init__(self, limit: int, error: Exception | None = None) -> None:
        self.limit = limit
        self.error = error
        self.tried: list[int] = []
        self.log: list[tuple[str, int, int]] = []

    async def partition_count(self, topic: str) -> int:
        return 3

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> None:
        ((_, value, _),) = records
        self.tried.append(len(value or b""))
        if self.error is not None:
            raise self.error
        if self.tried[-1] > self.limit:
            raise RecordTooLargeError(topic=topic, size_bytes=self.tried[-1], limit_bytes=self.limit)
        self.log.append((topic, partition, self.tried[-1]))


async def write(topic: Topic, partition: int = 1) -> None:
    producer: Any = topic
    await ProducerOutlet(lambda: producer).write("rides.till-dlt", partition, iter(FORMS))


@pytest.mark.parametrize(("limit", "tried"), [(99, [30]), (29, [30, 20]), (10, [30, 20, 10])])
async def test_the_first_form_that_is_small_enough_is_written_once(limit: int, tried: list[int]) -> None:
    topic = Topic(limit)
    await write(topic)
    assert topic.tried == tried
    assert topic.log == [("rides.till-dlt", 1, tried[-1])]


async def test_a_letter_for_a_partition_that_the_topic_does_not_have_goes_to_another() -> None:
    topic = Topic(99)
    await write(topic, 7)
    assert topic.log == [("rides.till-dlt", 1, 30)]


async def test_in_a_transaction_the_largest_form_waits_for_the_commit_and_the_others_are_kept() -> None:
    producer: Any = Topic(99)
    outlet = TransactionOutlet(lambda: producer)
    await outlet.write("rides.till-dlt", 7, iter(FORMS))
    assert outlet.transaction.pending == {("rides.till-dlt", 1): [FORMS[0]]}
    assert outlet.letter is not None
    assert (outlet.letter.partition, outlet.letter.forms) == (1, list(FORMS[1:]))


async def test_a_letter_of_which_every_form_is_too_large_is_an_error_not_a_success() -> None:
    topic = Topic(5)
    with pytest.raises(StageError) as found:
        await write(topic)
    assert (found.value.stage, topic.tried, topic.log) == (Stage.LETTER, [30, 20, 10], [])
    assert isinstance(found.value.error, RecordTooLargeError)
    assert found.value.error.size_bytes == 10


async def test_another_error_ends_the_attempt_at_once() -> None:
    error = DeliveryError("away", topic="rides.till-dlt", retriable=True)
    topic = Topic(99, error)
    with pytest.raises(StageError) as found:
        await write(topic)
    assert (found.value.error, topic.tried) == (error, [30])


@pytest.mark.parametrize("verdict", [None, Done(), Retry(), Reject("no"), Skip()])
def test_a_verdict_is_taken_as_it_is(verdict: object) -> None:
    assert checked_verdict(verdict, "take") is verdict


def test_anything_else_is_refused_in_words_of_bounded_length() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(VerdictError, match="take returned 3, which is not a verdict"):
        checked_verdict(3, "take")
    with pytest.raises(VerdictError, match="Silent, which is not a verdict"):
        checked_verdict(Silent(), "take")
    with pytest.raises(VerdictError, match=f"returned '{'x' * 198}', which"):
        checked_verdict("x" * 198, "take")
    with pytest.raises(VerdictError, match=f"returned '{'x' * 199}…, which"):
        checked_verdict("x" * 199, "take")
