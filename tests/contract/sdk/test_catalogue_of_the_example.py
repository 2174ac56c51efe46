"""The catalogue of the example's events, made of the services' own factories by the command that the docs give."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from hailbus.cli import app
from ride_events.needs import recorded_needs
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[3]


def command_in_the_docs() -> tuple[dict[str, str], list[str]]:
    """Its variables and words."""
    text = (ROOT / "docs/sdk/contracts.md").read_text()
    (found,) = re.findall(r"```sh\n(export BIKE_.*?)```", text, re.DOTALL)
    export, command = shlex.split(found.replace("\\\n", " ").split("\n")[0]), found.split("\n", 1)[1]
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    assert (export[0], words[0]) == ("export", "hailbus")
    return dict(setting.split("=", 1) for setting in export[1:]), words[1:]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, tuple[str, str]], dict[str, object]]:
    """Publishers and consumers of each event on the page, and the document."""
    variables, words = command_in_the_docs()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = [str(ROOT / word) if word.startswith("services/") else word for word in words]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asyncapi.json", "events.html"]  # and no database
    cell = "<td>([^<]*)</td>"
    rows = re.findall(
        rf"<tr><td><a href='#[^']*'>([^<]*)</a></td><td>v1</td><td>.*?</td>{cell}{cell}</tr>", page(tmp_path)
    )
    document: dict[str, object] = json.loads((tmp_path / "asyncapi.json").read_text())
    return {event: (publishers, consumers) for event, publishers, consumers in rows}, document


def page(folder: Path) -> str:
    return (folder / "events.html").read_text()


OWNERS = {
    "bike": "bike",
    "booking": "booking",
    "demand": "surge",
    "driver": "booking",
    "payment": "payment",
    "quote": "booking",
    "recommendation": "recommender",
    "ride": "booking",
    "supply": "surge",
    "surge": "surge",
}


def test_every_event_has_its_true_publisher(made: tuple[dict[str, tuple[str, str]], dict[str, object]]) -> None:
    rows, document = made
    assert len(rows) > 20
    assert {event: publishers for event, (publishers, _) in rows.items()} == {
        event: OWNERS[event.split(".")[0]] for event in rows
    }
    assert {kind.split(".")[0] for kind in rows} == OWNERS.keys()
    operations = document["operations"]
    assert isinstance(operations, dict)
    assert {"bike-sends-bikes-v1", "surge-sends-surge-v1", "event-logger-receives-rides-v1"} <= operations.keys()


def test_every_event_has_its_true_consumers(made: tuple[dict[str, tuple[str, str]], dict[str, object]]) -> None:
    consumers = {event: found.split(", ") for event, (_, found) in made[0].items()}
    private = {event for event in consumers if event.startswith("payment.step_")} | {
        "payment.retry_due",
        "payment.refund_due",
    }
    assert {event for event, found in consumers.items() if "event-logger" not in found} == private
    assert {found for event in private for found in consumers[event]} == {"payment-saga", "payment-steps"}
    assert {event for event, found in consumers.items() if "booking" in found} == {
        "surge.updated",
        "booking.timer_elapsed",
        "booking.ride_overdue",
        "driver.location_reported",
        "payment.authorised",
        "payment.captured",
        "payment.failed",
        "payment.refunded",
        "payment.released",
    }
    assert consumers["ride.requested"] == ["dashboard", "event-logger", "payment-saga", "recommender", "surge"]


def test_every_consumer_has_recorded_what_it_reads(made: tuple[dict[str, tuple[str, str]], dict[str, object]]) -> None:
    recorded = {(need.type, need.consumer) for need in recorded_needs()}
    whole = {"event-logger", "payment-steps"}  # it keeps all events as they are; it reads payment's private topic only
    private = {"payment.step_done", "payment.step_due", "payment.retry_due", "payment.refund_due"}
    consumed = {
        (event, consumer) for event, (_, consumers) in made[0].items() for consumer in consumers.split(", ") if consumer
    }
    missing = {(event, who) for event, who in consumed - recorded if who not in whole and event not in private}
    assert missing - {(event, "–") for event, _ in consumed} == set()
