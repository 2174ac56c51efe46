"""Which partition a record goes to. The default agrees with Java's, so that all languages agree where a key lives."""

from __future__ import annotations

import random
import struct
import zlib
from functools import lru_cache
from typing import Protocol

from hailbus.errors import ConfigurationError

__all__ = ["Crc32", "Murmur2", "Partitioner", "RoundRobin", "murmur2", "partitioner_named"]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of a key: 32 bits, unsigned, as `org.apache.kafka.common.utils.Utils.murmur2`."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{words}I", data):
        k = k * _M & _MASK  # noqa: PLW2901 the algorithm mixes in place
        k ^= k >> 24  # noqa: PLW2901 the algorithm mixes in place
        h = (h * _M ^ k * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[words << 2 :], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


class Partitioner(Protocol):
    """Chooses a partition; called once per record, must be quick and without side effects on other topics."""

    def __call__(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """A partition from 0 to `partition_count` - 1."""
        ...


class _Sticky:
    """Records without a key stay on one partition for a while, so that batches fill, then move on."""

    def __init__(self, *, stay: int, seed: int | None) -> None:
        self._stay = stay
        self._random = random.Random(seed)
        self._current: dict[str, tuple[int, int]] = {}

    def __call__(self, topic: str, partition_count: int) -> int:
        partition, left = self._current.get(topic, (-1, 0))
        if left <= 0 or partition >= partition_count:
            step = self._random.randrange(1, partition_count) if partition_count > 1 else 0
            partition = (max(partition, 0) + step) % partition_count
            left = self._stay
        self._current[topic] = (partition, left - 1)
        return partition


@lru_cache(maxsize=65536)
def _murmur2_positive(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


class Murmur2:
    """Java's default: murmur2 of the key, sticky without a key."""

    def __init__(self, *, stay: int = 500, seed: int | None = None) -> None:
        self._sticky = _Sticky(stay=stay, seed=seed)

    def __call__(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """See `Partitioner`."""
        return self._sticky(topic, partition_count) if key is None else _murmur2_positive(key) % partition_count


class Crc32:
    """librdkafka's default (`consistent_random`), CRC-32 of the key: for topics that such producers write to."""

    def __init__(self, *, stay: int = 500, seed: int | None = None) -> None:
        self._sticky = _Sticky(stay=stay, seed=seed)

    def __call__(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """See `Partitioner`."""
        return self._sticky(topic, partition_count) if not key else zlib.crc32(key) % partition_count


class RoundRobin:
    """Each record to the next partition, whatever its key: no order per key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, partition_count: int) -> int:  # noqa: ARG002 the key is ignored
        """See `Partitioner`."""
        partition = self._next.get(topic, 0) % partition_count
        self._next[topic] = partition + 1
        return partition


def partitioner_named(name: str) -> Partitioner:
    """A partitioner by the name that Kafka or librdkafka gives it.

    Raises:
        ConfigurationError: There is none with this name.
    """
    match name:
        case "murmur2" | "murmur2_random":
            return Murmur2()
        case "crc32" | "consistent_random":
            return Crc32()
        case "round_robin" | "roundrobin":
            return RoundRobin()
        case _:
            message = f"no partitioner is called {name!r}; there are murmur2, crc32 and round_robin"
            raise ConfigurationError(message)
