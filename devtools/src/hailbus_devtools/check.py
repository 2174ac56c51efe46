"""One command that sets everything up and passes the tests: style, types, imports, then every kind of test.

What a machine lacks and no package registry of Python brings (a browser, Apache Kafka's jars, a Docker engine) is named
in a line at the start, with the tests that are skipped for want of it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MEMBERS = (
    "broker",
    "sdk",
    "services/events",
    "services/booking",
    "services/surge",
    "services/recommender",
    "services/bike",
    "services/dashboard",
    "services/logger",
    "analytics_spark",
    "demo",
    "devtools",
)

SIDE_BY_SIDE = ("--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
"""Much of the suite waits for other processes. A file stays in one process, so that its servers start once; files are
given out in their order, so that the long end-to-end runs do not come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of the check, run from the root of the repository."""

    name: str
    command: Sequence[str]
    on_request: bool = False
    """Runs only when it is named by `--only`."""


def steps(pytest_args: Sequence[str]) -> list[Step]:
    """Return the steps in the order in which they run: what fails soonest comes first."""
    tool = Path(sys.executable).parent
    sources = [f"{member}/src" for member in MEMBERS]
    return [
        Step(name="format", command=[f"{tool}/ruff", "format", "--check", "."]),
        Step(name="lint", command=[f"{tool}/ruff", "check", "."]),
        Step(name="imports", command=[f"{tool}/lint-imports"]),
        Step(name="types", command=[f"{tool}/mypy", *sources, "tests/unit"]),
        Step(name="lake set-up", command=[f"{tool}/lake", "setup"]),
        Step(name="tests", command=[f"{tool}/pytest", *SIDE_BY_SIDE, "-m", "not slow and not compose", *pytest_args]),
        Step(name="compose", command=[f"{tool}/pytest", "-m", "compose", *pytest_args], on_request=True),
    ]


def missing() -> list[str]:
    """Say what this machine lacks and which tests are skipped for it."""
    shared = Path(os.environ.get("HAILBUS_SHARED", ROOT.parent / "shared"))
    lines = []
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        lines.append("no Chromium: the test of the city page in a browser is skipped")
    if not shared.is_dir():
        lines.append("no shared folder beside the clone: tests against Apache Kafka and recorded data are skipped")
    elif not shutil.which("mvn"):
        lines.append("no Maven: tests against Apache Kafka are skipped")
    return lines


def main() -> None:
    """Run all steps, stop at the first that fails, and exit with its code."""
    parser = argparse.ArgumentParser(prog="check", description="Set everything up and run the tests.")
    parser.add_argument("--only", choices=[step.name for step in steps([])], help="run this step alone")
    parser.add_argument("pytest_args", nargs="*", help="passed to pytest after --, for example -- -k outbox")
    arguments = parser.parse_args()
    for line in missing():
        print(f"check: {line}", flush=True)
    for step in steps(arguments.pytest_args):
        if step.on_request if arguments.only is None else arguments.only != step.name:
            continue
        print(f"check: {step.name}", flush=True)
        started = time.monotonic()
        code = subprocess.run(step.command, cwd=ROOT, check=False).returncode
        print(
            f"check: {step.name} {'passed' if code == 0 else 'failed'} in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if code:
            sys.exit(code)
