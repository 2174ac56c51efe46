"""The tray of faults in a real browser: click, stopwatch, outcome, by mouse and by keyboard."""

from __future__ import annotations

import re

import pytest
from hailbus.testing import MemoryBus
from playwright.async_api import Page, expect

from tests.e2e.browsing import MARKS, browser, looks
from tests.e2e.dashboard.test_page import FAULTS, PATIENCE_MS, shows, visit
from tests.integration.dashboard.city import page, story
from tests.integration.dashboard.test_faults import Processes, launcher

pytestmark = MARKS
SURGE = "[data-fault=kill-surge]"
SIZES = [(1440, 900), (390, 844)]


async def seconds_shown(tab: Page) -> float:
    text = await tab.locator(f"{SURGE} .outcome").inner_text()
    found = re.match(r"(\d+\.\d) s", text)
    return float(found[1]) if found else 0.0


async def begins_and_recovers(tab: Page, processes: Processes) -> None:
    """Wait for the kill, see the stopwatch go, let surge come back, and see the outcome."""
    fault = tab.locator(SURGE)
    await expect(fault).to_have_attribute("data-state", "running", timeout=PATIENCE_MS)
    assert processes.killed[-1] == "surge"
    await expect(fault.locator(".outcome")).to_contain_text("surge is restarting", timeout=PATIENCE_MS)
    before = await seconds_shown(tab)
    await tab.wait_for_function(
        "([place, before]) => parseFloat(document.querySelector(place).textContent) > before",
        arg=[f"{SURGE} .outcome", before],
    )
    await shows(tab, "#fault-said", "Kill surge: running")
    processes.come_back()
    await expect(fault).to_have_attribute("data-state", "recovered", timeout=PATIENCE_MS)
    outcome = re.compile(r"^✓ after \d+\.\d s$")
    await expect(fault.locator(".outcome")).to_have_text(outcome, timeout=PATIENCE_MS)
    await expect(tab.locator("#fault-said")).to_have_text(
        re.compile(r"^Kill surge: recovered after \d+\.\d s ✓$"), timeout=PATIENCE_MS
    )


@pytest.mark.parametrize(("width", "height", "dark"), looks(SIZES))
async def test_a_click_starts_a_stopwatch_that_ends_in_the_outcome(width: int, height: int, dark: bool) -> None:
    bus = MemoryBus()
    async with (
        launcher() as (processes, settings),
        story(bus),
        page(bus, **settings) as url,
        browser() as chromium,
        visit(chromium, url, width=width, height=height, dark=dark) as tab,
    ):
        surge = tab.get_by_role("button", name="Kill surge", exact=True)
        await expect(surge).to_be_visible(timeout=PATIENCE_MS)
        assert await tab.locator("#fault-list li").count() == 10
        described = await surge.get_attribute("aria-describedby")
        await expect(tab.locator(f"#{described}")).to_contain_text("the ledger stays balanced")
        assert await tab.locator("#fault-said").get_attribute("role") == "status"
        await surge.click()
        await expect(tab.locator(SURGE)).to_have_attribute("data-state", "running", timeout=PATIENCE_MS)
        assert await tab.evaluate(FAULTS) == []
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        other = tab.get_by_role("button", name="Kill booking", exact=True)
        await expect(other).to_have_attribute("aria-disabled", "true", timeout=PATIENCE_MS)
        await other.dispatch_event("click")
        await shows(tab, "#fault-note", "Kill surge still runs: wait until the city has recovered")
        await shows(tab, "#fault-said", "Kill surge still runs: wait until the city has recovered")
        assert processes.killed == ["surge"]
        processes.come_back()
        await expect(tab.locator(SURGE)).to_have_attribute("data-state", "recovered", timeout=PATIENCE_MS)
        await expect(other).to_have_attribute("aria-disabled", "false", timeout=PATIENCE_MS)
        await shows(tab, "#fault-note", "")
        assert await tab.evaluate(FAULTS) == []
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        map_box = await tab.locator("#map").bounding_box()
        assert map_box is not None
        assert map_box["height"] > 0.4 * height


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_keyboard_alone_causes_a_fault_and_keeps_its_place(width: int, height: int) -> None:
    bus = MemoryBus()
    async with (
        launcher() as (processes, settings),
        story(bus),
        page(bus, **settings) as url,
        browser() as chromium,
        visit(chromium, url, width=width, height=height) as tab,
    ):
        surge = tab.get_by_role("button", name="Kill surge", exact=True)
        await expect(surge).to_be_visible(timeout=PATIENCE_MS)
        for _ in range(20):
            await tab.keyboard.press("Tab")
            if await surge.evaluate("(found) => found === document.activeElement"):
                break
        await expect(surge).to_be_focused()
        await tab.keyboard.press("Enter")
        await begins_and_recovers(tab, processes)
        await expect(surge).to_be_focused()


async def test_without_a_launcher_the_page_has_no_tray() -> None:
    bus = MemoryBus()
    async with story(bus), page(bus) as url, browser() as chromium, visit(chromium, url) as tab:
        await expect(tab.locator("#faults")).to_be_hidden()
        await expect(tab.locator("#fault-list li")).to_have_count(0)


async def test_the_load_is_moved_by_mouse_and_by_keyboard_and_the_launcher_has_it() -> None:
    bus = MemoryBus()
    async with (
        launcher() as (_, settings),
        story(bus),
        page(bus, **settings) as url,
        browser() as chromium,
        visit(chromium, url) as tab,
    ):
        slider = tab.get_by_role("slider", name="Load")
        await expect(slider).to_have_value("1", timeout=PATIENCE_MS)
        await slider.focus()
        await slider.press("ArrowRight")
        await shows(tab, "#load-shown", "1.5×")
        await slider.press("End")
        await shows(tab, "#load-shown", "4×")
        await expect(slider).to_have_value("4", timeout=PATIENCE_MS)
        answer = await tab.request.get(f"{url}/api/faults")
        assert (await answer.json())["load"]["factor"] == 4.0
