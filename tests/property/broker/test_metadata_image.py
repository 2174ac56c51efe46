"""The image of the metadata: a snapshot keeps all of it, copies are apart, and a delta names every change."""

from __future__ import annotations

import random

from hailbus_broker.cluster.metadata.difference import difference
from hailbus_broker.cluster.metadata.image import MetadataImage, PartitionState
from hailbus_broker.cluster.metadata.records import RECORD_TYPES, decode_record, encode_record
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.property.broker.metadata_records import RandomRecords

TRANSACTION_MARKERS = {23, 24, 25}
STEPS = 120


def partitions(image: MetadataImage) -> dict[tuple[bytes, int], PartitionState]:
    return {(topic.topic_id, state.index): state for topic in image.topics.values() for state in topic.partitions}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_snapshot_makes_the_same_image(seed: int) -> None:
    note(f"seed {seed}")
    drawn = RandomRecords(random.Random(seed))
    for _ in range(random.Random(seed + 1).randrange(STEPS)):
        drawn.next()
    records = drawn.image.to_records()
    again = MetadataImage()
    again.apply(decode_record(encode_record(record)) for record in records)
    assert again.to_records() == records
    assert partitions(again) == partitions(drawn.image)
    assert again.brokers == drawn.image.brokers
    assert again.controllers == drawn.image.controllers
    assert again.features == drawn.image.features
    assert again.all_configs() == drawn.image.all_configs()
    assert again.quotas.by_entity == drawn.image.quotas.by_entity
    assert again.producer_ids == drawn.image.producer_ids
    for part in ("scram", "acls", "tokens"):
        assert getattr(again.security, part) == getattr(drawn.image.security, part)
    assert again.partition_count == drawn.image.partition_count == len(partitions(again))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_a_copy_and_its_original_change_apart(seed: int) -> None:
    """After a failed append the controller goes back to the committed image: neither sees the other's changes."""
    note(f"seed {seed}")
    rng = random.Random(seed)
    drawn = RandomRecords(rng)
    committed = MetadataImage()
    for _ in range(6):
        for _ in range(rng.randrange(20)):
            committed.replay(drawn.next())
        expected = drawn.image.to_records()
        assert committed.to_records() == expected
        uncommitted = RandomRecords(rng)
        uncommitted.image = committed.copy()
        for _ in range(rng.randrange(20)):
            uncommitted.next()
        after = uncommitted.image.to_records()
        assert committed.to_records() == expected
        drawn.image = committed.copy()
        for _ in range(rng.randrange(20)):
            committed.replay(drawn.next())
        assert uncommitted.image.to_records() == after
        assert committed.to_records() == drawn.image.to_records()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_delta_names_every_change(seed: int) -> None:
    note(f"seed {seed}")
    rng = random.Random(seed)
    drawn = RandomRecords(rng)
    image = MetadataImage()
    for _ in range(8):
        records = [drawn.next() for _ in range(rng.randrange(25))]
        before = image.copy()
        old = partitions(before)
        delta = image.apply(records)
        new = partitions(image)
        assert image.to_records() == drawn.image.to_records()
        assert {
            (topic_id, index) for topic_id, indexes in delta.new_partitions.items() for index in indexes
        } == new.keys() - old.keys()
        changed = {(topic_id, index) for topic_id, indexes in delta.changed_partitions.items() for index in indexes}
        assert changed == {key for key in new.keys() & old.keys() if new[key] != old[key]}
        assert delta.partitions_before == {key: old.get(key) for key in changed | (new.keys() - old.keys())}
        removed = {topic.topic_id for topic in delta.removed_topics}
        assert before.topics_by_id.keys() - image.topics_by_id.keys() <= removed
        for name, nodes_before, nodes_after in (
            ("brokers_before", before.brokers, image.brokers),
            ("controllers_before", before.controllers, image.controllers),
        ):
            noted = getattr(delta, name)
            for node_id in nodes_before.keys() | nodes_after.keys():
                if nodes_before.get(node_id) != nodes_after.get(node_id):
                    assert noted[node_id] == nodes_before.get(node_id)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_the_difference_of_two_images_names_every_change(seed: int) -> None:
    note(f"seed {seed}")
    rng = random.Random(seed)
    drawn = RandomRecords(rng)
    before = MetadataImage()
    before.apply([drawn.next() for _ in range(rng.randrange(60))])
    after = before.copy()
    applied = after.apply([drawn.next() for _ in range(rng.randrange(60))])
    snapshot = MetadataImage()
    snapshot.apply(after.to_records())
    found = difference(before, snapshot)
    old, new = partitions(before), partitions(snapshot)
    assert {
        (topic_id, index) for topic_id, indexes in found.new_partitions.items() for index in indexes
    } == new.keys() - old.keys()
    changed = {(topic_id, index) for topic_id, indexes in found.changed_partitions.items() for index in indexes}
    assert changed == {key for key in new.keys() & old.keys() if new[key] != old[key]}
    assert {topic.topic_id for topic in found.removed_topics} == before.topics_by_id.keys() - after.topics_by_id.keys()
    assert found.brokers_before.keys() <= applied.brokers_before.keys()
    assert found.brokers_before == {
        node_id: before.brokers.get(node_id)
        for node_id in before.brokers.keys() | snapshot.brokers.keys()
        if before.brokers.get(node_id) != snapshot.brokers.get(node_id)
    }
    for kind, name, values in (*before.all_configs(), *snapshot.all_configs()):
        is_changed = before.configs(kind, name) != snapshot.configs(kind, name)
        assert ((int(kind), name) in found.configs) == is_changed, (kind, name, values)
    assert found.has_new_features == (before.features != after.features)


def test_every_type_of_record_is_drawn() -> None:
    drawn = RandomRecords(random.Random(1))
    assert {drawn.next().__api_key__ for _ in range(2_000)} == set(RECORD_TYPES) - TRANSACTION_MARKERS
