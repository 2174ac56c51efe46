"""Where keys go: as Java's default, as librdkafka's, and for records without a key."""

from __future__ import annotations

import itertools

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hailbus import ConfigurationError
from hailbus.partitioner import Crc32, Murmur2, RoundRobin, murmur2, partitioner_named
from hypothesis import given
from hypothesis import strategies as st

# org.apache.kafka.common.utils.UtilsTest.testMurmur2, as Java's signed ints
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_murmur2_is_that_of_java(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.binary(max_size=80))
def test_murmur2_is_that_of_aiokafka(key: bytes) -> None:
    assert murmur2(key) == aiokafka_murmur2(key)


@given(st.binary(max_size=40), st.integers(1, 100))
def test_keyed_records_have_one_place(key: bytes, count: int) -> None:
    for partitioner in (Murmur2(), Crc32()):
        if key:
            assert 0 <= partitioner("t", key, count) == partitioner("t", key, count) < count


def test_keyless_records_stick_for_a_while_then_move() -> None:
    partitioner = Murmur2(stay=10, seed=1)
    places = [partitioner("t", None, 4) for _ in range(100)]
    runs = [places[i : i + 10] for i in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(first[0] != second[0] for first, second in itertools.pairwise(runs))
    assert [Murmur2(seed=1)("t", None, 1) for _ in range(3)] == [0, 0, 0]


def test_crc32_is_that_of_librdkafka() -> None:
    assert Crc32()("t", b"123456789", 1 << 32) == 0xCBF43926


def test_round_robin_and_names() -> None:
    partitioner = RoundRobin()
    assert [partitioner("t", b"same", 3) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert isinstance(partitioner_named("consistent_random"), Crc32)
    assert isinstance(partitioner_named("murmur2"), Murmur2)
    with pytest.raises(ConfigurationError, match="there are murmur2, crc32 and round_robin"):
        partitioner_named("md5")
