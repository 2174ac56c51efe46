"""A copy of the repository in which mutants are made and tested."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hailbus_devtools.check import ROOT
from hailbus_devtools.mutation import MADE_VARIABLE
from hailbus_devtools.mutation.fork_server import PASSED_ITS_LIMIT
from hailbus_devtools.mutation.generate import scope
from hailbus_devtools.mutation.targets import SOURCES, Target

_PLANTED = "a planted mutant: this module was imported from the copy"
BASELINE_TIMEOUT_S = 900.0
_TIMEOUT_FACTOR = 6.0
_UNPROVEN = 0.1
"""How many mutants a test counts as having caught before it has caught one."""
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""numpy and pyarrow start no thread when they are imported: only then can forks share them."""
_PASSED, _USAGE_ERROR, _NOTHING_COLLECTED = 0, 4, 5


class WorkshopError(Exception):
    """The tests cannot judge mutants: they fail without one, or do not notice a planted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the tests said about one mutant.

    Attributes:
        caught: A test failed, the modules could not be imported, or the run passed its time limit.
        by: The failed test, "time-out", "crash", "import", or "" for a survivor.
        seconds: How long the run took.
        tests: How many tests were chosen to judge the mutant.
        output: The end of pytest's output.
    """

    caught: bool
    by: str
    seconds: float
    tests: int
    output: str


@dataclass(slots=True)
class Recording:
    """Which tests execute which lines, as a run of the unchanged code showed, and which of them caught mutants.

    Attributes:
        seconds: Test → its duration.
        lines: Module → line → the tests that execute it.
        preload: Modules of other people's packages that the tests import.
        modules: Modules of the workspace that the tests import.
        catches: Module → test → how many mutants of the module it caught.
        made: The folder with what the tests made once. Runs with mutants read it.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]
    preload: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    catches: dict[str, Counter[str]] = field(default_factory=dict)
    made: str = ""

    def note(self, path: str, by: str) -> None:
        """Remember the test that caught a mutant of a module, so that it judges the module's other mutants early."""
        test = by.partition(" ")[2]
        if test in self.seconds:
            self.catches.setdefault(path, Counter())[test] += 1

    def tests_of(self, path: str, source: str, line: int) -> list[str]:
        """Return the tests that execute the statement at a line.

        Those come first that caught the most mutants of the module for their time; tests that caught none yet are in
        the order of their time. A statement that runs at import, such as a constant, is judged by all tests: any may
        read what it made.
        """
        place = scope(source, line)
        by_line = self.lines[path]
        found = {test for number in place.lines for test in by_line.get(number, ())}
        if place.at_import:
            found = set(self.seconds)
        caught = self.catches.get(path, Counter())
        return sorted(found, key=lambda test: (self.seconds[test] / (caught[test] + _UNPROVEN), test))

    def users_of(self, path: str) -> list[str]:
        """Return the tests that execute any line of a module, the fastest first."""
        found = {test for tests in self.lines[path].values() for test in tests}
        return sorted(found, key=lambda test: (self.seconds[test], test))


