"""The page about the long runs."""

import datetime as dt
from pathlib import Path

from hailbus_devtools.long_runs import RUNS, LongRun, Result, interpreter, page
from hailbus_devtools.report import Outcome, Skip

KILLS = LongRun(
    name="kills", shows="what survives", command=["uv", "run", "pytest", "-m", "slow"], environment={"N": "9"}
)
OTHER = LongRun(name="other", shows="what else", command=["uv", "run", "pytest", "tests/else"])
PASSED = Outcome(passed=frozenset({"a", "b"}), failed=frozenset(), skips=[], seconds={})
MIXED = Outcome(
    passed=frozenset({"a"}), failed=frozenset({"tests.b::c"}), skips=[Skip(test="d", reason="needs e")], seconds={}
)
NOTHING = Outcome(passed=frozenset(), failed=frozenset(), skips=[], seconds={})


def result(outcome: Outcome | None, *, exit_code: int = 0) -> Result:
    day = dt.date(2026, 11, 22)
    return Result.of("kills", outcome, exit_code=exit_code, took_s=150.0, day=day, commit="abc1234")


def written(found: Result) -> list[str]:
    return page({"kills": found}, [KILLS, OTHER], machine="2 cores").splitlines()


def test_the_page_has_date_commit_machine_command_and_result() -> None:
    lines = written(result(PASSED))
    assert "Run on 2 cores." in lines
    assert "| kills | what survives | passed: 2 passed, 0 failed, 0 skipped | 2 min | 2026-11-22, `abc1234` |" in lines
    assert "N=9 uv run pytest -m slow" in lines
    assert not any("Failed tests" in line for line in lines)


def test_a_suite_without_result_is_not_left_out() -> None:
    assert "| other | what else | not run yet | | |" in written(result(PASSED))


def test_failures_are_named() -> None:
    lines = written(result(MIXED, exit_code=1))
    ended = "**failed** (exit code 1): 1 passed, 1 failed, 1 skipped (1: needs e)"
    assert f"| kills | what survives | {ended} | 2 min | 2026-11-22, `abc1234` |" in lines
    assert "- kills: `tests.b::c`" in lines


def test_a_run_passes_only_if_tests_ran_and_pytest_says_so() -> None:
    assert result(PASSED).has_passed
    assert not result(PASSED, exit_code=1).has_passed
    assert not result(NOTHING).has_passed
    assert not result(None).has_passed
    assert "pytest wrote no report" in result(None, exit_code=4).ended


def test_a_python_of_pyenv_is_named_by_its_path(tmp_path: Path) -> None:
    assert interpreter("3.12", tmp_path) == "3.12"
    for release in ("3.12.1", "3.13.0"):
        (tmp_path / "versions" / release / "bin").mkdir(parents=True)
        (tmp_path / "versions" / release / "bin" / "python").touch()
    assert interpreter("3.12", tmp_path) == str(tmp_path / "versions" / "3.12.1" / "bin" / "python")


def test_all_that_the_check_leaves_out_is_run() -> None:
    names = ["history", "faults", "three-nodes", "slow", "compose", "python-3.12", "python-3.13"]
    assert [one.name for one in RUNS] == names
