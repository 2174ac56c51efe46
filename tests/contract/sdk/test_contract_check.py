"""Which changes break whom."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hailbus import Catalogue, Event, Topic
from hailbus.cli import app
from hailbus.contract import Contract, Level, changes, compare, contract_of, read_contracts, write_contracts
from pydantic import BaseModel, Field, create_model
from typer.testing import CliRunner

T = Topic("t.v1")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Fewer(StrEnum):
    RED = "red"


class Place(BaseModel):
    lat: float


class PlaceWithFloor(BaseModel):
    lat: float
    floor: int


def contract(**fields: Any) -> Contract:
    model = create_model("E", __base__=Event, __cls_kwargs__={"topic": T, "type": "a.b", "key": None}, **fields)
    return contract_of(model)


# name: old fields, new fields, breaks today's readers on old data, breaks old readers on new data
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool, bool]] = {
    "nothing": ({"x": int}, {"x": int}, False, False),
    "add a field with a default": ({"x": int}, {"x": int, "y": (int, 0)}, False, False),
    "add an optional field": ({"x": int}, {"x": int, "y": (int | None, None)}, False, False),
    "add a field without default": ({"x": int}, {"x": int, "y": int}, True, False),
    "remove a field that had none": ({"x": int, "y": int}, {"x": int}, False, True),
    "remove a field with a default": ({"x": int, "y": (int, 0)}, {"x": int}, False, False),
    "rename": ({"x": int}, {"z": int}, True, True),
    "retype": ({"x": int}, {"x": str}, True, True),
    "widen int to float": ({"x": int}, {"x": float}, False, True),
    "narrow float to int": ({"x": float}, {"x": int}, True, False),
    "make nullable": ({"x": int}, {"x": int | None}, False, True),
    "make not nullable": ({"x": int | None}, {"x": int}, True, False),
    "more enum values": ({"x": Fewer}, {"x": Colour}, False, True),
    "fewer enum values": ({"x": Colour}, {"x": Fewer}, True, False),
    "string to literal": ({"x": str}, {"x": Literal["a"]}, True, False),
    "string to datetime": ({"x": str}, {"x": datetime}, True, False),
    "tighter bound": ({"x": int}, {"x": (int, Field(ge=0))}, True, False),
    "looser bound": ({"x": (int, Field(ge=0))}, {"x": (int, Field(ge=-5))}, False, True),
    "nested field added": ({"p": Place}, {"p": PlaceWithFloor}, True, False),
    "list of nested": ({"p": list[Place]}, {"p": list[PlaceWithFloor]}, True, False),
    "map values retyped": ({"p": dict[str, int]}, {"p": dict[str, str]}, True, True),
    "a default becomes required": ({"x": (int, 0)}, {"x": int}, False, False),  # writers always write it
}


@pytest.mark.parametrize("name", CASES)
def test_compatibility_in_both_directions(name: str) -> None:
    old_fields, new_fields, breaks_backward, breaks_forward = CASES[name]
    old = contract(**{k: v if isinstance(v, tuple) else (v, ...) for k, v in old_fields.items()})
    new = contract(**{k: v if isinstance(v, tuple) else (v, ...) for k, v in new_fields.items()})

    def breaks(level: Level) -> bool:
        return any(finding.is_breaking for finding in compare(old, new, level=level))

    assert breaks(Level.BACKWARD) == breaks_backward
    assert breaks(Level.BACKWARD_TRANSITIVE) == breaks_backward
    assert breaks(Level.FORWARD) == breaks_forward
    assert breaks(Level.FULL) == (breaks_backward or breaks_forward)
    assert not breaks(Level.NONE)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_agrees_with_what_pydantic_does(name: str) -> None:
    """Where the check calls a change safe, an instance of the old class is read by the new one."""
    old_fields, new_fields, breaks_backward, _ = CASES[name]
    samples: dict[Any, Any] = {int: 3, float: 2.5, str: "a", Fewer: "red", Colour: "blue", Place: {"lat": 1.0}}
    values: dict[str, Any] = {}
    for field, kind in old_fields.items():
        plain = kind[0] if isinstance(kind, tuple) else kind
        values[field] = samples.get(plain, {"p": [{"lat": 1.0}]}.get(field) if plain == list[Place] else None)
        if plain == dict[str, int]:
            values[field] = {"a": 1}
    definitions: dict[str, Any] = {k: v if isinstance(v, tuple) else (v, ...) for k, v in new_fields.items()}
    new = create_model("N", __base__=BaseModel, **definitions)
    if not breaks_backward and None not in values.values():
        new.model_validate(values)


def test_a_rename_is_guessed_and_topic_and_key_count() -> None:
    found = compare(contract(x=(int, ...)), contract(z=(int, ...)))
    assert any("was it renamed to" in finding.sentence for finding in found)
    base = contract(x=(int, ...))
    moved = Contract(type=base.type, version=1, topic="other", key="x", schema=base.schema)
    assert [f.is_breaking for f in compare(base, moved, level=Level.NONE)] == [True, True]


def test_gone_and_new_versions() -> None:
    one = contract(x=(int, ...))
    two = Contract(type=one.type, version=2, topic=one.topic, key=one.key, schema=one.schema)
    assert [f.is_breaking for f in changes([one], [one, two])] == [False]
    assert [f.is_breaking for f in changes([one, two], [two])] == [True]


MODULE = """
from hailbus import *
class Placed(Event, topic=Topic("orders.v1"), key="order_id", type="order.placed"):
    order_id: str
    amount: {kind}
