"""What all tests share: the mark `needs`, and the servers of the run."""

import gc
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.collecting import collecting
from tests.needs import need
from tests.servers import FOLDER_VARIABLE, Keeper
from tests.variants import mark_slow_variants

# No test bounds wall time: on a loaded machine any example may take long.
settings.register_profile("check", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("check")

KEEPER = pytest.StashKey[Keeper]()
"""Stops the run's servers; the first process of the run has it, since it outlives all others."""


def pytest_configure(config: pytest.Config) -> None:
    """Name the folder of the run's servers for the processes that this one starts."""
    if FOLDER_VARIABLE not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="hailbus-test-servers-"))
        folder.chmod(0o755)  # PostgreSQL runs as a user of its own
        config.stash[KEEPER] = Keeper(folder)
        os.environ[FOLDER_VARIABLE] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the run's servers."""
    keeper = config.stash.get(KEEPER, None)
    if keeper is not None:
        del os.environ[FOLDER_VARIABLE]
        keeper.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, and let the first of several processes compile what is not compiled yet.

    What is collected lives as long as the run, and the collector would look at these objects again and again: that is
    a third of the time of collecting where nothing is compiled, and 5 % of that of unit tests.
    """
    gc.disable()
    try:
        if not hasattr(session.config, "workerinput"):  # a run in one process, or the one that collects nothing itself
            return (yield)
        with collecting(Path(os.environ[FOLDER_VARIABLE])):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow variants before `-m` looks at the marks."""
    mark_slow_variants(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a missing tool, before any of its fixtures is set up."""
    for mark in item.iter_markers("needs"):
        need(*mark.args)
