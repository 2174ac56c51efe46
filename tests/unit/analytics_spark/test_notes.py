"""What the sink and earlier verifications wrote down, and what is said of notes that are damaged."""

import json
from pathlib import Path

import pytest
from analytics_spark.errors import LakeError
from analytics_spark.verify.sink_notes import SinkNotes, read_sink_notes
from analytics_spark.verify.state import Accepted, VerifiedPartition, read_state, write_state

STATE = {
    ("b", 1): VerifiedPartition(
        topic_id="id",
        end=9,
        rows=8,
        checksum=255,
        quick_sum=2**63,
        quick_version="1",
        verified_at="now",
        accepted=(Accepted(start=0, end=2, rows=1, accepted_at="then"),),
    ),
    ("a", 0): VerifiedPartition(
        topic_id=None, end=0, rows=0, checksum=0, quick_sum=0, quick_version="1", verified_at="now"
    ),
}


def test_what_was_verified_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    assert read_state(path) == {}
    write_state(path, {})
    write_state(path, STATE)
    assert read_state(path) == STATE
    document = json.loads(path.read_text())
    assert [(row["topic"], row["checksum"], row["quick_sum"]) for row in document["partitions"]] == [
        ("a", "0" * 16, "0" * 16),
        ("b", "00000000000000ff", "8000000000000000"),
    ]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value: line 1"),
        ("{", "Expecting property name"),
        ("[]", "list indices must be integers"),
        ('{"format": 2, "partitions": []}', "format 2 is not 1"),
        ('{"partitions": []}', "'format'"),
        ('{"format": 1, "partitions": [{"topic": "a", "partition": 0}]}', "'topic_id'"),
    ],
)
def test_a_damaged_note_of_a_verification_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "verified.json"
    path.write_text(text)
    with pytest.raises(LakeError) as caught:
        read_state(path)
    assert str(caught.value).startswith(f"{path} does not say what was verified ({why}")
    assert str(caught.value).endswith("; remove it, and everything is verified anew")


def test_a_note_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="does not say what was verified"):
        read_state(tmp_path)


def _checkpoint(folder: Path) -> Path:
    """Spark's files of a query with two committed batches and a third that was begun."""
    for name in ("sources/0", "commits", "offsets"):
        (folder / name).mkdir(parents=True)
    (folder / "sources/0/0").write_bytes(b"\x00v1\n" + json.dumps({"a": {"0": 3, "1": 0}}).encode())
    for number in (2, 9, 10):
        (folder / f"offsets/{number}").write_text(f'v1\n{{}}\n{{"a": {{"0": {number}, "1": 7}}}}')
    for number in (2, 9):
        (folder / f"commits/{number}").write_text("v1\n{}")
    (folder / "commits/.9.crc").write_text("")
    return folder


def test_the_notes_of_the_sink_are_those_of_its_last_committed_batch(tmp_path: Path) -> None:
    assert read_sink_notes(tmp_path / "none", {"a": "id"}) == SinkNotes(topic_ids={"a": "id"})
    checkpoint = _checkpoint(tmp_path / "bronze")
    expected = SinkNotes(topic_ids={"a": "id"}, began={("a", 0): 3, ("a", 1): 0}, landed={("a", 0): 9, ("a", 1): 7})
    assert read_sink_notes(checkpoint, {"a": "id"}) == expected
    (checkpoint / "commits/10").write_text("v1\n{}")
    assert read_sink_notes(checkpoint, {}).landed == {("a", 0): 10, ("a", 1): 7}


@pytest.mark.parametrize(
    ("name", "text"), [("sources/0/0", "v1\n{"), ("sources/0/0", "v1"), ("offsets/9", "v1\n{}"), ("offsets/9", "\n\n{")]
)
def test_a_damaged_note_of_the_sink_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    checkpoint = _checkpoint(tmp_path / "bronze")
    (checkpoint / name).write_text(text)
    with pytest.raises(LakeError, match=f"{checkpoint} cannot be read .*: it says where the lake began; bring it back"):
        read_sink_notes(checkpoint, {})


def test_a_batch_whose_offsets_are_gone_is_an_error(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path / "bronze")
    (checkpoint / "offsets/9").unlink()
    with pytest.raises(LakeError, match="cannot be read"):
        read_sink_notes(checkpoint, {})
