"""What holds in every unit test of the SDK."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Deaths(logging.Handler):
    """Collects what is logged about workers that died: a member replaces them, so nothing else would tell."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("worker_died"):
            self.found.append(self.format(record))


@pytest.fixture(autouse=True)
def no_worker_dies() -> Iterator[list[str]]:
    """Fail a test in which a worker of a lane died. Gives what was logged, for tests that want it."""
    deaths = _Deaths()
    logger = logging.getLogger("hailbus.subscriber")
    logger.addHandler(deaths)
    yield deaths.found
    logger.removeHandler(deaths)
    assert deaths.found == []
