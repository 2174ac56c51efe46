"""A client library's lines are logged once per reason and counted, not at each attempt."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hailbus._transport.reachability import Reachability
from hailbus._transport.repeated_lines import QUIET_S, RepeatedLines


@pytest.fixture
def lines() -> Iterator[RepeatedLines]:
    found = RepeatedLines()
    parent, child = logging.getLogger("chatty"), logging.getLogger("chatty.conn")
    found.install("chatty")
    yield found
    parent.removeFilter(found)
    child.removeFilter(found)


def emitted(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("chatty")]


def at(seconds: float, text: str, *arguments: object, level: int = logging.ERROR) -> logging.LogRecord:
    record = logging.LogRecord("chatty", level, "client.py", 1, text, arguments, None)
    record.created = seconds
    return record


def test_the_first_line_passes_and_later_ones_are_counted_until_a_broker_is_back(
    lines: RepeatedLines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(5):
        logging.getLogger("chatty").error("no connection to %s", number)
        logging.getLogger("chatty.conn").error("no connection to %s", number)
        logging.getLogger("chatty").warning("no connection to %s", number)
    assert emitted(caplog) == ["no connection to 0"] * 3, "of each logger and level the first"
    lines.reached()
    told = [record.getMessage() for record in caplog.records if record.name == "hailbus.transport"]
    assert told == [
        "client_log_repeated: chatty: 'no connection to %s' 4 times more",
        "client_log_repeated: chatty.conn: 'no connection to %s' 4 times more",
        "client_log_repeated: chatty: 'no connection to %s' 4 times more",
    ]
    caplog.clear()
    logging.getLogger("chatty").error("no connection to %s", 9)
    assert emitted(caplog) == ["no connection to 9"], "a new outage is new"
    lines.reached()
    assert not [record for record in caplog.records if record.name == "hailbus.transport"], "nothing was held back"


def test_a_line_that_was_silent_for_a_minute_passes_with_the_count(lines: RepeatedLines) -> None:
    assert lines.filter(at(0, "lost %s", "a"))
    assert not any(lines.filter(at(QUIET_S * 0.9 * step, "lost %s", "a")) for step in range(1, 4)), "it keeps coming"
    again = at(QUIET_S * 4, "lost %s", "b")
    assert lines.filter(again)
    assert again.getMessage() == "lost b (and 3 such lines before)"


def test_other_lines_and_those_below_a_warning_pass(lines: RepeatedLines) -> None:
    assert all(lines.filter(at(0, "joined", level=logging.INFO)) for _ in range(3))
    assert lines.filter(at(0, "lost"))
    assert lines.filter(at(0, "refused"))

    def raised(error: Exception) -> logging.LogRecord:
        record = at(0, "unexpected")
        record.exc_info = (type(error), error, None)
        return record

    assert lines.filter(raised(ValueError()))
    assert lines.filter(raised(KeyError())), "another exception under the same text"
    assert not lines.filter(raised(ValueError()))


def test_installing_again_filters_once(lines: RepeatedLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.install("chatty")
    assert logging.getLogger("chatty").filters == [lines]
    assert lines not in logging.getLogger("chattier").filters


def test_a_client_tells_of_its_return_once() -> None:
    returns: list[None] = []
    reachability = Reachability(on_return=lambda: returns.append(None))
    for is_connected in (True, False, False, True, True):
        reachability.observe(is_connected=is_connected, now_s=1.0)
    assert len(returns) == 1
