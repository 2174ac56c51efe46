"""Tests say what they need of the machine: by the mark `needs`, or by `need` in a fixture."""

import pytest
from hailbus_devtools.tools import why_missing

__all__ = ["need"]


def need(*tools: str) -> None:
    """Skip the test where one of these tools is missing; the reason says what to install.

    Args:
        tools: Names from `hailbus_devtools.tools.TOOLS`.
    """
    if reason := why_missing(*tools):
        pytest.skip(reason)
