"""The pytest plugin: a `bus` fixture. Loaded by its entry point `hailbus`."""

from __future__ import annotations

import pytest

from hailbus.testing.memory import MemoryBus

__all__ = ["bus"]


@pytest.fixture
def bus() -> MemoryBus:
    """A fresh cluster in memory."""
    return MemoryBus()
