"""Record which test executes which lines of the mutated modules."""

import os
import sys
import sysconfig
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest


class Recorder:
    """A pytest plugin: one coverage context per test, its duration, and the modules that were imported."""

    def __init__(self, files: list[str]) -> None:
        self._files = files
        self._coverage = coverage.Coverage(data_file=None, include=files, config_file=False)
        self._seconds: dict[str, float] = {}
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Attribute the lines that run during a test, its fixtures included, to the test."""
        self._coverage.switch_context(item.nodeid)
        started = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - started

    def result(self) -> dict[str, Any]:
        """Return durations, the tests of each line, where the modules came from, and the modules to preload."""
        self._coverage.stop()
        data = self._coverage.get_data()
        places = {getattr(module, "__file__", None): name for name, module in sys.modules.items()}
        return {
            "seconds": self._seconds,
            "lines": {
                file: {
                    str(line): [context for context in contexts if context]
                    for line, contexts in data.contexts_by_lineno(file).items()
                }
                for file in self._files
            },
            "imported": [file for file in self._files if file in places],
            "preload": imported(sysconfig.get_path("purelib")),
            "modules": imported(str(Path.cwd())),
        }


def imported(folder: str) -> list[str]:
    """Return the modules that were imported from below a folder, tests left out, in the order of their import."""
    return [
        name
        for name, module in list(sys.modules.items())
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}")
        and name.partition(".")[0] not in {"tests", "__main__"}
    ]
