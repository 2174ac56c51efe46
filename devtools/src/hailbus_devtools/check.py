"""One command for all that must pass before a change lands: style, types, imports, documentation and tests.

It lists the tools and services that tests want first, runs types, documentation and the compose file beside the
tests and campaigns of simulations after them, prints the slowest tests and files, and ends with one line: how many
tests passed and failed, and how many were skipped for which reason.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hailbus_devtools.report import Outcome, merge, read_outcome, read_reviewed_skips, unreviewed
from hailbus_devtools.tools import ROOT, apache_kafka, listing, why_missing

__all__ = ["MEMBERS", "ROOT", "Result", "Step", "environment", "main", "report_of", "run_all", "steps", "summarise"]

MEMBERS = (
    "broker",
    "sdk",
    "registry",
    "services/events",
    "services/booking",
    "services/surge",
    "services/recommender",
    "services/bike",
    "services/payment",
    "services/payment-provider",
    "services/dashboard",
    "services/logger",
    "analytics_spark",
    "demo",
    "devtools",
)
REPORTS = ROOT / "build" / "check"
REVIEWED_SKIPS = ROOT / "tests" / "reviewed-skips.toml"
CAMPAIGNS = "tests/integration/broker/simulation"
SLOWEST = 10
SLOWEST_FILES = 30

BESIDE_CONTAINERS = ("nice", "-n", "5")
"""Containers cost CPU time as long as they run, and each of their tests waits for a state of the whole: let the other
tests wait instead, and the containers are gone sooner."""

SIDE_BY_SIDE = ("--dist=loadfile", "--no-loadscope-reorder")
"""A file stays in one process, so that its servers start once; files are given out in their order, so that the long
end-to-end runs do not come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of the check, run from the root of the repository."""

    name: str
    command: Sequence[str | Path]
    runs_tests: bool = False
    beside: bool = False
    """Runs beside the steps that follow; what it prints comes in one piece when it ends."""


@dataclass(slots=True, kw_only=True)
class Result:
    """How a step ended."""

    step: Step
    problem: str | None = None
    """What went wrong, or nothing if the step passed."""
    took_s: float = 0.0
    cpu_s: float = 0.0
    outcome: Outcome | None = None
    output: str = field(default="", repr=False)

    @property
    def line(self) -> str:
        """Return the step and how it ended."""
        ended = "passed" if self.problem is None else f"failed ({self.problem})"
        return f"{self.step.name} {ended} in {self.took_s:.0f} s ({self.cpu_s:.0f} s of CPU)"


def report_of(name: str) -> Path:
    """Return where pytest writes the outcome of a step."""
    return REPORTS / f"{name}.xml"


def worker_count() -> int:
    """Return how many processes run tests: one more than there are cores, since tests wait for other processes."""
    return min(4, (os.cpu_count() or 1) + 1)


def steps(
    pytest_args: Sequence[str] = (), *, fast: bool = False, compose: bool = False, only: str | None = None
) -> list[Step]:
    """Return the steps to run, in their order."""
    tool = Path(sys.executable).parent
    sources = [f"{member}/src" for member in MEMBERS]

    def tests(name: str, *arguments: str) -> Step:
        report = f"--junitxml={report_of(name)}"
        return Step(name=name, command=[tool / "pytest", *arguments, report, *pytest_args], runs_tests=True)

    style = [
        Step(name="format", command=[tool / "ruff", "format", "--check", "."]),
        Step(name="lint", command=[tool / "ruff", "check", "."]),
        Step(name="imports", command=[tool / "lint-imports"]),
        Step(name="documentation", command=[tool / "mkdocs", "build", "--strict"], beside=True),
        Step(name="types", command=[tool / "mypy", *sources, "tests"], beside=True),
    ]
    workers = f"--numprocesses={worker_count()}"
    quick = tests("fast tests", workers, "--dist=worksteal", "-m", "not slow", "tests/unit", "tests/property")
    # By themselves, since they run on all cores; but with arguments for pytest one step runs what these choose.
    campaigns = tests("campaigns", "-m", "campaign and not slow", CAMPAIGNS)
    apart = "" if pytest_args else " and not campaign"
    whole = [
        Step(name="lake set-up", command=[tool / "lake", "setup"]),
        tests("tests", workers, *SIDE_BY_SIDE, "-m", f"not slow and not compose{apart}"),
    ]
    if compose:
        whole = [replace(step, command=[*BESIDE_CONTAINERS, *step.command]) for step in whole]
    if why_missing("apache kafka") is None:
        whole.insert(0, Step(name="apache kafka set-up", command=[apache_kafka(), "fetch"]))
    # Beside the others: most of the time it waits for images to be built and for containers to restart.
    containers = replace(tests("compose", "-m", "compose and not slow", "tests/e2e"), beside=True)
    if only is not None:
        every = [*style, quick, *whole, campaigns, containers]
        return [replace(step, beside=False) for step in every if step.name == only]
    if fast:
        return [*style, quick]
    return [*style, *([containers] if compose else []), *whole, *([] if pytest_args else [campaigns])]


STEP_NAMES = (
    *("format", "lint", "imports", "documentation", "types"),
    *("fast tests", "lake set-up", "tests", "campaigns", "compose"),
)


def environment() -> dict[str, str]:
    """Return the environment of the steps.

    Python keeps what it compiles, also where the machine says otherwise: without that, each process of the tests
    compiles pytest's version of all tests, all sources and all libraries anew, 15 s of CPU time every time.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(step: Step) -> Result:
    """Run a step to its end and read what its tests did."""
    result = Result(step=step)
    report = report_of(step.name)
    report.unlink(missing_ok=True)
    began = time.monotonic()
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if step.beside else None,
        stderr=subprocess.STDOUT if step.beside else None,
        text=True,
    )
    if process.stdout is not None:
        with process.stdout as output:
            result.output = output.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    result.took_s = time.monotonic() - began
    result.cpu_s = usage.ru_utime + usage.ru_stime
    if process.returncode:
        result.problem = f"exit code {process.returncode}"
    if step.runs_tests:
        if not report.exists():
            result.problem = f"{result.problem or 'exit code 0'}, and pytest wrote no report"
            return result
        result.outcome = read_outcome(report)
        if result.outcome.ran == 0:
            result.problem = "no test ran"
    return result


