"""Apache Kafka's own classes read every metadata and control record that is written here, and write the same bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.cluster.metadata.records import RECORD_TYPES, encode_record, record_class
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.kraft_version_record import KRaftVersionRecord
from hailbus_broker.protocol.definitions.leader_change_message import LeaderChangeMessage
from hailbus_broker.protocol.definitions.snapshot_footer_record import SnapshotFooterRecord
from hailbus_broker.protocol.definitions.snapshot_header_record import SnapshotHeaderRecord
from hailbus_broker.protocol.definitions.voters_record import VotersRecord
from hailbus_broker.protocol.schema import Field, Message, Struct

from tests.integration.broker.mixed_nodes import DEADLINE_S, kafka_script

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.needs("apache kafka", "javac"), pytest.mark.timeout(300)]

CONTROL_RECORDS: list[type[Message]] = [
    LeaderChangeMessage,
    SnapshotHeaderRecord,
    SnapshotFooterRecord,
    KRaftVersionRecord,
    VotersRecord,
]
DRAWS = 20
"""Records of each type and version."""

BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}


def test_apache_kafka_writes_the_same_bytes_with_the_same_values() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed={seed}")
    drawn = list(records(random.Random(seed)))
    lines = "".join(f"{name} {version} {data.hex()}\n" for name, version, data, _ in drawn)
    program = Path(__file__).with_name("EncodeAgain.java")
    jars = subprocess.run([kafka_script(), "classpath"], check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", jars, str(program)],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(drawn)
    for (name, version, data, record), answer in zip(drawn, answers, strict=True):
        again, _, values = answer.partition(" ")
        assert again == data.hex(), (name, version, record)
        assert_same_values(record, json.loads(values), f"{type(record).__name__} {version}")
    types = {type(record).__name__ for *_, record in drawn}
    assert len(types) == len(RECORD_TYPES) + len(CONTROL_RECORDS)


def records(rng: random.Random) -> Iterator[tuple[str, int, bytes, Message]]:
    """Draw records of every type in every version, and encode them."""
    for key in RECORD_TYPES:
        cls = record_class(key)
        for version in range(cls.__versions__.first, cls.__versions__.last + 1):
            for _ in range(DRAWS):
                record = draw_struct(cls, version, rng)
                yield "metadata", version, encode_record(record, version), record
    for cls in CONTROL_RECORDS:
        for version in range(cls.__versions__.first, cls.__versions__.last + 1):
            for _ in range(DRAWS):
                record = draw_struct(cls, version, rng)
                if "version" in {field.name for field in cls.__fields__}:
                    record.version = version
                yield cls.__name__, version, bytes(codec.encode(record, version)), record


def draw_struct(cls: type[Any], version: int, rng: random.Random) -> Any:
    """Fill the fields that a version has; a third of the tagged ones keep their defaults."""
    return cls(
        **{
            field.name: draw(field, version, rng)
            for field in cls.__fields__
            if version in field.versions and not (field.tag is not None and rng.random() < 1 / 3)
        }
    )


def draw(field: Field, version: int, rng: random.Random) -> Any:
    if version in field.nullable and rng.random() < 1 / 4:
        return None
    if field.kind in BITS:
        low = 0 if field.kind.startswith("u") else -(2 ** BITS[field.kind])
        return rng.choice([0, rng.randrange(low, 2 ** BITS[field.kind])])
    match field.kind:
        case "bool":
            return rng.random() < 1 / 2
        case "float64":
            return rng.choice([0.0, 1.5, rng.uniform(-1e9, 1e9)])
        case "uuid":
            return rng.randbytes(16)
        case "string":
            return rng.choice(["", "rides.v1", "ä", "x" * 200])
        case "bytes":
            return rng.randbytes(rng.choice([0, 1, 200]))
        case "array":
            return [draw_element(field, version, rng) for _ in range(rng.choice([0, 1, 3]))]
        case _:
            return draw_struct(field.element, version, rng)  # type: ignore[arg-type]  # a struct has its class there


def draw_element(field: Field, version: int, rng: random.Random) -> Any:
    if isinstance(field.element, Field):
        return draw(field.element, version, rng)
    return draw_struct(field.element, version, rng)  # type: ignore[arg-type]  # an array of structs


def assert_same_values(record: Struct, values: dict[str, Any], place: str) -> None:
    """Compare with what Apache Kafka has read; it leaves out tagged fields that have their defaults."""
    named = {name.lower(): value for name, value in values.items()}
    for field in record.__fields__:
        ours = getattr(record, field.name)
        name = field.name.replace("_", "")
        if name in named:
            assert_same(field, ours, named.pop(name), f"{place} {field.name}")
        else:
            assert ours == field.new_default(), f"{place} {field.name}"
    assert not named, place


def assert_same(field: Field, ours: Any, theirs: Any, place: str) -> None:
    if ours is None:
        assert theirs is None, place
    elif field.kind == "array":
        assert len(ours) == len(theirs), place
        for one, other in zip(ours, theirs, strict=True):
            if isinstance(field.element, Field):
                assert_same(field.element, one, other, place)
            else:
                assert_same_values(one, other, place)
    elif field.kind == "struct":
        assert_same_values(ours, theirs, place)
    elif field.kind == "uuid":
        assert urlsafe_b64encode(ours).decode().rstrip("=") == theirs, place
    elif field.kind == "bytes":
        assert b64encode(bytes(ours)).decode() == theirs, place
    else:
        assert ours == theirs, place
