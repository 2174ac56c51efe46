"""The `bus` fixture comes from the pytest plugin; this stands in where its entry point is not installed."""

from __future__ import annotations

import pytest
from hailbus.testing import MemoryBus


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()
