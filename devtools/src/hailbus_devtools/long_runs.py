"""Run every suite that the check leaves out, one after another, and write docs/long-runs.md.

Each suite runs to its end whatever the others do. The page says when, on which commit and on which machine each ran
last, with which command, and how it ended.
"""

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hailbus_devtools.check import environment
from hailbus_devtools.report import Outcome, read_outcome
from hailbus_devtools.tools import ROOT

__all__ = ["RUNS", "LongRun", "Result", "main", "page"]

PAGE = ROOT / "docs" / "long-runs.md"
REPORTS = ROOT / "build" / "long-runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """A suite that takes too long for every change."""

    name: str
    shows: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Sequence[str] = ()
    """A command that must pass before."""

    @property
    def typed(self) -> str:
        """Return the command as a person types it."""
        names = [f"{name}={value}" for name, value in self.environment.items()]
        return " && ".join(shlex.join([*names, *command]) for command in (self.prepare, self.command) if command)


def interpreter(version: str, pyenv: Path) -> str:
    """Return what `uv run --python` gets: a Python that pyenv installed, if there is one, or the version.

    uv cannot ask the shims of pyenv for a version that pyenv has not activated, and stops there.
    """
    installed = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    return str(installed[-1]) if installed else version


def _python(version: str) -> LongRun:
    # An environment of its own beside the workspace's, which stays as it is.
    where = {"UV_PROJECT_ENVIRONMENT": f"build/python-{version}"}
    return LongRun(
        name=f"python-{version}",
        shows=f"every test of the check on Python {version}",
        command=[
            "uv",
            "run",
            "--python",
            version,
            "pytest",
            "-n",
            "3",
            "--dist=loadfile",
            "-m",
            "not slow and not compose",
        ],
        environment=where,
        prepare=["uv", "run", "--python", version, "lake", "setup"],  # its archive is of the environment's Spark
    )


RUNS = (
    LongRun(
        name="history",
        shows="ten minutes of clients against a broker that is killed again and again, checked by Jepsen's rules",
        command=["uv", "run", "pytest", "tests/history"],
        environment={"HAILBUS_HISTORY_SECONDS": "600"},
    ),
    LongRun(
        name="faults",
        shows="an hour of clients against three nodes that are killed, suspended, restarted and cut off each other",
        command=["uv", "run", "pytest", "tests/history/test_faults_on_a_cluster.py", "-k", "hailbus"],
        environment={"HAILBUS_FAULTS_SECONDS": "3600"},
    ),
    LongRun(
        name="three-nodes",
        shows="the conformance tests and the tutorial on three nodes of both systems",
        command=["uv", "run", "pytest", "tests/conformance"],
        environment={"HAILBUS_TEST_NODES": "3"},
    ),
    LongRun(
        name="slow",
        shows="long simulations and kill loops: every test marked `slow`",
        command=["uv", "run", "pytest", "-m", "slow and not compose"],
    ),
    LongRun(
        name="compose",
        shows="the compose file end to end, with brokers that are killed, paused and cut off",
        command=["uv", "run", "pytest", "-m", "compose", "tests/e2e"],
    ),
    _python("3.12"),
    _python("3.13"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a suite ended.

    Attributes:
        day: When, as an ISO date.
        commit: Of the work tree, marked where the tree differed from it.
        ended: One sentence: the counts, or that pytest wrote no report.
    """

    name: str
    day: str
    commit: str
    has_passed: bool
    ended: str
    took_s: float
    failed: Sequence[str] = ()

    @classmethod
    def of(
        cls, name: str, outcome: Outcome | None, *, exit_code: int, took_s: float, day: dt.date, commit: str
    ) -> "Result":
        """Judge a run: it has passed if tests ran and none failed."""
        has_passed = exit_code == 0 and outcome is not None and outcome.ran > 0
        counts = "pytest wrote no report" if outcome is None else outcome.summary()
        return cls(
            name=name,
            day=day.isoformat(),
            commit=commit,
            has_passed=has_passed,
            ended=f"{'passed' if has_passed else f'**failed** (exit code {exit_code})'}: {counts}",
            took_s=took_s,
            failed=sorted(outcome.failed) if outcome is not None else (),
        )


def page(results: Mapping[str, Result], runs: Sequence[LongRun] = RUNS, *, machine: str) -> str:
    """Return the page about the last result of each suite."""
    rows = []
    for one in runs:
        result = results.get(one.name)
        ended = (
            "not run yet | | |"
            if result is None
            else f"{result.ended} | {result.took_s / 60:.0f} min | {result.day}, `{result.commit}` |"
        )
        rows.append(f"| {one.name} | {one.shows} | {ended}")
    failed = [f"- {name}: `{test}`" for name, result in results.items() for test in result.failed]
    return "\n".join(
        [
            "# Long runs",
            "",
            "`uv run just long` runs the suites that are too long for every change, and writes this page;",
            "`uv run just long --only NAME` runs one of them.",
            "",
            f"Run on {machine}.",
            "",
            "| Suite | What it shows | Result | Took | Run |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *(["Failed tests:", "", *failed, ""] if failed else []),
            "The commands:",
            "",
            "```",
            *(one.typed for one in runs),
            "```",
            "",
        ]
    )


def run(one: LongRun, *, commit: str) -> Result:
    """Run a suite to its end, and keep its result beside those of the others."""
    report = REPORTS / f"{one.name}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    commands = [_runnable(one.prepare)] if one.prepare else []
    exit_code = 0
    for command in (*commands, [*_runnable(one.command), f"--junitxml={report}"]):
        if exit_code == 0:
            exit_code = subprocess.run(
                command,
                cwd=ROOT,
                env={**environment(), **one.environment},
                stdin=subprocess.DEVNULL,
                check=False,
            ).returncode
    result = Result.of(
        one.name,
        read_outcome(report) if report.exists() else None,
        exit_code=exit_code,
        took_s=time.monotonic() - began,
        day=dt.datetime.now(tz=dt.UTC).date(),  # noqa: TID251 the page is dated
        commit=commit,
    )
    _kept(one).write_text(json.dumps(dataclasses.asdict(result)), encoding="utf-8")
    return result


def _runnable(command: Sequence[str]) -> list[str]:
    """Return a command with the Python that is there in place of its version."""
    words = list(command)
    if "--python" in words:
        place = words.index("--python") + 1
        words[place] = interpreter(words[place], Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")))
    return words


def _kept(one: LongRun) -> Path:
    return REPORTS / f"{one.name}.json"


def _commit() -> str:
    """Return the commit of the work tree, marked where the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changes = git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changes else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suites, write the page, and exit with 1 if one of them failed."""
    names = [one.name for one in RUNS]
    parser = argparse.ArgumentParser(prog="long-runs", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", action="append", choices=names, help="run this suite; may be given several times")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write (default: docs/long-runs.md)")
    options = parser.parse_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    results: dict[str, Result] = {}
    has_passed = True
    for one in RUNS:
        if options.only is None or one.name in options.only:
            print(f"long-runs: {one.typed}", flush=True)
            results[one.name] = run(one, commit=commit)
            has_passed &= results[one.name].has_passed
            print(f"long-runs: {one.name} {results[one.name].ended}", flush=True)
        elif _kept(one).exists():
            results[one.name] = Result(**json.loads(_kept(one).read_text(encoding="utf-8")))
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()} unless named otherwise"
    options.page.write_text(page(results, machine=machine), encoding="utf-8")
    print(f"long-runs: wrote {options.page}", flush=True)
    sys.exit(0 if has_passed else 1)
