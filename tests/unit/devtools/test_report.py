"""What is read from pytest's JUnit file."""

from dataclasses import replace
from pathlib import Path

import pytest
from hailbus_devtools.report import Outcome, ReviewedSkip, Skip, merge, read_outcome, read_reviewed_skips, unreviewed

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="3" tests="7">
<testcase classname="tests.unit.test_a" name="test_passes[1]" time="0.5" />
<testcase classname="tests.unit.test_a" name="test_fails" time="2.0"><failure message="no">…</failure></testcase>
<testcase classname="tests.unit.test_a" name="test_leaves_a_mess" time="1.0" />
<testcase classname="tests.unit.test_a" name="test_leaves_a_mess" time="0.25"><error message="mess">…</error></testcase>
<testcase classname="tests.unit.test_b" name="test_reads" time="0.0">
  <skipped type="pytest.skip" message="needs kcat: apt install kcat">/tests/unit/test_b.py:3: needs kcat</skipped>
</testcase>
<testcase classname="tests.unit.test_b" name="test_writes" time="0.0">
  <skipped type="pytest.skip" message="needs kcat: apt install kcat" />
</testcase>
<testcase classname="" name="tests.unit.test_c" time="0.0">
  <skipped message="collection skipped">('/tests/unit/test_c.py', 3, 'Skipped: no such system')</skipped>
</testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    path = tmp_path / "tests.xml"
    path.write_text(JUNIT)
    return read_outcome(path)


def test_passed_failed_and_skipped_are_told_apart(outcome: Outcome) -> None:
    assert outcome.passed == {"tests.unit.test_a::test_passes[1]"}
    assert outcome.failed == {"tests.unit.test_a::test_fails", "tests.unit.test_a::test_leaves_a_mess"}
    assert [skip.test for skip in outcome.skips] == [
        "tests.unit.test_b::test_reads",
        "tests.unit.test_b::test_writes",
        "tests.unit.test_c",
    ]
    assert outcome.ran == 3


def test_the_summary_counts_the_skips_of_each_reason(outcome: Outcome) -> None:
    assert outcome.summary() == ("1 passed, 2 failed, 3 skipped (2: needs kcat: apt install kcat; 1: no such system)")


def test_without_skips_the_summary_names_no_reason() -> None:
    assert Outcome(passed=frozenset("a"), failed=frozenset(), skips=[], seconds={}).summary() == (
        "1 passed, 0 failed, 0 skipped"
    )


def test_the_slowest_come_first_with_set_up_and_clean_up(outcome: Outcome) -> None:
    assert outcome.slowest(2) == [
        (2.0, "tests.unit.test_a::test_fails"),
        (1.25, "tests.unit.test_a::test_leaves_a_mess"),
    ]


def test_the_slowest_files_are_the_sums_of_their_tests(outcome: Outcome) -> None:
    seconds = {"tests.a::one": 2.0, "tests.b::one": 1.5, "tests.b::two": 1.5, "tests.c": 0.5}
    assert replace(outcome, seconds=seconds).slowest_files(2) == [(3.0, "tests.b"), (2.0, "tests.a")]


def test_a_failure_in_one_of_several_runs_stays_a_failure(outcome: Outcome) -> None:
    fine = Outcome(passed=outcome.failed, failed=frozenset(), skips=[], seconds={})
    assert merge([outcome, fine]).failed == outcome.failed
    assert merge([outcome, fine]).passed == outcome.passed
    assert merge([]).summary() == "0 passed, 0 failed, 0 skipped"


SKIP = Skip(test="tests.integration.test_disk::test_cut", reason="needs loop devices: be root")


@pytest.mark.parametrize(
    ("tests", "reason", "is_accepted"),
    [
        ("tests.integration.test_disk::", "needs loop devices: be root", True),
        ("tests.integration.test_disk::test_cut", "needs loop devices: be root", True),
        ("tests.integration.test_disk::", "needs loop devices", False),
        ("tests.unit.", "needs loop devices: be root", False),
    ],
)
def test_a_skip_is_accepted_by_its_tests_and_its_exact_reason(tests: str, reason: str, is_accepted: bool) -> None:
    entry = ReviewedSkip(tests=tests, reason=reason, why="the builders have no loop devices")
    assert unreviewed([SKIP], [entry]) == ([] if is_accepted else [SKIP])


def test_no_entry_accepts_no_skip() -> None:
    assert unreviewed([SKIP], []) == [SKIP]


def test_the_list_of_reviewed_skips_is_read(tmp_path: Path) -> None:
    path = tmp_path / "skips.toml"
    path.write_text('[[skip]]\ntests = "tests.a::"\nreason = "needs b"\nwhy = "c"\n')
    assert read_reviewed_skips(path) == [ReviewedSkip(tests="tests.a::", reason="needs b", why="c")]
    path.write_text("# none\n")
    assert read_reviewed_skips(path) == []


@pytest.mark.parametrize(
    "entry",
    ['tests = "a"\nreason = "b"', 'tests = "a"\nreason = "b"\nwhy = ""', 'tests = "a"\nreason = "b"\nwho = "c"'],
)
def test_an_entry_without_a_why_is_refused(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "skips.toml"
    path.write_text(f"[[skip]]\n{entry}\n")
    with pytest.raises(ValueError, match=r"skips.toml: an entry is"):
        read_reviewed_skips(path)
