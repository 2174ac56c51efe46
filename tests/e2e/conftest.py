"""What the tests with a browser share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio
from hailbus_devtools.tools import chromium
from playwright.async_api import async_playwright

from tests.e2e.browsing import RUNNING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium_of_module() -> AsyncIterator[None]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        RUNNING.append(started)
        yield
        RUNNING.remove(started)
        await started.close()
