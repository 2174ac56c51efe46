"""What an earlier verification compared, kept in the lake's folder, so that a later one checks from there."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analytics_spark.broker_view import Place
from analytics_spark.errors import LakeError

__all__ = ["Accepted", "VerifiedPartition", "read_state", "write_state"]

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Offsets that a person accepted without comparison: the log deleted them before they were compared."""

    start: int
    end: int
    rows: int
    accepted_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPartition:
    """One partition up to which bronze and log agreed.

    Attributes:
        topic_id: Of the topic that was compared.
        end: Verified up to here, exclusive.
        rows: Rows of bronze below `end`.
        checksum: Sum of `hailbus.record_sum.record_hash` over these rows.
        quick_sum: Sum of duckdb's own hash over these rows, which is much cheaper to compute.
        quick_version: The version of duckdb that computed it: its hash may differ in another one.
        verified_at: When, in UTC.
        accepted: Ranges below `end` that were accepted, not compared.
    """

    topic_id: str | None
    end: int
    rows: int
    checksum: int
    quick_sum: int
    quick_version: str
    verified_at: str
    accepted: tuple[Accepted, ...] = ()


def read_state(path: Path) -> dict[Place, VerifiedPartition]:
    """What was verified so far; nothing if there is no such file.

    Raises:
        LakeError: The file is damaged.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    try:
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']!r} is not {_FORMAT}")
        return {(row["topic"], row["partition"]): _partition(row) for row in document["partitions"]}
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _partition(row: Mapping[str, Any]) -> VerifiedPartition:
    return VerifiedPartition(
        topic_id=row["topic_id"],
        end=int(row["end"]),
        rows=int(row["rows"]),
        checksum=int(row["checksum"], 16),
        quick_sum=int(row["quick_sum"], 16),
        quick_version=row["quick_version"],
        verified_at=row["verified_at"],
        accepted=tuple(Accepted(**one) for one in row["accepted"]),
    )


def write_state(path: Path, partitions: Mapping[Place, VerifiedPartition]) -> None:
    """Replace the file atomically."""
    rows = [
        {"topic": topic, "partition": partition}
        | asdict(verified)
        | {"checksum": f"{verified.checksum:016x}", "quick_sum": f"{verified.quick_sum:016x}"}
        for (topic, partition), verified in sorted(partitions.items())
    ]
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "partitions": rows}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _damaged(path: Path, error: Exception) -> LakeError:
    return LakeError(
        f"{path} does not say what was verified ({str(error) or type(error).__name__}); "
        "remove it, and everything is verified anew"
    )
