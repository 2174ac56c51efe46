"""The ledger during the run: when it may turn red, what it shows, and whether it found a sabotage at the end."""

from dataclasses import replace
from typing import Any

from hailbus_demo.auditor import CalmClock, Round, shortened, updated, with_certain
from hailbus_demo.figures import Sabotage
from hailbus_demo.ledger.draw import Ledger, SoFar
from hailbus_demo.ledger.model import FINDINGS_SHOWN, Finding, Line
from hailbus_demo.sabotage.deeds import Deed
from hailbus_demo.show import so_far


def line(verdict: Any, *findings: Finding, name: str = "a") -> Line:
    return Line(id=name, name=name, between=("one", "other"), verdict=verdict, detail="", findings=tuple(findings))


def test_only_calm_seconds_count() -> None:
    calm = True
    clock = CalmClock(lambda: calm)
    for now_s in (10.0, 11.0, 12.5):
        clock.look(now_s)
    assert (clock.is_calm, clock.calm_s) == (True, 2.5)
    calm = False  # a process is gone, and comes back at 20 s
    clock.look(13.0)
    clock.look(19.0)
    assert (clock.is_calm, clock.calm_s) == (False, 2.5)
    calm = True
    clock.look(20.0)
    assert clock.calm_s == 2.5  # nobody knows when it came back
    clock.look(21.0)
    assert clock.calm_s == 3.5


def test_the_terminal_names_the_lines_that_disagree() -> None:
    def state(*lines: Line) -> dict[str, Any]:
        return {"lines": [one.as_json() for one in lines]}

    assert so_far(state()) == "-"
    assert so_far(state(line("agrees"), line("not_checked", name="b"), line("shown", name="c"))) == "agrees"
    assert so_far(state(line("agrees"), line("disagrees", name="b"))) == "NOT balanced: b"


def test_what_the_auditor_sends_is_bounded() -> None:
    many = line("disagrees", *(Finding(what="gone", offset=offset) for offset in range(10_000)))
    (short,) = shortened(Ledger(lines=(many,), left_out=())).lines
    assert short.findings == many.findings[:FINDINGS_SHOWN]


def deed(**values: Any) -> Deed:
    what: dict[str, Any] = {"topic": "payments.v1", "partition": 3, "offset": 41, "id": "event-9", **values}
    return Deed(fault="altered", sentence="the payment reads otherwise", **what)


def test_a_line_finds_a_sabotage_by_its_place_or_its_id() -> None:
    ledger = Ledger(
        lines=(
            line("disagrees", Finding(what="x", topic="payments.v1", partition=3, offset=41), name="place"),
            line("disagrees", Finding(what="x", id="event-9"), name="id"),
            line("disagrees", Finding(what="ride of event-9 was charged twice"), name="sentence"),
            line("disagrees", Finding(what="x", topic="payments.v1", partition=2, offset=41), name="elsewhere"),
            line("shown", Finding(what="x", id="event-9"), name="shown"),
            line("not_checked", name="unread"),
        ),
        left_out=(),
    )
    sabotage = Sabotage(fault="altered", deed=deed())
    sabotage.find(ledger)
    assert sabotage.found_by == ("place", "id", "sentence")
    assert sabotage.verdict() == "sabotage: altered was found by: place; id; sentence"
    assert sabotage.as_json() == {
        "fault": "altered",
        "sentence": "the payment reads otherwise",
        "topic": "payments.v1",
        "partition": 3,
        "offset": 41,
        "id": "event-9",
        "found_by": ["place", "id", "sentence"],
    }


def test_a_sabotage_without_a_place_is_not_found_by_findings_without_one() -> None:
    nowhere = deed(topic="payments.v1", partition=None, offset=None, id="")
    sabotage = Sabotage(fault="altered", deed=nowhere)
    sabotage.find(Ledger(lines=(line("disagrees", Finding(what="x", topic="payments.v1")),), left_out=()))
    assert sabotage.verdict() == (
        "sabotage: altered was NOT found: no line that disagrees names that the payment reads otherwise"
    )


def test_a_sabotage_that_was_not_done_is_not_found() -> None:
    sabotage = Sabotage(fault="altered")
    sabotage.find(Ledger(lines=(line("disagrees", Finding(what="x")),), left_out=()))
    assert sabotage.verdict() == "sabotage: altered was not done"
    assert sabotage.as_json()["id"] is None


LOST, LATE = Finding(what="lost", offset=1), Finding(what="late", offset=2)


def test_what_is_certain_counts_at_once_and_the_rest_when_it_stays() -> None:
    drawn = Ledger(lines=(line("disagrees", LOST, LATE), line("agrees", name="b")), left_out=())
    settled = SoFar(grace_s=5).settle(drawn, now_s=0)
    assert with_certain(settled, drawn, frozenset()) == settled
    first, other = with_certain(settled, drawn, frozenset({LOST})).lines
    assert (first.verdict, first.findings, first.detail) == ("disagrees", (LOST,), "lost (offset 1)")
    assert other.verdict == "agrees"
    both = with_certain(settled, drawn, frozenset({LOST, LATE})).lines[0]
    assert both.detail == "lost (offset 1); and 1 more"
    gone = Ledger(lines=(line("disagrees", LATE), line("agrees", name="b")), left_out=())
    assert with_certain(SoFar(grace_s=5).settle(gone, now_s=0), gone, frozenset({LOST})).lines[0].verdict == "agrees"


def test_a_partial_round_leaves_the_other_lines_as_they_were() -> None:
    whole = Ledger(lines=(line("agrees"), line("agrees", name="b")), left_out=("c",))
    red = line("disagrees", LOST, name="b")
    part = Round(ledger=Ledger(lines=(red,), left_out=()), took_s=1, cpu_s=1, is_partial=True)
    assert updated(None, part) is None
    assert updated(whole, part) == Ledger(lines=(whole.lines[0], red), left_out=("c",))
    assert updated(whole, replace(part, is_partial=False)) == part.ledger
