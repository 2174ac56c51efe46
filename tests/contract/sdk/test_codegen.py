"""Packages of event classes from contracts: the same schemas again, under mypy strict."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import ride_events
from hailbus import Catalogue, event_info, key_of
from hailbus.asyncapi import asyncapi
from hailbus.asyncapi_reader import contracts_in
from hailbus.cli import app
from hailbus.codec import decode_value
from hailbus.codegen import package_of, write_package
from hailbus.contract import Contract, contract_of, write_contracts
from hailbus.errors import ConfigurationError, InvalidPayloadError
from typer.testing import CliRunner

from tests.support import mypy_cache

Import = Callable[[str], ModuleType]
SOURCE = Path(__file__).resolve().parents[3] / "sdk" / "src"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def twice(schema: dict[str, Any]) -> list[Contract]:
    return [
        Contract(type="order.placed", version=version, topic="orders.v1", key="order-id", schema=schema)
        for version in (1, 2)
    ]


def command(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def test_generated_packages_pass_mypy_strict(tmp_path: Path) -> None:
    rides = [contract_of(cls) for cls in ride_events.CATALOGUE]
    write_package(package_of(rides), tmp_path / "rides_again")
    write_package(package_of(twice(AWKWARD)), tmp_path / "awkward")
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {SOURCE}\n[mypy-aiokafka.*]\nignore_missing_imports = True\n"
    )
    cache = mypy_cache("typing")  # the first run reads pydantic, FastAPI and SQLAlchemy
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(config),
            "--cache-dir",
            str(cache),
            "rides_again",
            "awkward",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("Success: no issues found in 15 source files"), done.stdout


def test_the_examples_language_round_trips_through_its_asyncapi_document(tmp_path: Path, package: Import) -> None:
    document = asyncapi([], title="Rides", version="1.0.0", catalogue=ride_events.CATALOGUE)
    (tmp_path / "asyncapi.json").write_text(json.dumps(document))
    command("codegen", tmp_path / "asyncapi.json", "-o", tmp_path / "rides_again")
    found: Catalogue = package("rides_again").CATALOGUE
    assert {contract_of(cls).name for cls in found} == {contract_of(cls).name for cls in ride_events.CATALOGUE}
    for cls in ride_events.CATALOGUE:
        info = event_info(cls)
        again = found.lookup(info.type, info.version)
        assert contract_of(again).as_json() == contract_of(cls).as_json()
        assert (again.__name__, event_info(again)) == (cls.__name__, info)
    assert found.topics == ride_events.TOPICS


def test_a_folder_of_contracts_gives_the_same_classes(tmp_path: Path, package: Import) -> None:
    write_contracts(ride_events.CATALOGUE, tmp_path / "contracts")
    command("codegen", tmp_path / "contracts", "-o", tmp_path / "by_folder", "--topic", "rides.v1")
    found: Catalogue = package("by_folder").CATALOGUE
    assert {topic.name for topic in found.topics} == {"rides.v1"}
    for cls in found:
        info = event_info(cls)
        assert contract_of(cls) == contract_of(ride_events.CATALOGUE.lookup(info.type, info.version))


AWKWARD: dict[str, Any] = {
    "title": "Order Placed",
    "description": 'Says "placed" and \\ "".',
    "type": "object",
    "$defs": {
        "Colour": {"title": "Colour", "enum": ["light red", "blue"], "type": "string"},
        "Card": {
            "title": "Card",
            "type": "object",
            "required": ["kind", "number"],
            "properties": {"kind": {"const": "card", "type": "string"}, "number": {"type": "string"}},
        },
        "Cash": {
            "title": "Cash",
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "cash", "type": "string"}},
        },
        "Node": {
            "title": "Node",
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None},
            },
        },
    },
    "properties": {
        "order-id": {"type": "string", "minLength": 1},
        "class": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "schema": {"type": "string"},
        "colour": {"$ref": "#/$defs/Colour", "default": "blue"},
        "paid": {
            "oneOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Cash"}],
            "discriminator": {"propertyName": "kind", "mapping": {}},
        },
        "chain": {"$ref": "#/$defs/Node"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "default": ["a"]},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {"type": ["string", "null"], "description": "Free."},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["order-id", "class", "schema", "paid", "chain", "at", "tags", "pair", "counts", "mail"],
    "additionalProperties": False,
}
VALUE = {
    "order-id": "a",
    "class": 3,
    "schema": "s",
    "colour": "light red",
    "paid": {"kind": "card", "number": "1"},
    "chain": {"name": "x", "next": {"name": "y", "next": None}},
    "at": "2024-05-01T12:00:00Z",
    "tags": ["b"],
    "pair": [1, "x"],
    "counts": {"n": 2},
    "note": None,
    "mail": "a@b.c",
}


def test_awkward_names_unions_enumerations_and_recursion(tmp_path: Path, package: Import) -> None:
    write_package(package_of(twice(AWKWARD)), tmp_path / "awkward")
    module = package("awkward")
    newest, first = module.OrderPlaced, module.OrderPlacedV1
    assert [event_info(cls).version for cls in (newest, first)] == [2, 1]
    event = decode_value(newest, json.dumps(VALUE).encode())
    assert json.loads(event.__pydantic_serializer__.to_json(event)) == VALUE
    assert key_of(event) == b"a"
    schema = newest.model_json_schema(mode="serialization")
    assert schema["properties"]["order-id"] == {"minLength": 1, "title": "Order-Id", "type": "string"}
    assert schema["title"] == "Order Placed"
    for wrong in ({"class": 10}, {"paid": {"kind": "iou"}}, {"tags": ["B"]}, {"more": 1}, {"colour": "green"}):
        with pytest.raises(InvalidPayloadError):
            decode_value(newest, json.dumps({**VALUE, **wrong}).encode())


def test_a_foreign_asyncapi_document_gives_events_too() -> None:
    document = {
        "asyncapi": "3.0.0",
        "channels": {
            "users": {"address": "users", "messages": {"UserSignedUp.v2": {"$ref": "#/components/messages/Up"}}}
        },
        "components": {
            "messages": {
                "Up": {
                    "payload": {
                        "schemaFormat": "application/schema+json",
                        "schema": {"$ref": "#/components/schemas/User"},
                    }
                }
            },
            "schemas": {
                "User": {"type": "object", "properties": {"home": {"$ref": "#/components/schemas/Home"}}},
                "Home": {"type": "object", "properties": {"town": {"type": "string"}}},
            },
        },
    }
    (found,) = contracts_in(document)
    assert (found.type, found.version, found.topic, found.key) == ("user.signed.up", 2, "users", None)
    assert found.schema["properties"] == {"home": {"$ref": "#/$defs/Home"}}
    assert "town: str | None = None" in package_of([found])["models.py"]


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    assert "is no JSON document" in command("codegen", tmp_path / "nowhere.json", "-o", tmp_path / "x", code=2)
    (tmp_path / "a.json").write_text('{"asyncapi": "2.6.0"}')
    assert "no AsyncAPI 3 document: asyncapi is '2.6.0'" in command(
        "codegen", tmp_path / "a.json", "-o", tmp_path / "x", code=2
    )
    assert "give --topic" in command("codegen", "http://127.0.0.1:9", "-o", tmp_path / "x", code=2)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("x = 1\n")
    write_contracts(ride_events.CATALOGUE, tmp_path / "contracts")
    assert "was not generated" in command("codegen", tmp_path / "contracts", "-o", tmp_path / "own", code=2)
    assert (tmp_path / "own" / "mine.py").read_text() == "x = 1\n"
    outside = {**AWKWARD, "properties": {"a": {"$ref": "#/$defs/Nothing"}}}
    with pytest.raises(ConfigurationError, match="leads nowhere"):
        package_of([Contract(type="a.b", version=1, topic="t", key=None, schema=outside)])
    with pytest.raises(ConfigurationError, match="an event is an object"):
        package_of([Contract(type="a.b", version=1, topic="t", key=None, schema={"type": "array"})])
