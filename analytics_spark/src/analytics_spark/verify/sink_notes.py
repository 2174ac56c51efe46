"""What the sink wrote down while it landed: where the lake began, up to where it is, and which topics it knows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from analytics_spark.broker_view import Place
from analytics_spark.errors import LakeError
from analytics_spark.sinks import batch_offsets

__all__ = ["SinkNotes", "read_sink_notes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNotes:
    """What the sink wrote down while it landed.

    Attributes:
        topic_ids: Topic → id, of the topics that it landed.
        began: Where each partition's log began when the sink first read it. Partitions that came later began at 0.
        landed: Partition → next offset after its last committed batch.
    """

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    began: Mapping[Place, int] = field(default_factory=dict)
    landed: Mapping[Place, int] = field(default_factory=dict)


def read_sink_notes(checkpoint: Path, topic_ids: Mapping[str, str]) -> SinkNotes:
    """The notes in the checkpoint of bronze's query; none where there is no checkpoint.

    Raises:
        LakeError: A note is damaged.
    """
    began = checkpoint / "sources" / "0" / "0"
    commits = sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    try:
        # Spark writes a byte 0 and a line with the version before the JSON.
        first: dict[str, dict[str, int]] = json.loads(began.read_bytes().partition(b"\n")[2]) if began.is_file() else {}
        landed = batch_offsets(checkpoint, commits[-1]) if commits else {}
    except (OSError, ValueError, IndexError) as error:
        raise LakeError(
            f"{checkpoint} cannot be read ({error}): it says where the lake began; bring it back from a backup"
        ) from error
    return SinkNotes(topic_ids=topic_ids, began=_by_place(first), landed=_by_place(landed))


def _by_place(offsets: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    return {(topic, int(part)): int(offset) for topic, parts in offsets.items() for part, offset in parts.items()}