"""


def test_check_command_with_folder_git_and_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()

    def module(name: str, kind: str) -> str:
        (tmp_path / f"{name}.py").write_text(MODULE.format(kind=kind))
        return name

    try:
        written = run.invoke(app, ["check", module("shop_one", "int"), "--write", "contracts"])
        assert written.exit_code == 0, written.output
        assert json.loads((tmp_path / "contracts/order.placed/v1.json").read_text())["key"] == "order_id"
        same = run.invoke(app, ["check", "shop_one", "--against", "contracts"])
        assert same.exit_code == 0
        broken = run.invoke(app, ["check", module("shop_two", "str"), "--against", "contracts"])
        assert broken.exit_code == 1
        assert "BREAKING: order.placed v1 amount" in broken.output
        lax = run.invoke(app, ["check", "shop_two", "--against", "contracts", "--level", "none", "--json"])
        assert lax.exit_code == 0
        missing = run.invoke(app, ["check", "shop_two", "--against", "nowhere"])
        assert (missing.exit_code, "there is no folder nowhere" in missing.output) == (2, True)
        for command in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
        ):
            subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
        (tmp_path / "contracts/order.placed/v1.json").unlink()
        by_git = run.invoke(app, ["check", "shop_two", "--against", "HEAD:contracts"])
        assert by_git.exit_code == 1
        golden = tmp_path / "examples/order.placed"
        golden.mkdir(parents=True)
        (golden / "v1.json").write_text('{"order_id": "a", "amount": 3}')
        assert run.invoke(app, ["check", "shop_one", "--examples", "examples"]).exit_code == 0
        unread = run.invoke(app, ["check", "shop_two", "--examples", "examples"])
        assert unread.exit_code == 1
        assert "is no longer read: amount" in unread.output
    finally:
        for name in ("shop_one", "shop_two"):
            sys.modules.pop(name, None)


def test_contracts_round_trip_on_disk(tmp_path: Path) -> None:
    class Placed(Event, topic=T, key="x", type="a.b", version=2):
        x: str

    write_contracts(Catalogue.of(Placed), tmp_path)
    assert read_contracts(tmp_path) == [contract_of(Placed)]


def test_a_transitive_level_looks_at_every_state_that_was_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    names: list[str] = []

    def release(kind: str) -> str:
        name = f"shop_release_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(MODULE.format(kind=kind))
        assert run.invoke(app, ["check", name, "--write", "contracts"]).exit_code == 0
        for command in (["add", "contracts"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", kind]):
            subprocess.run(["git", *command], check=True, capture_output=True)
        return name

    try:
        release("str")
        release("str | int")
        last = release("int")
        level = ["--level", "BACKWARD"]
        assert run.invoke(app, ["check", last, "--against", "main", *level]).exit_code == 0
        assert run.invoke(app, ["check", last, "--against", "HEAD~1:contracts", *level]).exit_code == 1
        found = run.invoke(app, ["check", last, "--against", "main", "--level", "BACKWARD_TRANSITIVE", "--json"])
        assert found.exit_code == 1
        findings = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
        assert {f["pointer"] for f in findings if f["breaking"]} == {"#/properties/amount"}
        missing = run.invoke(app, ["check", last, "--against", "nowhere", *level])
        assert (missing.exit_code, "there is no folder nowhere, and git" in missing.output) == (2, True)
    finally:
        for name in names:
            sys.modules.pop(name, None)


def test_against_takes_a_folder_of_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_examples.py").write_text(MODULE.format(kind="int"))
    golden = tmp_path / "golden" / "order.placed"
    golden.mkdir(parents=True)
    run = CliRunner()
    try:
        (golden / "v1.json").write_text('{"order_id": "a", "amount": 3}')
        assert run.invoke(app, ["check", "shop_examples", "--against", "golden"]).exit_code == 0
        (golden / "v1.json").write_text('{"order_id": "a"}')
        found = run.invoke(app, ["check", "shop_examples", "--against", "golden"])
        assert (found.exit_code, "is no longer read: amount" in found.output) == (1, True)
    finally:
        sys.modules.pop("shop_examples", None)
