"""The ids of the topics that a lake has landed: a topic that was deleted and created again is another topic.

The sink notes them when it first sees a topic; `lake verify` compares them with the broker's.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from analytics_spark.errors import DataLossError, LakeError

__all__ = ["note_topic_ids", "read_topic_ids"]


def read_topic_ids(path: Path) -> dict[str, str]:
    """Topic → id, of every topic that was landed; empty for a lake that noted none.

    Raises:
        LakeError: The file is damaged.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {str(topic): str(topic_id) for topic, topic_id in document.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise LakeError(
            f"{path} does not hold the ids of the landed topics ({error}); bring it back from a backup, or remove it "
            "if no topic was created anew since the lake began"
        ) from error


def note_topic_ids(path: Path, found: Mapping[str, str]) -> None:
    """Add the ids of topics that are new to the lake.

    Args:
        path: The lake's file of ids.
        found: Topic → id as the broker gives them now.

    Raises:
        DataLossError: A landed topic has another id now, so its offsets mean other records.
    """
    known = read_topic_ids(path)
    for topic, topic_id in sorted(found.items()):
        if known.get(topic, topic_id) != topic_id:
            raise DataLossError(
                f"topic {topic!r} has id {topic_id}, and the lake landed id {known[topic]}: it was deleted and created "
                "again, or the broker was emptied or is another one. Its offsets mean other records now: bring the "
                "broker's data back, or start a new LAKE_DIR"
            )
    if found.keys() <= known.keys():
        return
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(known | dict(found), indent=1, sort_keys=True), encoding="utf-8")
    beside.replace(path)
