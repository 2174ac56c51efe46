"""The check as people run it, over a small project: its last line, and its exit code."""

import sys
from pathlib import Path

import pytest
from hailbus_devtools import check
from hailbus_devtools.check import Step, main, steps
from hailbus_devtools.tools import ROOT

PASSES = "def test_one():\n    pass\n"
FAILS = "def test_two():\n    assert 1 == 2\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason='needs b: apt install b')\ndef test_three():\n    pass\n"
REVIEWED = '[[skip]]\ntests = "test_project"\nreason = "needs b: apt install b"\nwhy = "no builder has b"\n'


def command(*lines: str) -> list[str | Path]:
    return [sys.executable, "-c", "\n".join(lines)]


class Project:
    """A folder with one file of tests, and the check of this repository turned to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.style = Step(name="lint", command=command("print('style is fine')"))
        self.types = Step(name="types", command=command("print('types are fine')"), beside=True)
        (root / "pytest.ini").write_text("[pytest]\n")
        self.review("")

    def review(self, text: str) -> None:
        (self.root / "tests").mkdir(exist_ok=True)
        (self.root / "tests" / "reviewed-skips.toml").write_text(text)

    def steps(self, *_arguments: object, **_options: object) -> list[Step]:
        report = f"--junitxml={check.report_of('tests')}"
        tests: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", report]
        return [self.style, self.types, Step(name="tests", command=[*tests, "test_project.py"], runs_tests=True)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "REPORTS", tmp_path / "build" / "check")
    monkeypatch.setattr(check, "REVIEWED_SKIPS", tmp_path / "tests" / "reviewed-skips.toml")
    monkeypatch.setattr(check, "listing", lambda: ["kcat  found    1.7.1"])
    monkeypatch.setattr(check, "steps", made.steps)
    return made


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code, capfd.readouterr().out.splitlines()


def test_the_tools_come_first_and_the_outcome_last(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES + SKIPS)
    code, lines = run(capfd)
    assert code == 0
    assert lines[:2] == ["check: tools and services that tests want", "  kcat  found    1.7.1"]
    assert lines[-1] == "check: 1 passed, 0 failed, 1 skipped (1: needs b: apt install b)"
    assert "style is fine" in lines
    assert "types are fine" in lines
    assert any(line.endswith("test_project::test_one") for line in lines)


def test_a_failed_test_fails_the_check(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES + FAILS)
    code, lines = run(capfd)
    assert (code, lines[-1]) == (1, "check: failed: tests; 1 passed, 1 failed, 0 skipped")
    assert "check: failed: test_project::test_two" in lines


def test_require_all_fails_on_a_skip_that_is_not_listed(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES + SKIPS)
    code, lines = run(capfd, "--require-all")
    assert code == 1
    assert lines[-1] == (
        "check: failed: skips that tests/reviewed-skips.toml does not list: 1; "
        "1 passed, 0 failed, 1 skipped (1: needs b: apt install b)"
    )
    assert any("test_project::test_three: needs b: apt install b" in line for line in lines)


def test_require_all_accepts_a_skip_that_is_listed(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES + SKIPS)
    project.review(REVIEWED)
    code, lines = run(capfd, "--require-all")
    assert (code, lines[-1]) == (0, "check: 1 passed, 0 failed, 1 skipped (1: needs b: apt install b)")


def test_a_run_in_which_every_test_was_skipped_fails(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(SKIPS)
    code, lines = run(capfd)
    assert (code, lines[-1]) == (1, "check: failed: tests; 0 passed, 0 failed, 1 skipped (1: needs b: apt install b)")
    assert any("tests failed (no test ran)" in line for line in lines)


def test_tests_that_end_without_a_report_fail(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text("import os\nos._exit(0)\n")
    code, lines = run(capfd)
    assert (code, lines[-1]) == (1, "check: failed: tests; 0 passed, 0 failed, 0 skipped")
    assert any("pytest wrote no report" in line for line in lines)


def test_style_that_fails_ends_the_check_before_the_tests(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES)
    project.style = Step(name="lint", command=command("raise SystemExit(3)"))
    code, lines = run(capfd)
    assert (code, lines[-1]) == (1, "check: failed: lint; 0 passed, 0 failed, 0 skipped")


def test_types_that_fail_beside_the_tests_fail_the_check(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES)
    project.types = Step(name="types", command=command("raise SystemExit('line 3: not a number')"), beside=True)
    code, lines = run(capfd)
    assert (code, lines[-1]) == (1, "check: failed: types; 1 passed, 0 failed, 0 skipped")
    assert "line 3: not a number" in lines


def test_an_old_report_is_not_taken_for_this_runs(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    (project.root / "test_project.py").write_text(PASSES)
    assert run(capfd)[0] == 0
    (project.root / "test_project.py").write_text("import os\nos._exit(0)\n")
    assert run(capfd)[0] == 1


def test_a_wrong_argument_is_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--only", "nothing"], ["--fast", "--only", "lint"], ["--fast", "--compose"]):
        assert run(capfd, *wrong)[0] == 2


def test_the_list_alone_runs_nothing(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    assert capfd.readouterr().out.splitlines()[1:] == ["  kcat  found    1.7.1"]


def names(**options: object) -> list[str]:
    return [step.name for step in steps(**options)]  # type: ignore[arg-type]  # each test gives what it is about


def test_fast_has_style_types_imports_unit_and_property_tests() -> None:
    assert names(fast=True) == ["format", "lint", "imports", "documentation", "types", "fast tests"]
    (tests,) = (step for step in steps(fast=True) if step.runs_tests)
    assert {"tests/unit", "tests/property"} <= set(map(str, tests.command))


def test_the_whole_check_leaves_compose_to_those_who_ask_for_it() -> None:
    assert "compose" not in names()
    assert [name for name in names(compose=True) if name not in names()] == ["compose"]
    assert [step.beside for step in steps(compose=True) if step.name == "compose"] == [True]


def test_containers_go_before_the_tests_that_run_beside_them() -> None:
    first = {step.name: str(step.command[0]) for step in steps(compose=True)}
    assert [name for name in first if first[name] == "nice"] == ["lake set-up", "tests"]
    assert "nice" not in {str(step.command[0]) for step in steps()}


def test_campaigns_come_after_the_tests_and_each_test_runs_in_one_step() -> None:
    assert names()[-2:] == ["tests", "campaigns"]
    chosen = {step.name: step.command[step.command.index("-m") + 1] for step in steps() if step.runs_tests}
    assert chosen == {"tests": "not slow and not compose and not campaign", "campaigns": "campaign and not slow"}
    (every,) = (step for step in steps(["-k", "seeds"]) if step.runs_tests)
    assert "not slow and not compose" in every.command


def test_one_step_runs_alone_and_in_the_foreground() -> None:
    for name in check.STEP_NAMES:
        (step,) = steps(only=name)
        assert (step.name, step.beside) == (name, False)


def test_types_are_those_of_all_sources_and_all_tests() -> None:
    (types,) = steps(only="types")
    folders = [str(word) for word in types.command[1:]]
    assert "tests" in folders
    members = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/src")}
    members |= {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("services/*/src")}
    assert {folder.removesuffix("/src") for folder in folders if folder != "tests"} == members
