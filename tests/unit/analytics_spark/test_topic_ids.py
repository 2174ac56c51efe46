"""The ids of landed topics: noted once, compared ever after."""

import base64
from pathlib import Path

import pytest
from analytics_spark.broker_view import topic_id_text
from analytics_spark.errors import DataLossError, LakeError
from analytics_spark.topic_ids import note_topic_ids, read_topic_ids
from confluent_kafka import Uuid


def test_new_topics_are_added_and_known_ones_kept(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    assert read_topic_ids(path) == {}
    note_topic_ids(path, {"a": "1"})
    note_topic_ids(path, {"b": "2"})
    note_topic_ids(path, {"a": "1", "b": "2"})
    assert read_topic_ids(path) == {"a": "1", "b": "2"}


def test_another_id_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    note_topic_ids(path, {"a": "1"})
    with pytest.raises(DataLossError, match="topic 'a' has id 9, and the lake landed id 1: it was deleted and created"):
        note_topic_ids(path, {"a": "9", "b": "2"})
    assert read_topic_ids(path) == {"a": "1"}


def test_both_clients_write_an_id_alike() -> None:
    """The sink's client is Java's, which uses the Base64 alphabet for URLs; librdkafka uses the other one."""
    known = b"\xfb\xef\xbe\xff\xff\xff\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a"
    both = [int.from_bytes(half, signed=True) for half in (known[:8], known[8:])]
    expected = base64.urlsafe_b64encode(known).decode().rstrip("=")
    assert {"-", "_"} <= set(expected)
    assert topic_id_text(Uuid(*both)) == expected
    assert topic_id_text(Uuid(0, 0)) is None
    assert topic_id_text(None) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", "7"])
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topics.json"
    path.write_text(text)
    with pytest.raises(LakeError, match="does not hold the ids of the landed topics"):
        read_topic_ids(path)
