"""One Chromium for all tests of a module that look at pages: a start costs more CPU time than most of the tests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from playwright.async_api import Browser

MARKS = [
    pytest.mark.needs("chromium"),
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("chromium_of_module"),
    pytest.mark.slow_with("1024-768"),
]
"""Of a module whose tests call `browser`."""


def looks(sizes: Sequence[tuple[int, int]]) -> list[Any]:  # Any: pytest has no public name for what `param` returns
    """Return width, height and whether it is dark: every size in light, and the first in dark.

    Colours do not depend on the size, so the check leaves out the other sizes in dark; `just slow` has them.
    """
    light = [pytest.param(width, height, False, id=f"{width}-{height}-light") for width, height in sizes]
    dark = [
        pytest.param(*size, True, id=f"{size[0]}-{size[1]}-dark", marks=() if size == sizes[0] else pytest.mark.slow)
        for size in sizes
    ]
    return [*light, *dark]


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
