"""`hailbus dlq` and `hailbus parked` without a broker: the editor, and what `--json` prints."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hailbus import AtLeastOnce, Backoff, Context, Event, ParkingLot, ParkKey, Service, Topic
from hailbus.cli import app, letters
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.event import ContentMode
from hailbus.sequence import Position, Sequences
from hailbus.testing import MemoryBus
from typer.testing import CliRunner

ORDERS = Topic("orders.v1", partitions=1)
QUEUE = dead_letter_topic(ORDERS, "shop")
ONCE = Backoff(attempts=1)


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int


def command(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout if code == 0 else result.output


def dlq(action: str, *words: str, code: int = 0) -> str:
    return command("dlq", action, "--bootstrap-server", "memory", *words, code=code)


@pytest.fixture
def mode() -> ContentMode:
    return "binary"


@pytest.fixture
def letter(monkeypatch: pytest.MonkeyPatch, mode: ContentMode) -> str:
    """The place of a dead letter whose amount is -5."""
    bus = MemoryBus()
    svc = Service("shop", content_mode=mode)
    orders = svc.publishes(OrderPlaced)

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=ONCE))
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        raise ValueError("negative")

    async def fail() -> None:
        async with bus.run(svc) as t:
            t.expect_dead_letters()
            await orders.publish(OrderPlaced(order_id="o1", amount=-5))
            await t.settle()

    asyncio.run(fail())
    monkeypatch.setattr(letters, "bus_at", lambda _, **__: bus)
    monkeypatch.delenv("VISUAL", raising=False)
    return "0@0"


def editor(monkeypatch: pytest.MonkeyPatch, folder: Path, *statements: str) -> Path:
    """A program for $EDITOR that notes the text it was given, and runs statements on `text` and `file`."""
    program = folder / "an editor.py"  # with a space, as editors on some machines have in their path
    notes = folder / "given.txt"
    program.write_text(
        "import sys, pathlib\n"
        "file = pathlib.Path(sys.argv[-1])\n"
        "text = file.read_text()\n"
        f"pathlib.Path({str(notes)!r}).write_text(text)\n" + "\n".join(statements)
    )
    monkeypatch.setenv("EDITOR", f"{shlex.quote(sys.executable)} {shlex.quote(str(program))} --wait")
    return notes


def value_of(place: str) -> str:
    found: str = json.loads(dlq("show", QUEUE, place))["value"]
    return found


def test_the_editor_gets_json_for_reading_and_what_it_saves_is_the_value(
    letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = editor(monkeypatch, tmp_path, "file.write_text(text.replace('-5', '5'))")
    assert json.loads(dlq("edit", QUEUE, letter, "--json")) == {"queue": QUEUE, "place": letter, "edited": True}
    assert notes.read_text() == '{\n  "order_id": "o1",\n  "amount": -5\n}'
    assert value_of(letter) == '{"order_id":"o1","amount":5}'


def test_an_editor_that_saves_nothing_new_changes_nothing(
    letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(monkeypatch, tmp_path)
    assert dlq("edit", QUEUE, letter) == f"Nothing changed in the letter at {letter}.\n"
    (listed,) = [json.loads(line) for line in dlq("list", QUEUE, "--json").splitlines()]
    assert "history" not in listed


def test_what_an_editor_does_wrong_changes_nothing_and_is_said(
    letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(monkeypatch, tmp_path, "file.write_text('{')")
    assert "what you saved is no JSON" in dlq("edit", QUEUE, letter, code=2)
    editor(monkeypatch, tmp_path, "file.write_text('{}')", "sys.exit(3)")
    assert "ended with 3; nothing was changed" in dlq("edit", QUEUE, letter, code=2)
    monkeypatch.setenv("EDITOR", str(tmp_path / "none"))
    assert "does not start: No such file or directory; set EDITOR" in dlq("edit", QUEUE, letter, code=2)
    assert value_of(letter) == '{"order_id":"o1","amount":-5}'


def test_visual_comes_before_editor(letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(monkeypatch, tmp_path, "sys.exit(3)")
    monkeypatch.setenv("VISUAL", "true")
    assert "Nothing changed" in dlq("edit", QUEUE, letter)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_list_names_the_type_in_either_content_mode(letter: str) -> None:
    _, row = dlq("list").splitlines()
    assert row.split() == [QUEUE, letter, "waiting", "order.placed", "1", "negative"]
    assert json.loads(dlq("show", QUEUE, letter))["ce_type"] == "order.placed"


def test_replay_and_drop_tell_places_as_json(letter: str) -> None:
    assert json.loads(dlq("replay", QUEUE, letter, "--json")) == {"queue": QUEUE, "replayed": [letter]}
    assert json.loads(dlq("replay", QUEUE, letter, "--json")) == {"queue": QUEUE, "replayed": []}
    assert json.loads(dlq("drop", QUEUE, letter, "--json")) == {"queue": QUEUE, "dropped": []}


def test_parked_keys_are_edited_dropped_and_released_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'till.db'}"

    async def park() -> None:
        engine = create_engine(url)
        svc = Service("till")

        @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=ONCE, then=ParkKey(lot=ParkingLot(engine))))
        async def placed(event: OrderPlaced, ctx: Context) -> None:
            raise ValueError("jammed")

        async with MemoryBus().run(svc) as t:
            await t.given(*(OrderPlaced(order_id="a", amount=amount) for amount in range(3)))
            await t.settle()
        await engine.dispose()

    asyncio.run(park())
    where = ("--database", url)
    (key,) = [json.loads(line) for line in command("parked", "ls", *where, "--group", "till", "--json").splitlines()]
    assert (key["topic"], key["key"], key["waiting"], key["reason"]) == (ORDERS.name, "a", 3, "jammed")
    shown = command("parked", "show", *where, "--group", "till", ORDERS.name, "a").splitlines()
    first, second, _ = [json.loads(line)["position"] for line in shown]
    mended = tmp_path / "mended.json"
    mended.write_text('{"order_id":"a","amount":9}')
    edited = command("parked", "edit", *where, first, "--value-file", mended, "--json")
    assert json.loads(edited) == {"position": first, "edited": True}
    assert json.loads(command("parked", "drop", *where, second, "--json")) == {"dropped_count": 1}
    released = command("parked", "release", *where, "--group", "till", ORDERS.name, "a", "--json")
    assert json.loads(released) == {"topic": ORDERS.name, "key": "a", "released_count": 2}


@pytest.mark.parametrize("inbox", ["till", "shared"])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_gap_of_numbered_events_is_accepted_by_a_release(tmp_path: Path, is_known: bool, inbox: str) -> None:
    url = f"sqlite:///{tmp_path / 'till.db'}"
    record: Any = SimpleNamespace(
        topic=ORDERS.name, partition=0, offset=7, timestamp=0, key=b"a", value=b"{}", headers=[]
    )

    async def park() -> None:
        engine = create_engine(url)
        lot, sequences = ParkingLot(engine), Sequences(engine, inbox)
        await lot.create_tables()
        await lot.add("till", record, reason="number 4 came where 2 was due", attempts=0)
        if is_known:
            await sequences.create_tables()
            async with engine.begin() as tx:
                await sequences.advance(tx, {(ORDERS.name, b"a"): 1})
        await engine.dispose()

    async def found(key: bytes) -> Position | None:
        engine = create_engine(url)
        async with engine.begin() as tx:
            positions = await Sequences(engine, inbox).positions(tx, [(ORDERS.name, key)])
        await engine.dispose()
        return positions.get((ORDERS.name, key))

    asyncio.run(park())
    named = () if inbox == "till" else ("--inbox", inbox)
    release = ("parked", "release", "--database", url, "--group", "till", *named, ORDERS.name)
    assert json.loads(command(*release, "a", "--accept-gap", "--json"))["released_count"] == 1
    assert asyncio.run(found(b"a")) == Position(1 if is_known else None, accepts_gap=True)
    assert "nothing is parked for key 'b'" in command(*release, "b", "--accept-gap", code=2)
    assert asyncio.run(found(b"b")) is None
