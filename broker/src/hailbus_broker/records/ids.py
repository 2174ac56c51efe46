"""Names for the integers that the log counts with.

They are aliases, not `NewType`s: offsets are added and compared everywhere, and wrapping each sum costs more on the hot
path than it finds.
"""

from __future__ import annotations

from typing import TypeAlias

Offset: TypeAlias = int
"""Position of a record in its partition, from 0."""

LeaderEpoch: TypeAlias = int
"""Number of one partition's leadership."""

ProducerId: TypeAlias = int
"""Identity of an idempotent or transactional producer, -1 for none."""

ProducerEpoch: TypeAlias = int
"""Incarnation of a producer id, 0 to 32767, -1 for none."""

__all__ = ["LeaderEpoch", "Offset", "ProducerEpoch", "ProducerId"]