class Workshop:
    """One copy with its own warm interpreter. Runs one mutant at a time.

    Attributes:
        root: The root of the copy.
        spare_s: What a run, and each test of it, may take beyond six times the recorded duration.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.spare_s = 20.0
        self._folder = tempfile.TemporaryDirectory(prefix="hailbus-mutation-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name, "hailbus")
        self._server: subprocess.Popen[str] | None = None
        self._recording: Recording | None = None
        self._made = str(self.root.parent / "made")

    def __enter__(self) -> Self:
        """Make the copy: what git tracks and what it would track."""
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        self._start(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the interpreter and delete the copy."""
        self._stop()
        self._folder.cleanup()

    @property
    def recording(self) -> Recording:
        """The tests of each line."""
        assert self._recording is not None, "record() was not called"
        return self._recording

    def record(self, given: Recording | None = None) -> Recording:
        """Run the tests over the unchanged code; then restart the interpreter with what they imported.

        Raises:
            WorkshopError: A test fails, or a module is not imported from the copy.
        """
        if given is not None:
            self._recording = given
            self._start(given)
            return given
        files = {path: str(self.root / path) for path in self._target.files}
        record_to = self.root.parent / "recording.json"
        answer = self._ask(
            args=[*self._target.tests, *(f"--deselect={test}" for test in self._target.deselected)],
            timeout_s=BASELINE_TIMEOUT_S,
            record=list(files.values()),
            record_to=str(record_to),
        )
        if answer["status"] != _PASSED:
            raise WorkshopError(f"the tests of {self._target.name} fail without a mutant:\n{answer['output']}")
        found: dict[str, Any] = json.loads(record_to.read_text())
        elsewhere = [path for path, file in files.items() if file not in found["imported"]]
        if elsewhere:
            raise WorkshopError(f"no test of {self._target.name} imports from the copy: {', '.join(elsewhere)}")
        self._recording = Recording(
            seconds=found["seconds"],
            lines={
                path: {int(line): tests for line, tests in found["lines"][file].items()} for path, file in files.items()
            },
            preload=found["preload"],
            modules=found["modules"],
            made=self._made,
        )
        self._start(self._recording)
        return self._recording

    def plant(self, path: str) -> None:
        """Prove that the tests import this module of the copy: one that cannot be imported must fail them.

        Raises:
            WorkshopError: The tests pass, or fail for another reason.
        """
        source = (self.root / path).read_text()
        # A module that only declares has no user, but some test imports it.
        tests = self.recording.users_of(path)[:1] or list(self.recording.seconds)
        with self._changed(path, f"{source}\nraise RuntimeError({_PLANTED!r})\n"):
            answer = self._ask(args=tests, timeout_s=self._limit_s(tests))
        if answer["status"] == _PASSED or _PLANTED not in answer["output"]:
            raise WorkshopError(f"the tests did not notice a mutant planted in {path}:\n{answer['output']}")

    def judge(self, path: str, changed: str, line: int) -> Verdict:
        """Run the tests that execute the statement at `line` over the changed module."""
        tests = self.recording.tests_of(path, (self.root / path).read_text(), line)
        if not tests:
            return Verdict(caught=False, by="", seconds=0.0, tests=0, output="no test executes this statement")
        with self._changed(path, changed):
            answer = self._run(tests)
        status = answer["status"]
        by = "" if status == _PASSED else _reason(status, answer["output"])
        self.recording.note(path, by)
        return Verdict(
            caught=status != _PASSED,
            by=by,
            seconds=answer["seconds"],
            tests=len(tests),
            output=answer["output"],
        )

    def control(self, path: str, line: int) -> Verdict:
        """Run the same tests over the unchanged module: a test that fails now proves nothing about mutants."""
        return self.judge(path, (self.root / path).read_text(), line)

    def _run(self, tests: Sequence[str]) -> dict[str, Any]:
        limits_s = {test: self._limit_s([test]) for test in tests}
        answer = self._ask(args=tests, timeout_s=self._limit_s(tests), limits_s=limits_s)
        if answer["status"] in {_USAGE_ERROR, _NOTHING_COLLECTED}:
            # The change may have renamed the parameters of a test, which proves nothing: run its whole file.
            files = list(dict.fromkeys(test.split("::")[0] for test in tests))
            answer = self._ask(args=files, timeout_s=self._limit_s(list(self.recording.seconds)))
        return answer

    def _limit_s(self, tests: Sequence[str]) -> float:
        return self.spare_s + _TIMEOUT_FACTOR * sum(self.recording.seconds[test] for test in tests)

    @contextmanager
    def _changed(self, path: str, text: str) -> Iterator[None]:
        file = self.root / path
        original = file.read_text()
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_text(original)

    def _start(self, recording: Recording | None) -> None:
        self._stop()
        roots = [str(self.root / source) for source in SOURCES]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "hailbus_devtools.mutation.fork_server"],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(roots),
                "PYTHONHASHSEED": "0",
                MADE_VARIABLE: self._made if recording is None else recording.made,
                **_NO_THREADS,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if recording is not None:
            never = sorted({_package(path) for path in self._target.files})
            self._exchange({"preload": recording.preload, "modules": recording.modules, "never": never})

    def _stop(self) -> None:
        if self._server is not None:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()
            self._server = None

    def _ask(self, *, args: Sequence[str], timeout_s: float, **more: Any) -> dict[str, Any]:  # Any: JSON
        return self._exchange({"args": list(args), "timeout_s": timeout_s, **more})

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
        server = self._server
        assert server is not None, "used outside its `with` block"
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise WorkshopError(f"the warm interpreter ended with status {server.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _package(path: str) -> str:
    """Return the import name of the package that holds a module."""
    parts = Path(path).parts
    return parts[parts.index("src") + 1]


def _reason(status: int | None, output: str) -> str:
    if status in {None, PASSED_ITS_LIMIT}:
        return "time-out"
    if status < 0:
        return f"crash (signal {-status})"
    summary = output.rpartition("short test summary info")[2].splitlines()
    failed = [line for line in summary if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if failed else f"pytest ended with status {status}"
