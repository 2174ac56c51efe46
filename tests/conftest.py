"""What all tests share: the mark `needs`, and the servers of the run."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.needs import need
from tests.servers import FOLDER_VARIABLE, SharedServers

OWNED = pytest.StashKey[Path]()
"""The folder of the run's servers, in the process that made it: the first one of the run."""


def pytest_configure(config: pytest.Config) -> None:
    """Name the folder of the run's servers for the processes that this one starts."""
    if FOLDER_VARIABLE not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="hailbus-test-servers-"))
        folder.chmod(0o755)  # PostgreSQL runs as a user of its own
        config.stash[OWNED] = folder
        os.environ[FOLDER_VARIABLE] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the run's servers when the first process of the run ends: it outlives all others."""
    folder = config.stash.get(OWNED, None)
    if folder is not None:
        del os.environ[FOLDER_VARIABLE]
        SharedServers(folder).stop_all()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a missing tool, before any of its fixtures is set up."""
    for mark in item.iter_markers("needs"):
        need(*mark.args)
