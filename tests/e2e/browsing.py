"""One Chromium for all tests of a module that look at pages: a start costs more CPU time than most of the tests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

MARKS = [
    pytest.mark.needs("chromium"),
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("chromium_of_module"),
]
"""Of a module whose tests call `browser`."""

RUNNING: list[Browser] = []
"""The browser of the module, kept by the fixture."""


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Lend the browser of the module; at the end, pages that are still open are closed."""
    (running,) = RUNNING
    try:
        yield running
    finally:
        for context in running.contexts:
            await context.close()
