"""Run pytest in forks of one interpreter that has imported already what no mutant changes.

Reads one request per line from standard input and answers each with one line on standard output. The server itself
imports neither the mutated package nor what imports it, so every fork imports these as they stand in the copy.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from hailbus_devtools.mutation.recording import Recorder

_MEMORY_BYTES = 6 << 30
_FILE_BYTES = 512 << 20
_OUTPUT_CHARACTERS = 6_000
PASSED_ITS_LIMIT = 75
"""The exit status of a fork in which one test took longer than its limit."""
ARGUMENTS = (
    *("-x", "-q", "--no-header", "--tb=short", "--assert=plain", "--hypothesis-seed=0", "-m", "not slow"),
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"),
)


class Limiter:
    """A pytest plugin: ends the process when a test takes longer than its limit, so that a hang costs no more."""

    def __init__(self, limits_s: dict[str, float]) -> None:
        self._limits_s = limits_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test, its fixtures included, within its limit."""
        timer = threading.Timer(self._limits_s.get(item.nodeid, threading.TIMEOUT_MAX), os._exit, [PASSED_ITS_LIMIT])
        timer.daemon = True
        timer.start()
        try:
            return (yield)
        finally:
            timer.cancel()


def preload(packages: list[str], modules: list[str], *, never: list[str]) -> None:
    """Import what the tests will import, but nothing that imports one of the packages `never` or starts a thread.

    A fork has only the thread that made it.

    Args:
        packages: Modules of other people's packages.
        modules: Modules of the workspace. What the mutated package imports may be shared between mutants; what imports
            the mutated package holds its objects, so a fork must import it anew.
        never: The mutated package.
    """
    for found in (packages, modules):
        if _may_import(found, never):
            _import_all(found)
            continue
        by_package: dict[str, list[str]] = {}
        for name in found:
            by_package.setdefault(name.partition(".")[0], []).append(name)
        for names in by_package.values():
            if _may_import(names, never):
                _import_all(names)


def _import_all(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _may_import(names: list[str], never: list[str]) -> bool:
    """Tell, by trying it in a fork, whether importing modules starts no thread and imports none of `never`."""
    child = os.fork()
    if child == 0:
        _import_all(names)
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 names are enough
        os._exit(threads > 1 or any(name.partition(".")[0] in never for name in sys.modules))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one pytest session in a fork and return its exit status, None after a time-out, with its last output."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        Path(scratch).chmod(0o711)  # PostgreSQL runs as a user of its own
        output = Path(scratch, "output")
        child = os.fork()
        if child == 0:
            _in_fork(request, scratch, output)
        status = _wait(child, request["timeout_s"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        text = output.read_text(errors="replace") if output.exists() else ""
    return {"status": status, "seconds": time.monotonic() - started, "output": text[-_OUTPUT_CHARACTERS:]}


def _wait(child: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    pause_s = 0.005
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_fork(request: dict[str, Any], scratch: str, output: Path) -> None:
    code = 70
    try:
        os.setsid()
        with output.open("wb") as file, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        os.environ["TMPDIR"] = scratch
        tempfile.tempdir = None
        if not request.get("record"):
            # A changed file may keep its length and the second of its change, and would match what was compiled before.
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        _settle_hypothesis()
        recorder = Recorder(request["record"]) if request.get("record") else None
        plugins = [Limiter(request.get("limits_s", {})), *filter(None, [recorder])]
        code = int(pytest.main([*ARGUMENTS, *request["args"]], plugins=plugins))
        if recorder is not None:
            Path(request["record_to"]).write_text(json.dumps(recorder.result()))
    except BaseException:  # noqa: BLE001 a mutant may raise anything at import
        traceback.print_exc()
        code = 71
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _settle_hypothesis() -> None:
    """Keep no examples between mutants, and stop at the first failure without shrinking it."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutation",
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    settings.load_profile("mutation")


def main() -> None:
    """Serve requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if "preload" in request:
            preload(request["preload"], request["modules"], never=request["never"])
            answer: dict[str, Any] = {}
        else:
            answer = run(request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
