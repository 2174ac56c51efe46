"""What a snapshot of the leader changes for a node that is far behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hailbus_broker.cluster.metadata.delta import MetadataDelta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.cluster.metadata.image import MetadataImage

K = TypeVar("K")
T = TypeVar("T")


def difference(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Return what would have led from one image to the other."""
    delta = MetadataDelta(
        removed_topics=[topic for topic_id, topic in before.topics_by_id.items() if topic_id not in after.topics_by_id],
        has_new_features=before.features != after.features,
        brokers_before=_changed(before.brokers, after.brokers),
        controllers_before=_changed(before.controllers, after.controllers),
    )
    for topic_id, topic in after.topics_by_id.items():
        for state in topic.partitions:
            known = before.partition(topic_id, state.index)
            if known is None:
                delta.note_new_partition(topic_id, state.index)
            elif known != state:
                delta.note_change(topic_id, known)
    old = {(int(kind), name): dict(values) for kind, name, values in before.all_configs()}
    new = {(int(kind), name): dict(values) for kind, name, values in after.all_configs()}
    delta.configs.update(dict.fromkeys(_changed(old, new)))
    return delta


def _changed(before: Mapping[K, T], after: Mapping[K, T]) -> dict[K, T | None]:
    """Return what was there before under each key that has another value, or none, now."""
    keys = [*after, *(key for key in before if key not in after)]
    return {key: before.get(key) for key in keys if before.get(key) != after.get(key)}