def run_all(wanted: Sequence[Step]) -> list[Result]:
    """Run the steps; stop before the tests if a step before them fails, since that one takes a second to mend."""
    results: list[Result] = []
    said = threading.Lock()

    def keep(step: Step) -> Result:
        result = run(step)
        with said:
            print(f"{result.output}check: {result.line}", flush=True)
            results.append(result)
        return result

    beside: list[threading.Thread] = []
    try:
        for step in wanted:
            if step.beside:
                beside.append(threading.Thread(target=keep, args=(step,)))
                beside[-1].start()
                continue
            print(f"check: {step.name}", flush=True)
            if keep(step).problem is not None and not step.runs_tests:
                break
    finally:
        for thread in beside:
            thread.join()
    return sorted(results, key=lambda result: wanted.index(result.step))


def summarise(results: Sequence[Result], *, require_all: bool) -> tuple[list[str], int]:
    """Return the last lines of the check, of which the very last says it all, and the exit code."""
    outcome = merge(result.outcome for result in results if result.outcome is not None)
    failures = [result.step.name for result in results if result.problem is not None]
    lines = []
    if outcome.ran:
        lines.append("check: the slowest tests")
        lines += [f"  {took:6.1f} s  {test}" for took, test in outcome.slowest(SLOWEST)]
        lines.append("check: the slowest files")
        lines += [f"  {took:6.1f} s  {name}" for took, name in outcome.slowest_files(SLOWEST_FILES)]
    lines += [f"check: failed: {test}" for test in sorted(outcome.failed)]
    if require_all:
        refused = unreviewed(outcome.skips, read_reviewed_skips(REVIEWED_SKIPS))
        lines += [f"check: skipped, which --require-all refuses: {skip.test}: {skip.reason}" for skip in refused]
        if refused:
            failures.append(f"skips that {REVIEWED_SKIPS.relative_to(ROOT)} does not list: {len(refused)}")
    lines += [f"check: {result.line}" for result in results]
    verdict = f"failed: {', '.join(failures)}; " if failures else ""
    lines.append(f"check: {verdict}{outcome.summary()}")
    return lines, 1 if failures else 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the check and exit with 0 if everything passed, 1 if something did not, 2 for a wrong argument."""
    parser = argparse.ArgumentParser(prog="check", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--fast", action="store_true", help="the documentation, style, types, imports, unit and property tests alone"
    )
    how.add_argument("--only", choices=STEP_NAMES, help="run this step alone")
    how.add_argument("--list", action="store_true", help="list the tools that tests want, and run nothing")
    parser.add_argument("--compose", action="store_true", help="run the compose file end to end, too")
    parser.add_argument(
        "--require-all",
        action="store_true",
        help=f"fail on any skipped test that {REVIEWED_SKIPS.relative_to(ROOT)} does not list",
    )
    parser.add_argument("pytest_args", nargs="*", help="passed to pytest after --, for example -- -k outbox")
    options = parser.parse_args(arguments)
    if options.compose and (options.fast or options.only):
        parser.error("--compose goes with the whole check; for these tests alone: --only compose")
    print("check: tools and services that tests want", flush=True)
    for line in listing():
        print(f"  {line}", flush=True)
    if options.list:
        return
    REPORTS.mkdir(parents=True, exist_ok=True)
    wanted = steps(options.pytest_args, fast=options.fast, compose=options.compose, only=options.only)
    lines, code = summarise(run_all(wanted), require_all=options.require_all)
    print("\n".join(lines), flush=True)
    sys.exit(code)
