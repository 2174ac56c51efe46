"""The order-independent checksum of records: fixed values, so that every implementation agrees."""

import hashlib
import random
import struct

import pytest
from hailbus.record_sum import record_hash

Headers = list[tuple[str, bytes | None]]

FIXED: list[tuple[int, int, bytes | None, bytes | None, Headers, int]] = [
    (0, 0, None, None, [], 8690825756985327599),
    (3, 42, b"k", b"v", [("a", None), ("a", b"1"), ("é", b"")], 10980707957677451625),
    (0, 1, b"", b"", [], 2075040511815462867),
    (2**31 - 1, 2**63 - 1, b"\x00\xff", None, [("ce_id", b"x")], 3123595770685334080),
]


@pytest.mark.parametrize(("partition", "offset", "key", "value", "headers", "expected"), FIXED)
def test_the_hash_of_a_record_never_changes(
    partition: int, offset: int, key: bytes | None, value: bytes | None, headers: Headers, expected: int
) -> None:
    assert record_hash(partition, offset, key, value, headers) == expected


def test_any_change_of_a_record_changes_its_hash() -> None:
    records: list[tuple[int, int, bytes | None, bytes | None, Headers]] = [
        (1, 7, b"key", b"value", [("a", b"1"), ("b", b"2")]),
        (2, 7, b"key", b"value", [("a", b"1"), ("b", b"2")]),
        (1, 8, b"key", b"value", [("a", b"1"), ("b", b"2")]),
        (1, 7, None, b"value", [("a", b"1"), ("b", b"2")]),
        (1, 7, b"", b"value", [("a", b"1"), ("b", b"2")]),
        (1, 7, b"keyv", b"alue", [("a", b"1"), ("b", b"2")]),
        (1, 7, b"key", b"Value", [("a", b"1"), ("b", b"2")]),
        (1, 7, b"key", b"value", [("b", b"2"), ("a", b"1")]),
        (1, 7, b"key", b"value", [("a", b"1")]),
        (1, 7, b"key", b"value", [("a", b"1"), ("b", None)]),
        (1, 7, b"key", b"value", [("a", b"1b"), ("", b"2")]),
    ]
    assert len({record_hash(*one) for one in records}) == len(records)


def test_it_is_the_hash_of_the_layout_that_is_documented() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)

    def content() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(40))

    def sized(data: bytes | None) -> bytes:
        return struct.pack("<i", -1) if data is None else struct.pack("<i", len(data)) + data

    for _ in range(200):
        partition, offset, key, value = rng.randrange(2**31), rng.randrange(2**63), content(), content()
        headers = [(f"h{rng.randrange(5)}", content()) for _ in range(rng.randrange(4))]
        layout = b"hailbus-record-v1" + struct.pack("<qq", partition, offset) + sized(key) + sized(value)
        layout += struct.pack("<i", len(headers))
        layout += b"".join(sized(name.encode()) + sized(data) for name, data in headers)
        (expected,) = struct.unpack("<Q", hashlib.blake2b(layout, digest_size=8).digest())
        assert record_hash(partition, offset, key, value, headers) == expected, f"seed {seed}"
