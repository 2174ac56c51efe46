"""The page of contracts in a real browser: who reads which field, and what a proposed change would break."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hailbus.testing import MemoryBus
from playwright.async_api import Page, Response, expect
from ride_events import CATALOGUE, TOPICS

from tests.e2e.browsing import MARKS, browser, looks
from tests.e2e.dashboard.test_page import FAULTS, PATIENCE_MS, SIZES, shows, visit
from tests.integration.dashboard.city import page, story

pytestmark = MARKS
WIDTH = "document.documentElement.scrollWidth"
CUT_OFF = """() => [...document.querySelectorAll(".scroll")].filter((region) => {
  region.scrollLeft = region.scrollWidth;
  return region.scrollLeft + region.clientWidth < region.scrollWidth - 1;
}).map((region) => region.getAttribute("aria-label"))"""
ALL = f"{len(CATALOGUE)} events on {len(TOPICS)} topics."


@asynccontextmanager
async def contracts(
    path: str = "", *, width: int = 1440, height: int = 900, dark: bool = True, may_complain: bool = False
) -> AsyncIterator[Page]:
    bus = MemoryBus()
    async with (
        story(bus) as tell,
        page(bus) as url,
        browser() as chromium,
    ):
        await tell.ride("one")
        size = {"width": width, "height": height}
        async with visit(chromium, url, f"/contracts{path}", **size, dark=dark, may_complain=may_complain) as tab:
            yield tab


async def propose(tab: Page, event: str, change: str, field: str = "") -> None:
    await tab.get_by_label("Event", exact=True).select_option(event)
    await tab.get_by_label("Change", exact=True).select_option(label=change)
    if field:
        await tab.get_by_label("Field", exact=True).select_option(field)
    await tab.get_by_role("button", name="Check the change").click()


@pytest.mark.parametrize(("width", "height", "dark"), looks(SIZES))
async def test_it_fits_and_can_be_read_before_and_after_a_proposal(width: int, height: int, dark: bool) -> None:
    async with contracts("#ride.completed", width=width, height=height, dark=dark) as tab:
        await shows(tab, "#found", ALL)
        assert await tab.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        for card in await tab.locator("#topics-list details").all():
            await card.evaluate("(found) => { found.open = true; }")
        assert await tab.evaluate(CUT_OFF) == [], "a wide table scrolls in its own region"
        assert await tab.evaluate(FAULTS) == []
        assert await tab.evaluate(WIDTH) <= width
        await propose(tab, "ride.completed", "remove a field", "started_at")
        await expect(tab.locator("#verdict")).to_contain_text("Breaking", timeout=PATIENCE_MS)
        assert await tab.evaluate(FAULTS) == []
        assert await tab.evaluate(WIDTH) <= width
        await tab.get_by_label("Change", exact=True).select_option(label="edit the JSON Schema")
        await expect(tab.locator("#p-schema")).to_have_value(re.compile("started_at"), timeout=PATIENCE_MS)
        assert await tab.evaluate(FAULTS) == []
        assert await tab.evaluate(WIDTH) <= width


@pytest.mark.parametrize("width", [320, 640, 899, 900])
async def test_no_width_scrolls_sideways(width: int) -> None:
    async with contracts("#recommendation.served", width=width, height=800) as tab:
        assert await tab.evaluate(WIDTH) <= width
        await propose(tab, "recommendation.served", "add a field")
        await shows(tab, "#verdict", "Give the field a name.")
        assert await tab.evaluate(WIDTH) <= width


async def test_an_event_shows_its_fields_and_who_reads_each() -> None:
    async with contracts("#ride.completed") as tab:
        card = tab.locator("[id='ride.completed']")
        await expect(card).to_have_attribute("open", "")
        await expect(card.locator("summary")).to_be_focused()
        heads = await card.locator("thead th").all_inner_texts()
        assert heads == ["field", "dashboard", "payment-saga", "recommender", "type", "required", "description"]
        assert {await head.get_attribute("scope") for head in await card.locator("thead th").all()} == {"col"}
        row = card.locator("tbody tr", has=tab.get_by_text("started_at", exact=True))
        assert await row.locator("th").get_attribute("scope") == "row"
        cells = dict(zip(heads, await row.locator("th, td").all_inner_texts(), strict=True))
        assert (cells["type"], cells["required"]) == ("string (date-time)", "yes")
        assert (cells["recommender"], cells["payment-saga"]) == ("✓ reads", "no")
        fare = card.locator("tbody tr", has=tab.get_by_text("fare", exact=True))
        assert "✓ in part" in await fare.locator("td").all_inner_texts()
        await expect(card).to_contain_text("event-logger writes the whole event to its log")
        await expect(card).to_contain_text("lake stores the record as it was written")
        await expect(tab.locator("#topics-list section[aria-label='rides.v1']")).to_contain_text("Written by booking.")
        await expect(tab.locator("#topics-list section[aria-label='bikes.v1']")).to_contain_text(
            "Nobody has been seen writing here yet."
        )


async def test_the_filter_looks_at_events_topics_fields_and_consumers() -> None:
    async with contracts() as tab:
        find = tab.get_by_label("Filter by event, topic, field or consumer")
        assert await tab.locator("#found").get_attribute("role") == "status"
        for words, shown in (("requested_at", "ride.completed"), ("payment-saga repriced", "ride.repriced")):
            await find.fill(words)
            await expect(tab.locator("#topics-list details:visible summary b")).to_have_text([shown])
        await shows(tab, "#found", f"1 of {ALL}")
        await find.fill("unicorn")
        await expect(tab.locator("#topics-list details:visible")).to_have_count(0)
        await expect(tab.locator("#found")).to_contain_text('No event fits "unicorn". Try a part of the name')
        await find.fill("")
        await shows(tab, "#found", ALL)


async def test_an_address_opens_an_event_and_an_unknown_one_is_said() -> None:
    async with contracts("#surge.updated") as tab:
        await expect(tab.locator("[id='surge.updated']")).to_have_attribute("open", "")
        await tab.get_by_label("Filter by event, topic, field or consumer").fill("ride.completed")
        await tab.evaluate("location.hash = '#quote.offered'")
        await expect(tab.locator("[id='quote.offered']")).to_have_attribute("open", "")
        await expect(tab.locator("[id='quote.offered'] summary")).to_be_focused()
        await tab.locator("[id='ride.matched'] summary").click()
        await expect(tab).to_have_url(re.compile("#ride.matched$"))
        await tab.evaluate("location.hash = '#ride.flown'")
        await shows(tab, "#found", "There is no event ride.flown. All events are listed below.")


async def test_a_breaking_change_tells_who_loses_what_first() -> None:
    async with contracts() as tab:
        verdict = tab.locator("#verdict")
        assert await verdict.get_attribute("role") == "status"
        await propose(tab, "ride.completed", "remove a field", "started_at")
        await expect(verdict).to_contain_text("✗ Breaking: recommender loses fields that it reads", timeout=PATIENCE_MS)
        heads = await tab.locator("#effects h3").all_inner_texts()
        assert heads == ["Consumers that lose what they read", "Readers that are not upgraded yet", "Safe"]
        first = tab.locator("#effects [data-kind=consumer] li")
        await expect(first).to_have_text(
            "started_at: recommender needs this field: it is not written, and is expected without a default"
        )
        await expect(tab.locator("#effects [data-kind=safe]")).to_contain_text("payment-saga still gets what it reads")
        await tab.get_by_label("Change", exact=True).select_option(label="rename a field")
        await expect(verdict).to_have_text("")
        await expect(tab.locator("#effects > *")).to_have_count(0)


async def test_a_safe_change_is_called_safe_and_a_field_without_default_is_not() -> None:
    async with contracts() as tab:
        await tab.get_by_label("Event", exact=True).select_option("ride.completed")
        await tab.get_by_label("Change", exact=True).select_option(label="add a field")
        await tab.get_by_label("Name", exact=True).fill("tip_minor")
        await tab.get_by_label("Type", exact=True).select_option("integer")
        await tab.get_by_label("Default", exact=True).fill("0")
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#verdict")).to_contain_text("✓ Safe: no recorded consumer", timeout=PATIENCE_MS)
        assert await tab.locator("#effects h3").all_inner_texts() == ["Safe"]
        await tab.get_by_label("Default", exact=True).fill("")
        await tab.get_by_role("button", name="Check the change").click()
        await expect(tab.locator("#verdict")).to_contain_text(
            "records that were written before can no longer be read", timeout=PATIENCE_MS
        )
        await tab.get_by_label("Default", exact=True).fill("USD")
        await tab.get_by_role("button", name="Check the change").click()
        await shows(tab, "#verdict", 'The default USD is no JSON. Write text in quotation marks, as in "USD".')
        await expect(tab.get_by_label("Default", exact=True)).to_be_focused()
        assert await tab.get_by_label("Default", exact=True).get_attribute("aria-invalid") == "true"


async def test_an_edited_schema_is_judged_and_what_is_no_schema_is_said() -> None:
    async with contracts(may_complain=True) as tab:  # the browser itself notes the 422
        await tab.get_by_label("Event", exact=True).select_option("ride.started")
        await tab.get_by_label("Change", exact=True).select_option(label="edit the JSON Schema")
        schema = tab.get_by_label("JSON Schema", exact=True)
        await expect(schema).to_have_value(re.compile("driver_id"), timeout=PATIENCE_MS)
        written = await schema.input_value()
        check = tab.get_by_role("button", name="Check the change")
        await check.click()
        await shows(tab, "#verdict", "✓ This changes nothing.")
        await schema.fill(written.replace('"type": "string"', '"type": "integer"'))
        await check.click()
        await expect(tab.locator("#verdict")).to_contain_text("✗ Breaking: dashboard loses", timeout=PATIENCE_MS)
        await schema.fill("{")
        await check.click()
        await expect(tab.locator("#verdict")).to_contain_text("This is no JSON:", timeout=PATIENCE_MS)
        await schema.fill("{}")
        await check.click()
        await expect(tab.locator("#verdict")).to_contain_text("an event is an object", timeout=PATIENCE_MS)


async def test_the_keyboard_reaches_everything_and_an_event_leads_to_the_form() -> None:
    async with contracts() as tab:
        await tab.keyboard.press("Tab")
        await expect(tab.locator(".skip")).to_be_focused()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#events")).to_be_focused()
        await tab.keyboard.press("Tab")
        await expect(tab.locator("#filter")).to_be_focused()
        await tab.keyboard.type("ride.completed")
        await tab.keyboard.press("Tab")
        card = tab.locator("[id='ride.completed']")
        await expect(card.locator("summary")).to_be_focused()
        await tab.keyboard.press("Enter")
        await expect(card).to_have_attribute("open", "")
        await tab.keyboard.press("Tab")
        await expect(card.locator(".scroll")).to_be_focused()
        await tab.keyboard.press("Tab")
        await expect(card.locator("button")).to_be_focused()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#p-op")).to_be_focused()
        assert await tab.locator("#p-event").input_value() == "ride.completed"
        for place in ("#p-field", "#p-check"):
            await tab.keyboard.press("Tab")
            await expect(tab.locator(place)).to_be_focused()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#verdict")).to_contain_text("Breaking", timeout=PATIENCE_MS)


async def test_the_city_and_the_contracts_lead_to_each_other() -> None:
    bus = MemoryBus()
    async with story(bus), page(bus) as url, browser() as chromium, visit(chromium, url, "/contracts") as tab:
        await tab.get_by_role("link", name="City").click()
        await shows(tab, "#status", "up to date")
        await tab.get_by_role("link", name="Contracts").click()
        await shows(tab, "#found", ALL)
        await tab.locator("#theme").click()
        await tab.reload()
        await shows(tab, "#found", ALL)
        assert await tab.evaluate("document.documentElement.dataset.theme") == "light", "the choice is remembered"


async def test_a_server_that_does_not_answer_is_said_and_can_be_asked_again() -> None:
    bus = MemoryBus()
    async with page(bus) as url, browser() as chromium:
        tab = await chromium.new_page()
        await tab.route("**/api/contracts", lambda route: route.abort())
        await tab.goto(f"{url}/contracts")
        await shows(tab, "#found", "The events cannot be shown. The server does not answer.")
        await tab.get_by_role("button", name="Check the change").click()
        await shows(tab, "#verdict", "There is no event to change.")
        await tab.unroute("**/api/contracts")
        await tab.get_by_role("button", name="Try again").click()
        await shows(tab, "#found", ALL)
        await tab.route("**/api/contracts/check", lambda route: route.abort())
        await propose(tab, "ride.completed", "remove a field", "fare")
        await shows(tab, "#verdict", "The server does not answer.")
        await tab.close()


async def test_text_of_a_contract_stays_text() -> None:
    bus = MemoryBus()
    async with page(bus) as url, browser() as chromium:
        tab = await chromium.new_page()
        event = {"type": "<img src=x>", "version": 1, "topic": "<b>t", "key": None, "about": "<i>a", "publishers": []}
        lists = {"consumers": ["<u>c"], "whole": []}
        fields = [{"path": "<s>f", "type": "<q>", "about": "<em>", "required": True, "consumers": {"<u>c": "reads"}}]
        topics = [{"name": "<b>t", "about": "", "publishers": ["<p>"]}]
        answer = {"topics": topics, "events": [{**event, **lists, "fields": fields}], "types": []}
        await tab.route("**/api/contracts", lambda route: route.fulfill(json=answer))
        await tab.goto(f"{url}/contracts")
        await shows(tab, "#found", "1 event on 1 topic.")
        await expect(tab.locator("#topics-list summary")).to_contain_text("<img src=x>")
        assert await tab.locator("#topics-list :is(img, i, u, s, q, em)").count() == 0
        await tab.close()


async def test_the_first_load_is_small() -> None:
    bus = MemoryBus()
    async with page(bus) as url, browser() as chromium:
        tab = await chromium.new_page()
        sizes: dict[str, int] = {}

        async def note(response: Response) -> None:
            sizes[response.url] = len(await response.body())

        tab.on("response", note)
        await tab.goto(f"{url}/contracts")
        await shows(tab, "#found", ALL)
        await tab.wait_for_load_state("networkidle")
        await tab.close()
        assert any(name.endswith("/api/contracts") for name in sizes)
        assert sum(sizes.values()) < 200_000, sizes
