"""The page of dead letters in a real browser: what was set aside and why, the value mended, compared and replayed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dashboard.adapters.http.app import STATIC
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.testing import MemoryBus
from playwright.async_api import Page, Response, expect
from ride_events.rides import RIDES

from tests.e2e.browsing import MARKS, browser, looks
from tests.e2e.dashboard.test_page import FAULTS, PATIENCE_MS, SIZES, shows, visit
from tests.integration.dashboard.city import page, story
from tests.integration.dashboard.spoiled import QUEUE, requested, spoil, surge, until_letters

pytestmark = MARKS
WIDTH = "document.documentElement.scrollWidth"
SHOTS = os.environ.get("DASHBOARD_SHOTS")


def break_it(value: dict[str, Any]) -> None:
    del value["fare"]
    value["pickup"]["lat"] = "north"


@dataclass(frozen=True)
class Opened:
    bus: MemoryBus
    tab: Page
    place: str

    async def choose(self) -> None:
        await self.tab.locator("#queue-list a").first.click()
        await expect(self.tab.locator("#title")).to_contain_text("ride.requested")

    async def edit(self, **fields: Any) -> None:
        text = await self.tab.get_by_label("Value", exact=True).input_value()
        await self.tab.get_by_label("Value", exact=True).fill(json.dumps(json.loads(text) | fields, indent=2))

    async def shoot(self, name: str) -> None:
        """Keep a picture for people, where the environment asks for it."""
        if SHOTS:
            await self.tab.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@asynccontextmanager
async def letters(
    *,
    width: int = 1440,
    height: int = 900,
    dark: bool = True,
    may_complain: bool = False,
    path: str = "",
    value: bytes | None = None,
    mode: str = "replay",
) -> AsyncIterator[Opened]:
    bus = MemoryBus()
    async with (
        story(bus) as tell,
        surge(bus),
        page(bus, letters=mode) as url,
        browser() as chromium,
    ):
        await tell.ride("one")
        spoil(bus, "one", break_it, value=value)
        (record,) = await until_letters(bus, 1)
        place = f"{record.partition}@{record.offset}"
        size = {"width": width, "height": height}
        at = path.format(queue=QUEUE, place=place)
        async with visit(chromium, url, f"/letters{at}", **size, dark=dark, may_complain=may_complain) as tab:
            await shows(tab, "#found", "1 of 1 letter waits.")
            yield Opened(bus, tab, place)


@pytest.mark.parametrize(("width", "height", "dark"), looks(SIZES))
async def test_it_fits_and_can_be_read_in_every_state(width: int, height: int, dark: bool) -> None:
    async with letters(width=width, height=height, dark=dark) as opened:
        tab, name = opened.tab, f"{width}-{'dark' if dark else 'light'}"

        async def fits(state: str) -> None:
            await opened.shoot(f"{name}-{state}")
            assert await tab.evaluate(FAULTS) == [], state
            assert await tab.evaluate(WIDTH) <= width, state

        assert await tab.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        await fits("list")
        await opened.choose()
        await fits("letter")
        await tab.locator("#more summary").click()
        await fits("headers")
        await tab.locator("#more summary").click()
        await tab.locator("#use-twin").click()
        await expect(tab.locator("#problems")).to_contain_text("✓", timeout=PATIENCE_MS)
        await fits("edited")
        await tab.get_by_role("button", name="Drop", exact=True).click()
        await fits("sure")
        await tab.get_by_role("button", name="Keep it").click()
        await tab.get_by_role("button", name="Replay", exact=True).click()
        await expect(tab.locator("#result")).to_contain_text("✓", timeout=PATIENCE_MS)
        await shows(tab, "#found", "No letter waits: 1 letter was dealt with.")
        await fits("replayed")


@pytest.mark.parametrize("width", [320, 640, 899, 900])
async def test_no_width_scrolls_sideways(width: int) -> None:
    async with letters(width=width, height=800) as opened:
        await opened.choose()
        await opened.tab.locator("#use-twin").click()
        await opened.tab.locator("#more summary").click()
        assert await opened.tab.evaluate(WIDTH) <= width


async def test_a_letter_says_what_failed_where_and_why() -> None:
    async with letters() as opened:
        tab = opened.tab
        await shows(tab, "#title", "No letter is chosen")
        listed = tab.locator("#queue-list a")
        await expect(listed).to_have_count(1)
        await expect(listed).to_contain_text("ride.requested")
        await expect(listed.locator(".status")).to_have_text("waiting")
        await expect(tab.locator("#queue-list h3")).to_have_text("surge, from rides.v1")
        await opened.choose()
        await expect(tab).to_have_url(re.compile(f"#{QUEUE}/{opened.place}$"))
        await expect(tab.locator("#title")).to_be_focused()
        await expect(listed).to_have_attribute("aria-current", "true")
        await expect(tab.locator("#about")).to_contain_text("surge could not read the record at rides.v1-")
        await expect(tab.locator("#about")).to_contain_text("its handler was not called")
        terms = await tab.locator("#facts dt").all_inner_texts()
        said = dict(zip(terms, await tab.locator("#facts dd").all_inner_texts(), strict=True))
        assert said["Exception"] == "hailbus.errors.InvalidPayloadError"
        assert said["Key"] == "one"
        assert said["Attempts"] == "0"
        assert said["When"].endswith("UTC")
        assert said["Letter"] == f"{opened.place} of {QUEUE}"
        problems = await tab.locator("#problems li").all_inner_texts()
        assert problems[1] == "fare: Field required"
        assert problems[0].startswith("pickup.lat: Input should be a valid number")
        await expect(tab.locator("#diff")).to_be_hidden()
        await shows(tab, "#no-diff", "None: this is the record's own value.")
        await tab.locator("#more summary").click()
        await expect(tab.locator("#headers tr", has_text="kafka_dlt-exception-stacktrace")).to_contain_text("Traceback")


async def test_the_editor_shows_problems_and_the_changed_lines() -> None:
    async with letters() as opened:
        tab = opened.tab
        await opened.choose()
        await opened.edit(fare={"amount_minor": 2350, "currency": "USD"}, pickup={"lat": 40.75, "lng": -73.9855})
        await expect(tab.locator("#problems")).to_have_text("✓ The value is what ride.requested asks for.")
        assert await tab.locator("#value").get_attribute("aria-invalid") == "false"
        removed = await tab.locator("#diff del").all_inner_texts()
        added = await tab.locator("#diff ins").all_inner_texts()
        assert removed[0] == '−    "lat": "north",'
        assert added[0] == '+    "lat": 40.75,'
        assert '+  "fare": {' in added
        await expect(tab.locator("#diff .left-out").first).to_contain_text("equal line")
        await tab.get_by_label("Value", exact=True).fill("{")
        await expect(tab.locator("#problems")).to_contain_text("Invalid JSON")
        assert await tab.locator("#value").get_attribute("aria-invalid") == "true"
        await tab.get_by_role("button", name="Undo the changes").click()
        await expect(tab.locator("#diff")).to_be_hidden()
        await expect(tab.locator("#problems li")).to_have_count(2)
        await expect(tab.get_by_role("button", name="Undo the changes")).to_be_hidden()


async def test_the_twins_value_is_used_and_the_letter_is_replayed_once() -> None:
    async with letters() as opened:
        tab, bus = opened.tab, opened.bus
        await opened.choose()
        good = requested(bus, "one")
        place = f"rides.v1-{good.partition}@{good.offset}"
        await tab.get_by_role("button", name=f"Use the value of the record at {place}").click()
        await expect(tab.locator("#value")).to_be_focused()
        await expect(tab.locator("#problems")).to_contain_text("✓ The value is what ride.requested asks for.")
        await tab.get_by_role("button", name="Replay", exact=True).click()
        result = tab.locator("#result")
        await expect(result).to_contain_text("✓ The letter was replayed: its record is now at rides.v1-")
        await expect(result).to_be_focused()
        assert await result.get_attribute("role") == "status"
        replayed = bus.records(RIDES)[-1]
        assert (replayed.key, replayed.value) == (good.key, good.value)
        await expect(tab.locator("#title .status")).to_have_text("replayed")
        await expect(tab.locator("#acts")).to_be_hidden()
        assert await tab.locator("#value").evaluate("(area) => area.readOnly")
        await expect(tab.locator("#history li")).to_contain_text("replayed by dashboard to rides.v1-")
        await expect(tab.locator("#history li")).to_contain_text("with an edited value")
        await expect(tab.locator("#diff ins").first).to_be_visible()
        await shows(tab, "#found", "No letter waits: 1 letter was dealt with.")
        await expect(tab.locator("#queue-list summary")).to_have_text("1 dealt with")
        await expect(tab.locator("#queue-list .status")).to_have_text("replayed")


async def test_a_value_with_problems_is_not_replayed() -> None:
    async with letters(may_complain=True) as opened:  # the browser itself notes the 422
        tab = opened.tab
        before = len(opened.bus.records(RIDES))
        await opened.choose()
        await tab.get_by_role("button", name="Replay", exact=True).click()
        await expect(tab.locator("#result")).to_contain_text("✗ The letter was not replayed: pickup.lat: ")
        await expect(tab.locator("#problems li")).to_have_count(2)
        assert len(opened.bus.records(RIDES)) == before


async def test_a_drop_asks_once_more() -> None:
    async with letters() as opened:
        tab = opened.tab
        await opened.choose()
        drop = tab.get_by_role("button", name="Drop", exact=True)
        await drop.click()
        await expect(tab.get_by_role("button", name="Keep it")).to_be_focused()
        await tab.keyboard.press("Escape")
        await expect(drop).to_be_focused()
        await expect(tab.locator("#sure")).to_be_hidden()
        await drop.click()
        await tab.get_by_role("button", name="Drop the letter").click()
        await shows(tab, "#result", "✓ The letter was dropped.")
        await expect(tab.locator("#title .status")).to_have_text("dropped")
        (letter,) = await DeadLetterQueue(opened.bus, QUEUE).letters()
        assert letter.status == "dropped"


async def test_the_address_opens_a_letter_and_an_unknown_one_is_said() -> None:
    async with letters(path="#{queue}/{place}", may_complain=True) as opened:  # the browser itself notes the 404
        tab = opened.tab
        await expect(tab.locator("#title")).to_contain_text("ride.requested")
        await expect(tab.locator("#queue-list a")).to_have_attribute("aria-current", "true")
        await tab.evaluate(f"location.hash = '#{QUEUE}/0@99'")
        await expect(tab.locator("#result")).to_contain_text(
            f"This letter cannot be shown: {QUEUE} has no letter at '0@99'"
        )
        await expect(tab.locator("#body")).to_be_hidden()
        await tab.go_back()
        await expect(tab.locator("#body")).to_be_visible()
        await shows(tab, "#result", "")


async def test_what_others_do_is_said_and_what_is_being_edited_stays() -> None:
    async with letters() as opened:
        tab = opened.tab
        await opened.choose()
        await opened.edit(multiplier=9)
        written = await tab.locator("#value").input_value()
        queue = DeadLetterQueue(opened.bus, QUEUE, by="ada")
        await queue.edit(opened.place, b'{"ride_id":"one"}')
        await shows(tab, "#result", "Meanwhile this letter was edited.")
        assert await tab.locator("#value").input_value() == written
        await queue.drop([opened.place])
        await shows(tab, "#result", "Meanwhile this letter was dropped, so nothing more can be done with it.")
        await expect(tab.locator("#acts")).to_be_hidden()
        await expect(tab.locator("#history li")).to_have_count(2)


async def test_a_new_letter_comes_into_the_list_and_the_focus_stays() -> None:
    async with letters() as opened:
        tab = opened.tab
        first = tab.locator(f"#queue-list a[href$='{opened.place}']")
        await first.focus()
        spoil(opened.bus, "one")
        await shows(tab, "#found", "2 of 2 letters wait.")
        await expect(first).to_be_focused()


async def test_letters_are_only_shown_where_the_setting_says_so() -> None:
    async with letters(mode="read") as opened:
        tab = opened.tab
        await opened.choose()
        await expect(tab.locator("#read-only")).to_contain_text("DASHBOARD_LETTERS=replay")
        await expect(tab.locator("#problems li")).to_have_count(2)
        assert await tab.locator("#value").evaluate("(area) => area.readOnly")
        for button in ("Replay", "Drop", "Undo the changes"):
            await expect(tab.get_by_role("button", name=button, exact=True)).to_be_hidden()
        await expect(tab.locator("#use-twin")).to_be_hidden()
        assert await tab.evaluate(FAULTS) == []


async def test_a_value_that_is_no_json_is_shown_as_it_is_and_one_that_is_no_text_is_described() -> None:
    async with letters(value=b'{"ride_id":  "one') as opened:
        await opened.choose()
        assert await opened.tab.locator("#value").input_value() == '{"ride_id":  "one'
    async with letters(value=b"\xff\x00") as opened:
        await opened.choose()
        await shows(opened.tab, "#value-note", "The value is not UTF-8 text. It has 2 bytes: ff 00")
        assert await opened.tab.locator("#value").input_value() == ""
        await opened.tab.locator("#use-twin").click()
        await expect(opened.tab.locator("#diff del")).to_have_count(0)
        await expect(opened.tab.locator("#diff ins").first).to_have_text("+{")


async def test_the_keyboard_reaches_everything() -> None:
    async with letters() as opened:
        tab = opened.tab
        await tab.keyboard.press("Tab")
        await expect(tab.locator(".skip")).to_be_focused()
        await tab.locator("#queue-list a").focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#title")).to_be_focused()
        for place in ("#value", "#use-twin"):
            await tab.keyboard.press("Tab")
            await expect(tab.locator(place)).to_be_focused()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#value")).to_be_focused()
        for place in ("#use-twin", "#undo", "#diff", "#replay", "#drop", "#more summary"):
            await tab.keyboard.press("Tab")
            await expect(tab.locator(place)).to_be_focused()


async def test_json_is_set_in_lines_without_a_change_of_its_tokens() -> None:
    async with letters() as opened:

        async def pretty(text: str) -> Any:
            return await opened.tab.evaluate("async (text) => (await import('./diff.js')).pretty(text)", text)

        numbers = '{"a":[12345678901234567890,1.10,-0.0,1e400],"a":{"b":"x, {y} \\" z"},"e":[],"f":{}}'
        shown = await pretty(numbers)
        assert shown.splitlines()[:6] == [
            "{",
            '  "a": [',
            "    12345678901234567890,",
            "    1.10,",
            "    -0.0,",
            "    1e400",
        ]
        assert shown.splitlines()[-4:] == ["  },", '  "e": [],', '  "f": {}', "}"]
        assert re.sub(r"\n *|(?<=:) ", "", shown) == numbers
        assert await pretty(shown) == shown
        assert await pretty("{ not json") == "{ not json"
        assert await pretty("7") == "7"


async def test_the_difference_of_two_texts_is_that_of_their_lines() -> None:
    async with letters() as opened:

        async def diff(one: str, other: str) -> Any:
            script = "async ([one, other]) => (await import('./diff.js')).diff(one, other)"
            return await opened.tab.evaluate(script, [one, other])

        assert await diff("a\nb\nc", "a\nb\nc") == [["", "a"], ["", "b"], ["", "c"]]
        assert await diff("a\nb\nc", "a\nx\nc") == [["", "a"], ["−", "b"], ["+", "x"], ["", "c"]]
        assert await diff("a\nb\nc\nd", "x\nb\ny\nd") == [
            ["−", "a"],
            ["+", "x"],
            ["", "b"],
            ["−", "c"],
            ["+", "y"],
            ["", "d"],
        ]
        assert await diff("a", "a\na") == [["", "a"], ["+", "a"]]
        many = await diff("\n".join(map(str, range(2000))), "\n".join(map(str, range(9000, 11000))))
        assert [sign for sign, _ in many] == ["−"] * 2000 + ["+"] * 2000


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_pages_lead_to_each_other_and_say_how_many_letters_wait(width: int, height: int) -> None:
    async with letters(width=width, height=height) as opened:
        tab = opened.tab
        await tab.get_by_role("link", name="City").click()
        await shows(tab, "#letters-link", "Letters: 1 waiting")
        await expect(tab.get_by_role("link", name="Letters: 1 waiting")).to_be_visible()
        assert await tab.evaluate(WIDTH) <= width
        assert await tab.locator("#letters-link").get_attribute("data-some") == ""
        assert await tab.evaluate(FAULTS) == []
        await tab.get_by_role("link", name="Contracts").click()
        await shows(tab, "#letters-link", "Letters: 1 waiting")
        assert await tab.evaluate(WIDTH) <= width
        assert await tab.evaluate(FAULTS) == []
        await tab.get_by_role("link", name="Letters").click()
        await shows(tab, "#found", "1 of 1 letter waits.")
        await DeadLetterQueue(opened.bus, QUEUE).drop([opened.place])
        await shows(tab, "#found", "No letter waits: 1 letter was dealt with.")
        await tab.get_by_role("link", name="City").click()
        await shows(tab, "#status", "up to date")
        await shows(tab, "#letters-link", "Letters")
        assert await tab.locator("#letters-link").get_attribute("data-some") is None


async def test_a_server_that_does_not_answer_is_said_and_can_be_asked_again() -> None:
    bus = MemoryBus()
    async with page(bus) as url, browser() as chromium:
        tab = await chromium.new_page()
        tab.set_default_timeout(PATIENCE_MS)
        await tab.route("**/api/letters", lambda route: route.abort())
        await tab.goto(f"{url}/letters")
        await shows(tab, "#found", "The letters cannot be shown. The server does not answer.")
        await tab.unroute("**/api/letters")
        await tab.get_by_role("button", name="Try again").click()
        await shows(tab, "#found", "There are no dead letters: no group has set a record aside.")
        await tab.close()


async def test_text_of_a_letter_stays_text() -> None:
    async with letters(value=b'{"<img src=x>": "<b>"}') as opened:
        tab = opened.tab
        await opened.choose()
        await tab.locator("#value").fill('{"<i>": "<u>"}')
        await expect(tab.locator("#diff ins").first).to_contain_text("<i>")
        assert await tab.locator("main :is(img, i i, u, em)").count() == 0


async def test_the_first_load_is_small_and_so_are_all_pages_together() -> None:
    async with letters() as opened:
        static = [file for file in STATIC.iterdir() if file.is_file()]
        assert sum(file.stat().st_size for file in static) < 200_000
        sizes: dict[str, int] = {}

        async def note(response: Response) -> None:
            if response.status == 200:
                sizes[response.url] = len(await response.body())

        chromium = opened.tab.context.browser
        assert chromium is not None
        fresh = await chromium.new_page()
        fresh.on("response", note)
        await fresh.goto(opened.tab.url)
        await shows(fresh, "#found", "1 of 1 letter waits.")
        await fresh.close()
        assert any(name.endswith("/api/letters") for name in sizes)
        assert sum(sizes.values()) < 100_000, sizes
