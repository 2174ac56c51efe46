"""The page in a real browser: what people see, click and read."""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dashboard.adapters.watch import GroupLag, Watch
from hailbus.testing import MemoryBus
from playwright.async_api import Browser, Page, Response, expect
from ride_events import LatLng
from ride_events.drivers import DriverBecameBusy, DriverLocationReported
from ride_events.pricing import (
    DemandForecastPublished,
    DemandForecastScored,
    SupplyForecastPublished,
    SupplyForecastScored,
    SurgeUpdated,
)

from tests.e2e.browsing import MARKS, browser, looks
from tests.integration.dashboard.city import BROOKLYN, EVENING, HOT, TIMES_SQUARE, BusOfThree, Story, page, story

pytestmark = MARKS
PATIENCE_MS = 30_000
PRICE: dict[str, Any] = {
    "surge_version": 1,
    "window_end": EVENING,
    "demand": 4.0,
    "supply": 3.0,
    "valid_until": EVENING + timedelta(days=1),
}


@asynccontextmanager
async def visit(
    chromium: Browser,
    url: str,
    path: str = "",
    *,
    width: int = 1280,
    height: int = 800,
    dark: bool = True,
    may_complain: bool = False,
) -> AsyncIterator[Page]:
    """Open a page of the dashboard at `url`, and wait until it is up to date (the city) or full (any other path).

    At the end nothing may have been complained about, nor asked of anybody else.
    """
    tab = await chromium.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    tab.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    strangers: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: strangers.append(request.url) if not request.url.startswith(url) else None)
    await tab.goto(url + path)
    if path:
        await expect(tab.locator("html")).to_have_attribute("data-ready", "true", timeout=PATIENCE_MS)
    else:
        await expect(tab.locator("#status")).to_have_text("up to date", timeout=PATIENCE_MS)
    try:
        yield tab
    finally:
        await tab.close()
    assert strangers == []
    assert may_complain or complaints == []


@asynccontextmanager
async def told(*, width: int = 1280, height: int = 800, dark: bool = True) -> AsyncIterator[tuple[Story, Page]]:
    """Open the page of a city whose events the test tells."""
    bus = MemoryBus()
    async with (
        story(bus) as tell,
        page(bus) as url,
        browser() as chromium,
        visit(chromium, url, width=width, height=height, dark=dark) as tab,
    ):
        yield tell, tab


async def shows(tab: Page, selector: str, text: str) -> None:
    await expect(tab.locator(selector)).to_have_text(text, timeout=PATIENCE_MS)


# The colour that the canvas shows at a place, and the one that the legend has for a multiplier.
PIXEL = """([lat, lng]) => {
  const { map } = globalThis.hailbus;
  if (!map.view) return null; // being measured anew
  const [x, y] = map.toScreen(map.constructor.world(lat, lng));
  const [column, row] = [x, y].map((at) => Math.round(at * map.ratio));
  return [...map.layerContext.getImageData(column, row, 1, 1).data.slice(0, 3)];
}"""
LEGEND = "(multiplier) => globalThis.hailbus.map.colour(multiplier).match(/\\d+/g).map(Number)"
PLACE = """(id) => {
  const found = globalThis.hailbus.map.places?.find(([ride]) => ride === id);
  if (!found) return null;
  const box = document.getElementById("map").getBoundingClientRect();
  return [found[1] + box.left, found[2] + box.top];
}"""


CONTRAST = """(one, other) => {
  const hex = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const channels = (colour) =>
    (colour.startsWith("#") ? hex(colour) : colour.match(/[0-9.]+/g).slice(0, 3).map(Number));
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = channels(colour).map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const [least, most] = [light(one), light(other)].sort((a, b) => a - b);
  return (most + 0.05) / (least + 0.05);
}"""
STEPS = """() => [1, 1.04, 1.1, 1.2, 1.3, 1.4, 1.5, 1.9, 2, 2.9, 3, 9].map(
  (multiplier) => globalThis.hailbus.map.stepOf(multiplier)?.least ?? null
)"""
ZOOM_TO = """([lat, lng]) => {
  const { map } = globalThis.hailbus;
  map.zoom(3, map.toScreen(map.constructor.world(lat, lng)));
}"""


@pytest.mark.parametrize("dark", [True, False])
async def test_every_price_stands_out_from_the_land_and_a_ride_from_every_price(dark: bool) -> None:
    async with told(dark=dark) as (_, tab):
        found = await tab.evaluate(
            f"""() => {{
              const contrast = {CONTRAST};
              const {{ map }} = globalThis.hailbus;
              const {{ land, halo, ride, wait }} = map.colours;
              return map.steps.map(({{ least, colour, ink }}) => ({{
                least, land: contrast(colour, land), ink: contrast(colour, ink), halo: contrast(colour, halo),
                ride: contrast(halo, ride), wait: contrast(halo, wait),
              }}));
            }}"""
        )
        assert [step["least"] for step in found] == [1.1, 1.2, 1.3, 1.5, 2, 3]
        for step in found:
            assert min(step[name] for name in ("land", "halo", "ride", "wait")) >= 3, step
            assert step["ink"] >= 4.5, step
        steps = await tab.evaluate(STEPS)
        assert steps == [None, None, 1.1, 1.2, 1.3, 1.3, 1.5, 1.5, 2, 2, 3, 3]
        shown = await tab.locator("#ramp li").all_inner_texts()
        assert shown == ["1.1", "1.2", "1.3", "1.5", "2", "3+"]


async def test_a_price_is_written_into_its_cell_once_there_is_room() -> None:
    async with told() as (tell, tab):
        await tell.price(1.3)
        await shows(tab, "#f-surge", "1 · 1.3×")
        written = "() => globalThis.hailbus.map.pricesWritten"
        await tab.wait_for_function(f"{written} === 0")
        place = await tab.evaluate("(cell) => globalThis.hailbus.state.shapes.get(cell).centre", HOT)
        await tab.evaluate(ZOOM_TO, place)
        await tab.wait_for_function(f"{written} === 1")


async def test_a_ride_is_met_where_it_is_drawn_and_its_cell_beside_it() -> None:
    async with told() as (tell, tab):
        await tell.ride("waits", until="requested")
        await tab.wait_for_function(f"() => ({PLACE})('waits') !== null")
        x, y = await tab.evaluate(PLACE, "waits")
        await tab.mouse.move(x + 4, y)
        await expect(tab.locator("#tip")).to_contain_text("waiting for a driver", timeout=PATIENCE_MS)
        await tab.mouse.move(x + 10, y)
        await expect(tab.locator("#tip")).to_contain_text("1.0×", timeout=PATIENCE_MS)


async def test_a_group_that_is_far_behind_is_said_and_nothing_is_green(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behind_s = {"surge": 0.2, "booking": 0.1}

    def groups(_watch: Watch) -> tuple[GroupLag, ...]:
        return tuple(
            GroupLag(group=name, records=9, seconds=seconds, per_second=80, progress="catching up", topics=())
            for name, seconds in behind_s.items()
        )

    monkeypatch.setattr(Watch, "groups", property(groups, lambda _watch, _value: None), raising=False)
    ledger = tmp_path / "ledger.json"
    ledger.write_text(json.dumps({"balanced": None, "so_far": True, "lines": [line(1)], "audited_s_ago": 1}))
    bus = MemoryBus()
    async with (
        story(bus),
        page(bus, ledger_file=ledger) as url,
        browser() as chromium,
        visit(chromium, url) as tab,
    ):
        strip, said = tab.locator("#health"), tab.locator("#health-said")
        await expect(strip).to_have_attribute("data-level", "ok")
        await shows(tab, "#verdict", "✓ agrees so far")
        await expect(said).to_have_text("up to date", timeout=PATIENCE_MS)
        assert await said.get_attribute("role") == "status"

        behind_s["surge"] = 8
        await shows(tab, "#status", "surge 8 s behind, catching up")
        await expect(strip).to_have_attribute("data-level", "late")
        await expect(tab.locator("[data-chip=surge]")).to_have_text("▲surge 8 s")
        await expect(tab.locator("[data-chip=booking]")).to_have_text("✓booking")
        await expect(said).to_have_text("surge 8 s behind, catching up", timeout=PATIENCE_MS)
        # Seconds go on; that is no news for who listens.
        behind_s["surge"] = 12
        await shows(tab, "#status", "surge 12 s behind, catching up")
        await tab.wait_for_timeout(2_500)
        await expect(said).to_have_text("surge 8 s behind, catching up")

        behind_s |= {"surge": 107, "booking": 9}
        await shows(tab, "#status", "surge 107 s behind, catching up")
        await shows(tab, "#health-others", "+1 more")
        await expect(strip).to_have_attribute("data-level", "bad")
        await expect(said).to_have_text("surge 107 s behind, catching up", timeout=PATIENCE_MS)
        await shows(tab, "#verdict", "✓ agrees so far, surge 107 s behind")
        assert await tab.locator("#verdict").get_attribute("data-ok") == "late"
        colour = "(found) => getComputedStyle(found).color"
        assert await tab.locator("#status").evaluate(colour) == "rgb(255, 107, 107)"

        behind_s |= {"surge": 0, "booking": 0}
        await shows(tab, "#status", "up to date")
        await expect(said).to_have_text("up to date", timeout=PATIENCE_MS)


async def test_prices_colour_the_hexagons_as_the_legend_says() -> None:
    bus = MemoryBus()
    centre = {"lat": 40.7606, "lng": -73.9853}
    async with story(bus) as tell, page(bus) as url, browser() as chromium, visit(chromium, url) as tab:
        await shows(tab, "#f-surge", "0")
        await tab.wait_for_function("() => globalThis.hailbus.map.paths.size > 1200")
        place = await tab.evaluate("(cell) => globalThis.hailbus.state.shapes.get(cell).centre", HOT)
        land = "(hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))"
        colour_of_land = await tab.evaluate(f"({land})(globalThis.hailbus.map.colours.land)")
        assert await tab.evaluate(PIXEL, place) == colour_of_land, centre
        await tell.price(2.0)
        await shows(tab, "#f-surge", "1 · 2.0×")
        await shows(tab, "#hottest li", "Midtown Center2.0×")
        wanted = await tab.evaluate(LEGEND, 2.0)
        await tab.wait_for_function(
            f"([place, wanted]) => JSON.stringify(({PIXEL})(place)) === JSON.stringify(wanted)", arg=[place, wanted]
        )
        water = await tab.evaluate(PIXEL, [40.75, -74.03])
        assert water not in (wanted, colour_of_land)
        await tell.price(1.0, version=2)
        await shows(tab, "#hottest li", "no cell is above 1.0×")


@pytest.mark.parametrize("is_served", [True, False])
async def test_the_coast_cuts_the_cells_off_and_without_it_they_are_the_land(is_served: bool) -> None:
    bus = MemoryBus()
    river, park = [40.7432, -73.9690], [40.7829, -73.9654]  # the East River reaches into cells of Manhattan
    async with story(bus), page(bus) as url, browser() as chromium:
        tab = await chromium.new_page()
        if not is_served:
            await tab.route("**/city.svg", lambda route: route.abort())
        await tab.goto(url)
        # A function: the page's policy forbids a text, once it must be evaluated again.
        drawn = "() => globalThis.hailbus?.map.drawn && globalThis.hailbus.map.paths.size > 1200"
        await tab.wait_for_function(f"{drawn} && {'' if is_served else '!'}globalThis.hailbus.map.coast")
        colours = await tab.evaluate(
            """() => ["land", "water"].map((name) => globalThis.hailbus.map.colours[name])
              .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)))"""
        )
        land, water = colours
        for place, colour in ((park, land), (river, water if is_served else land)):
            await tab.wait_for_function(
                f"([place, wanted]) => JSON.stringify(({PIXEL})(place)) === JSON.stringify(wanted)", arg=[place, colour]
            )
        await tab.close()


async def test_a_ride_moves_and_a_click_shows_its_records() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, page(bus) as url, browser() as chromium, visit(chromium, url) as tab:
        await shows(tab, "#empty", "The city sleeps: no ride has been requested yet. Start some, and they move here.")
        await tell.ride("moving", until="riding")
        await expect(tab.locator("#empty")).to_be_hidden(timeout=PATIENCE_MS)
        await tab.wait_for_function(f"() => ({PLACE})('moving') !== null")
        before = await tab.evaluate(PLACE, "moving")
        # Another ride's end is half an hour later: event time goes on, and with it the first ride.
        await tell.ride(
            "other", until="completed", start=LatLng(lat=40.70, lng=-73.8), end=LatLng(lat=40.72, lng=-73.8)
        )
        await tab.wait_for_function(
            f"(before) => {{ const now = ({PLACE})('moving'); return now && now[1] > before[1] + 40; }}", arg=before
        )
        tip, ride = tab.locator("#tip"), tab.locator("#ride")
        await follow(tab, "moving", tab.mouse.move, lambda: tip.get_by_text("riding").is_visible())
        await follow(tab, "moving", tab.mouse.click, ride.is_visible)
        await expect(tab.locator("#timeline > li")).to_have_count(7, timeout=PATIENCE_MS)
        types = await tab.locator("#timeline .what span").all_inner_texts()
        assert types[0] == "quote.offered"
        assert types[-1] == "ride.started"
        item = tab.locator("#timeline > li", has_text="ride.requested")
        record = next(
            found
            for found in bus.records("rides.v1")
            if found.key == b"moving" and dict(found.headers)["ce_type"] == b"ride.requested"
        )
        await expect(item.locator(".where")).to_contain_text(f"rides.v1[{record.partition}] @ {record.offset}")
        await item.locator("summary").click()
        await expect(item.locator("table")).to_contain_text(dict(record.headers)["ce_id"].decode())
        payload: dict[str, Any] = json.loads(await item.locator("pre").inner_text())
        assert payload == json.loads(record.value or b"")
        await expect(tab.locator("#ride-about")).to_contain_text("Midtown Center → ")


async def follow(
    tab: Page, ride_id: str, act: Callable[[float, float], Awaitable[None]], has_hit: Callable[[], Awaitable[bool]]
) -> None:
    """Repeat an action at the position of a ride until it hits the ride, which moves meanwhile."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while True:
            await act(*await tab.evaluate(PLACE, ride_id))
            await asyncio.sleep(0.05)
            if await has_hit():
                return


SIZES = [(1440, 900), (1024, 768), (390, 844)]


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_a_ride_is_a_column_where_there_is_room_and_else_a_modal_dialog(width: int, height: int) -> None:
    bus = MemoryBus()
    async with (
        story(bus) as tell,
        page(bus) as url,
        browser() as chromium,
        visit(chromium, url, width=width, height=height) as tab,
    ):
        await tell.ride("one", until="riding")
        button = tab.locator("#rides button")
        await expect(button).to_contain_text("riding", timeout=PATIENCE_MS)
        opener = await button.element_handle()
        await button.focus()
        await tab.keyboard.press("Enter")
        ride = tab.locator("#ride")
        await expect(tab.locator("#timeline > li")).to_have_count(7, timeout=PATIENCE_MS)
        await expect(tab.locator("#ride-title")).to_be_focused(timeout=PATIENCE_MS)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        is_modal = await ride.evaluate("(found) => found.matches(':modal')")
        assert is_modal == (width < 1100)
        if is_modal:
            # Tab goes round in the dialog; what is behind cannot be reached.
            for _ in range(25):
                await tab.keyboard.press("Tab")
                where = "document.activeElement === document.body || !!document.activeElement.closest('#ride')"
                assert await tab.evaluate(where)
        else:
            drawer = await ride.bounding_box()
            assert drawer is not None
            for beside in ("#city", "#ledger", "#flow", "#brokers", "#lag", "#foot"):
                box = await tab.locator(beside).bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= drawer["x"], beside
                assert box["width"] > 300
        # The list is made anew every few seconds.
        await tab.wait_for_function("(opener) => !opener.isConnected", arg=opener)
        await tab.keyboard.press("Escape")
        await expect(ride).to_be_hidden()
        await expect(tab.locator("#rides [data-ride=one]")).to_be_focused()
        assert "#ride" not in tab.url
        if not is_modal:
            # Escape closes the dialog above, and leaves the ride open.
            await button.click()
            await tab.locator("#list-open").click()
            await expect(tab.locator("#list")).to_be_visible()
            await tab.keyboard.press("Escape")
            await expect(tab.locator("#list")).to_be_hidden()
            await expect(ride).to_be_visible()


async def test_an_open_ride_follows_the_width_of_the_window() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, page(bus) as url, browser() as chromium:
        await tell.ride("one", until="matched")
        async with visit(chromium, url) as tab:
            await tab.locator("#rides button").click()
            await expect(tab.locator("#timeline > li")).to_have_count(5, timeout=PATIENCE_MS)
            for width in (800, 1280, 390):
                await tab.set_viewport_size({"width": width, "height": 800})
                await tab.wait_for_function(
                    "(modal) => document.getElementById('ride').matches(':modal') === modal", arg=width < 1100
                )
                await expect(tab.locator("#timeline > li")).to_have_count(5)
                assert tab.url.endswith("#ride=one")


async def test_events_say_how_long_after_the_one_before_by_which_trace_and_which_attempt() -> None:
    bus = MemoryBus()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"

    def event(offset: int, at: str, ident: str) -> dict[str, Any]:
        headers = [["ce_id", ident], ["ce_traceparent", f"00-{trace}-00f067aa0ba902b7-01"]]
        place = {"topic": "rides.v1", "partition": 0, "offset": offset, "key": "r", "written_ms": 1_700_000_000_000}
        return {"type": "ride.requested", "id": ident, "event_time": at, "headers": headers, "payload": {}, **place}

    events = [
        event(1, "2014-05-01T18:00:00Z", "first"),
        event(2, "2014-05-01T18:00:04.2Z", "again"),
        event(7, "2014-05-01T18:00:04.2Z", "again"),
        event(9, "2014-05-01T18:03:24.2Z", "last"),
    ]
    async with story(bus), page(bus) as url, browser() as chromium:
        context = await chromium.new_context(viewport={"width": 1280, "height": 800})
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab = await context.new_page()
        body = json.dumps({"ride_id": "r", "events": events, "booking": None})
        await tab.route("**/api/rides/r", lambda route: route.fulfill(body=body, content_type="application/json"))
        await tab.goto(f"{url}/#ride=r")
        items = tab.locator("#timeline > li")
        await expect(items).to_have_count(4, timeout=PATIENCE_MS)
        assert await items.locator(".after").all_inner_texts() == ["", "+4.2 s", "+0.0 s", "+3 min 20 s"]
        assert await items.locator(".tries").all_inner_texts() == ["", "attempt 1 of 2", "attempt 2 of 2", ""]
        await expect(items.first.locator(".where")).to_contain_text("trace 4bf92f35…")
        await items.first.locator("button.copy").click()
        await expect(items.first.locator("button.copy")).to_have_text("copied")
        assert json.loads(await tab.evaluate("navigator.clipboard.readText()")) == events[0]
        await tab.locator("#ride-copy").click()
        await expect(tab.locator("#ride-copy")).to_have_text("copied")
        assert json.loads(await tab.evaluate("navigator.clipboard.readText()")) == events
        await context.close()


# What breaks WCAG 2.2 AA: targets under 24 px, contrast of text; and, by the page's own rule, text under 12 px.
_FAULTS = """
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, at) => (value * a + below[at] * (255 - a)) / 255);
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3]) layers.unshift(colour);
      if (colour[3] === 255) break;
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const css = (channels) => `rgb(${channels.slice(0, 3).map(Math.round).join(" ")})`;
  const isSeen = (element) => element.checkVisibility() && !element.closest(".hidden, .skip, script, noscript");
  const faults = [];
  const say = ({ tagName, id, className, textContent }, what) =>
    faults.push(`${tagName} ${id || className} "${textContent.slice(0, 30)}" ${what}`);
  for (const element of document.querySelectorAll("button, summary, a, select, [tabindex='0']")) {
    const { width, height } = element.getBoundingClientRect();
    if (isSeen(element) && (width < 24 || height < 23.99)) say(element, `is ${width} x ${height}`);
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !isSeen(element)) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    if (size < 12) say(element, `is ${size} px`);
    const isSvg = element instanceof SVGElement;
    const below = isSvg ? rgba(style.getPropertyValue("--raised")) : ground(element);
    const ratio = contrast(css(rgba(isSvg ? style.fill : style.color)), css(below));
    if (ratio < 4.5) say(element, `has contrast ${ratio.toFixed(2)}`);
  }
  return faults;
"""
FAULTS = f"() => {{ const contrast = {CONTRAST}; {_FAULTS} }}"


@pytest.mark.parametrize(("width", "height", "dark"), looks(SIZES))
async def test_targets_are_large_and_text_can_be_read(width: int, height: int, dark: bool, tmp_path: Path) -> None:
    bus, ledger = BusOfThree(), tmp_path / "ledger.json"
    lines = [line(1), line(2, "disagrees", findings=[LOST]), line(3, "not_checked"), line(4, "shown")]
    processes = [{"name": "surge", "state": "restarting"}, {"name": "booking", "state": "failed"}]
    written = {"balanced": False, "so_far": True, "lines": lines, "audited_s_ago": 1, "processes": processes}
    ledger.write_text(json.dumps(written))
    bus.away = frozenset({2})
    async with story(bus) as tell, page(bus, ledger_file=ledger) as url, browser() as chromium:
        for step, multiplier in enumerate((1.1, 1.5), 1):
            await tell.price(multiplier, version=step)
        await tell.recommend()
        for until in ("requested", "matched", "riding", "completed", "cancelled"):
            await tell.ride(f"ride-{until}", until=until)
        tab = await chromium.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        tab.set_default_timeout(PATIENCE_MS)
        await tab.goto(url)
        await shows(tab, "#l-requested", "5")
        await shows(tab, "#verdict", "✗ not balanced so far")
        await expect(tab.locator("#rides button")).not_to_have_count(0, timeout=PATIENCE_MS)
        assert await tab.evaluate(FAULTS) == []
        await tab.evaluate("() => { location.hash = '#ride=ride-riding'; location.reload(); }")
        await expect(tab.locator("#timeline > li")).to_have_count(7, timeout=PATIENCE_MS)
        for opener in await tab.locator("#timeline summary").all():
            await opener.click()
        payload = tab.locator("#timeline pre").first
        assert await payload.get_attribute("tabindex") == "0"
        assert await payload.get_attribute("aria-label") == "Payload of quote.offered"
        assert await tab.evaluate(FAULTS) == []
        await tab.close()


async def test_forced_colours_keep_the_signs() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, page(bus) as url, browser() as chromium:
        await tell.price(1.5)
        tab = await chromium.new_page(viewport={"width": 1280, "height": 800}, forced_colors="active")
        tab.set_default_timeout(PATIENCE_MS)
        await tab.goto(url)
        await shows(tab, "#status", "up to date")
        await expect(tab.locator("#health-sign")).to_have_text("✓")
        ground = "(found) => getComputedStyle(found).backgroundColor"
        canvas = await tab.locator("#legend").evaluate(ground)
        for sign in (".k-riding", "#ramp .s1", "#ramp .s6", "#hottest i"):
            assert await tab.locator(sign).first.evaluate(ground) not in (canvas, "rgba(0, 0, 0, 0)"), sign
        await tab.close()


async def test_a_page_opened_after_the_last_ride_shows_how_the_last_ones_ended() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, page(bus) as url, browser() as chromium:
        await tell.ride("early", until="completed")
        async with visit(chromium, url) as first:
            await shows(first, "#l-completed", "1")
        async with visit(chromium, url) as tab:
            await expect(tab.locator("#rides button")).to_have_text("completedMidtown Center → Crown Heights North")
            await shows(tab, "#f-drivers", "0 / 0")
            await tab.locator("#rides button").click()
            await expect(tab.locator("#timeline > li")).to_have_count(9, timeout=PATIENCE_MS)


async def test_the_keyboard_reaches_a_ride_and_comes_back() -> None:
    async with told() as (tell, tab):
        await tell.ride("one", until="matched")
        button = tab.locator("#rides button")
        await expect(button).to_contain_text("car coming", timeout=PATIENCE_MS)
        await button.focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#ride")).to_be_visible(timeout=PATIENCE_MS)
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#ride")).to_be_hidden()
        assert await tab.evaluate("document.activeElement.dataset.ride") == "one"
        await tab.locator("#map").focus()
        scale = await tab.evaluate("globalThis.hailbus.map.view.scale")
        await tab.keyboard.press("+")
        assert await tab.evaluate("globalThis.hailbus.map.view.scale") == pytest.approx(1.4 * scale)


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_figures_and_lags_have_a_line_of_60_s_with_marks_at_restarts_and_checks(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = GroupLag(group="surge", records=9, seconds=3, per_second=80, progress="catching up", topics=())
    monkeypatch.setattr(Watch, "groups", property(lambda _watch: (group,), lambda _watch, _value: None), raising=False)
    bus, ledger = MemoryBus(), tmp_path / "ledger.json"

    def audit(restarts: int, ago_s: float) -> None:
        process = {"name": "surge", "state": "ready", "restarts": restarts}
        content = {"balanced": None, "so_far": True, "lines": [line(1)], "audited_s_ago": ago_s, "processes": [process]}
        (tmp_path / "new").write_text(json.dumps(content))
        (tmp_path / "new").replace(ledger)

    audit(0, 9)
    async with (
        story(bus) as tell,
        page(bus, ledger_file=ledger) as url,
        browser() as chromium,
        visit(chromium, url, width=width, height=height) as tab,
    ):
        await tell.ride("one", until="riding")
        lines = tab.locator("#figures .spark .line")
        await expect(lines).to_have_count(5, timeout=PATIENCE_MS)
        await expect(tab.locator("#groups .spark .line")).to_have_count(1, timeout=PATIENCE_MS)
        await expect(tab.locator(".spark .restart")).to_have_count(0)
        audit(1, 0)
        for place in ("#figures div:first-child", "#groups"):
            await expect(tab.locator(f"{place} .restart title")).to_have_text("surge restarted", timeout=PATIENCE_MS)
            await expect(tab.locator(f"{place} .check title")).to_have_text("accounts compared", timeout=PATIENCE_MS)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width


async def test_free_cars_are_dots_that_follow_their_reports_and_busy_ones_are_none() -> None:
    async with told() as (tell, tab):
        cars = "() => [...globalThis.hailbus.state.cars.values()]"
        await tell.drivers(3, busy=1)
        await shows(tab, "#f-drivers", "2 / 3")
        await tab.wait_for_function("() => globalThis.hailbus.state.cars.size === 2")
        assert await tab.evaluate(cars) == [[BROOKLYN.lat, BROOKLYN.lng]] * 2
        dots = """() => {
          const { map } = globalThis.hailbus;
          const { width, height } = map.cars;
          return map.carsContext.getImageData(0, 0, width, height).data.some((value) => value > 0);
        }"""
        await tab.wait_for_function(dots)
        here = TIMES_SQUARE

        async def report(driver_id: str, *, free: bool) -> None:
            await tell.say(
                DriverLocationReported(driver_id=driver_id, position=here, cell=here.cell(), free=free), seconds=60
            )

        await report("driver-0", free=False)  # busy: booking's word
        await report("driver-2", free=True)
        moved = [[BROOKLYN.lat, BROOKLYN.lng], [here.lat, here.lng]]
        await tab.wait_for_function(f"(moved) => JSON.stringify(({cars})()) === JSON.stringify(moved)", arg=moved)
        for driver in ("driver-1", "driver-2"):
            await tell.say(DriverBecameBusy(driver_id=driver, seq=3, ride_id="r"))
        await tab.wait_for_function("() => globalThis.hailbus.state.cars.size === 0")
        await tab.wait_for_function(f"() => !({dots})()")


FRAMES = """([count, pace, isStill]) => {
  const { map, state } = globalThis.hailbus;
  let now = performance.now();
  performance.now = () => now;
  state.rides.clear();
  const say = (t1) => {
    const ride = (id) => [String(id), "riding", 40.75, -73.98, 40.7, -73.95, 0, t1, 40.7, -73.95];
    state.take({ t: 1, rate: 1, broker: state.broker, rides: Array.from({ length: count }, (_, id) => ride(id)) });
    state.clock = { at: now, ms: 0, rate: 1, last: 1 };
  };
  say(1);
  map.draw(); // the view fits the rides now
  const [from, to] = [[40.75, -73.98], [40.7, -73.95]].map((at) => map.toScreen(map.constructor.world(...at)));
  say(pace ? (Math.hypot(to[0] - from[0], to[1] - from[1]) * 1000) / pace : 0);
  map.still = isStill;
  map.drawn = null;
  map.draw();
  let drawn = 0;
  for (let at = 1; at <= 60; at++) {
    now += 16; // a frame of a screen with 60 a second
    map.draw();
    drawn += map.frame.at === now;
  }
  delete performance.now;
  return drawn;
}"""


async def test_frames_are_drawn_as_often_as_rides_move_and_thirty_times_a_second_for_many() -> None:
    async with told() as (_, tab):
        await tab.wait_for_function("() => globalThis.hailbus.map.paths.size > 1200")
        for rides, pixels_a_second, is_still, expected in (
            (1_000, 100, False, 60),
            (1_001, 100, False, 30),
            (1_000, 5, False, 15),  # every fourth frame, as a pixel is shown in four steps
            (1_000, 0, False, 0),
            (1_000, 100, True, 3),
        ):
            drawn = await tab.evaluate(FRAMES, [rides, pixels_a_second, is_still])
            assert (rides, pixels_a_second, is_still, drawn) == (rides, pixels_a_second, is_still, expected)


async def test_a_map_at_rest_shows_at_once_what_is_new_picked_or_selected() -> None:
    async with told() as (_, tab):
        await tab.wait_for_function("() => globalThis.hailbus.map.paths.size > 1200")
        found = await tab.evaluate(
            """() => {
              const { map, state } = globalThis.hailbus;
              map.drawn = null; // the layer is drawn anew each second, which may end between two frames
              const drawn = (act) => {
                map.draw();
                const before = map.frame;
                act();
                map.draw();
                return map.frame !== before;
              };
              const ride = ["a", "requested", 40.75, -73.98, 40.75, -73.98, 0, 0, 40.7, -73.95];
              const news = { t: 1, rate: 0, broker: state.broker };
              return [
                drawn(() => {}),
                drawn(() => state.take({ ...news, rides: [ride] })),
                drawn(() => { map.picked = "a"; }),
                drawn(() => { map.picked = null; }),
                drawn(() => map.select({ ride: "a" })),
                drawn(() => map.select(null)),
                drawn(() => map.pan(1, 0)),
                drawn(() => {}),
              ];
            }"""
        )
        assert found == [False, True, True, True, True, True, True, False]


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_keyboard_steps_through_cells_and_rides_on_the_map(width: int, height: int) -> None:
    async with told(width=width, height=height) as (tell, tab):
        canvas, said, tip = tab.locator("#map"), tab.locator("#said"), tab.locator("#tip")
        assert await canvas.get_attribute("role") == "application"
        await tab.wait_for_function("() => globalThis.hailbus.map.paths.size > 1200")
        await canvas.focus()
        await tab.keyboard.press("]")
        await expect(said).to_have_text("no cell is above 1.0")
        await tab.keyboard.press("r")
        await expect(said).to_have_text("no ride is under way")
        await tell.price(2.0)
        await tell.say(SurgeUpdated(**PRICE, cell=BROOKLYN.cell(), multiplier=1.2))
        await tell.ride("one", until="matched")
        await tab.wait_for_function("() => globalThis.hailbus.state.rides.get('one')?.phase === 'matched'")
        await tell.ride("two", until="riding")
        await tab.wait_for_function("() => globalThis.hailbus.state.rides.get('two')?.phase === 'riding'")
        await shows(tab, "#f-surge", "2 · 2.0×")
        await tab.keyboard.press("]")
        await expect(said).to_contain_text("Midtown Center")
        await expect(said).to_contain_text("2.0× · demand 12.5 · supply 3")
        await expect(tip).to_contain_text("2.0×")
        await tab.keyboard.press("]")
        await expect(said).to_contain_text("Crown Heights North")
        await tab.keyboard.press("]")
        await expect(said).to_contain_text("2.0×")
        await tab.keyboard.press("[")
        await expect(said).to_contain_text("1.2×")
        place = await tab.evaluate("() => globalThis.hailbus.map.selected && document.getElementById('tip').hidden")
        assert place is False
        # No id of a cell is in what people read.
        assert "882a" not in await said.inner_text() + await tip.inner_text()
        await tab.keyboard.press("r")
        await expect(said).to_have_text(re.compile("^riding to .* click for its events$"))
        await tab.keyboard.press("r")
        await expect(said).to_contain_text("driver on the way")
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#timeline > li")).to_have_count(5, timeout=PATIENCE_MS)
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#ride")).to_be_hidden()
        await expect(canvas).to_be_focused()
        await tab.keyboard.press("Escape")
        assert await tab.evaluate("() => globalThis.hailbus.map.selected") is None


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_map_as_a_list_has_all_cells_and_rides_and_can_be_sorted(width: int, height: int) -> None:
    async with told(width=width, height=height) as (tell, tab):
        await tell.price(2.0)
        await tell.ride("one", until="matched")
        await tell.ride("two", until="requested")
        await shows(tab, "#f-surge", "1 · 2.0×")
        await expect(tab.locator("#rides button")).to_have_count(2, timeout=PATIENCE_MS)
        await tab.locator("#map").focus()
        await tab.keyboard.press("l")
        rows = tab.locator("#list-rows tr")
        await expect(rows).to_have_count(1265)
        assert (await rows.first.inner_text()).split("\t")[1:5] == ["Manhattan", "2.0×", "12.5", "3"]
        await expect(tab.locator("#list-head [aria-sort=descending]")).to_have_text("price ▼")
        assert "882a" not in await tab.locator("#list-rows").inner_text()
        await tab.locator("#list-head button", has_text="place").click()
        places = await tab.locator("#list-rows th").all_inner_texts()
        in_order = "(texts) => texts.every((text, i) => !i || texts[i - 1].localeCompare(text) <= 0)"
        assert await tab.evaluate(in_order, places)
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#list-head [aria-sort=descending]")).to_have_text("place ▼")
        await tab.locator("#list-rides").click()
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("waiting")
        await expect(rows.nth(1)).to_contain_text("Midtown Center")
        assert await tab.evaluate(FAULTS) == []
        await rows.nth(1).locator("button").click()
        await expect(tab.locator("#timeline > li")).to_have_count(5, timeout=PATIENCE_MS)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width


def line(number: int, verdict: str = "agrees", **more: Any) -> dict[str, Any]:
    return {
        "id": f"line-{number}",
        "name": f"line {number}",
        "between": ["booking's database", "the log"],
        "verdict": verdict,
        "detail": f"all {number} agree",
        "findings": [],
        **more,
    }


LOST = {
    "what": "a published event is not in the log",
    "topic": "payments.v1",
    "partition": 3,
    "offset": 41,
    "id": "0a23dbad",
}


async def test_the_verdict_is_the_auditors_and_turns_red_during_the_run(tmp_path: Path) -> None:
    bus, ledger = MemoryBus(), tmp_path / "ledger.json"

    def audit(*lines: dict[str, Any], balanced: bool | None = None, so_far: bool = True) -> None:
        content = {"balanced": balanced, "so_far": so_far, "lines": lines, "audited_s_ago": 0.5}
        (tmp_path / "new").write_text(json.dumps(content))
        (tmp_path / "new").replace(ledger)

    async with (
        story(bus) as tell,
        page(bus, ledger_file=ledger) as url,
        browser() as chromium,
        visit(chromium, url) as tab,
    ):
        await shows(tab, "#verdict", "not written yet")
        await tell.ride("one", until="completed")
        await tell.ride("two", until="riding")
        await tell.ride("three", until="cancelled")
        await shows(tab, "#l-requested", "3")
        numbers = [await tab.locator(f"#l-{name}").inner_text() for name in ("completed", "cancelled", "flight")]
        assert numbers == ["1", "1", "1"]
        # That its own numbers add up is no verdict.
        await shows(tab, "#verdict", "not written yet")
        assert await tab.locator("#verdict").get_attribute("data-ok") == "none"

        audit(line(1), line(2, "not_checked"), line(3, "shown"))
        await shows(tab, "#verdict", "1 not checked so far")
        audit(line(1), line(2), line(3, "shown"))
        await shows(tab, "#verdict", "✓ agrees so far")
        colour = "(found) => getComputedStyle(found).color"
        assert await tab.locator("#verdict").evaluate(colour) == "rgb(76, 208, 138)"
        assert await tab.locator("#lines > li").evaluate_all("(found) => found.map((one) => one.dataset.line)") == [
            "line-1",
            "line-2",
            "line-3",
        ]

        audit(line(1), line(2, "disagrees", detail="1 event is lost", findings=[LOST]), line(3, "shown"))
        await shows(tab, "#verdict", "✗ not balanced so far")
        assert await tab.locator("#verdict").evaluate(colour) == "rgb(255, 107, 107)"
        first = tab.locator("#lines > li").first
        await expect(first).to_have_attribute("data-line", "line-2", timeout=PATIENCE_MS)
        await expect(first.locator("details")).to_have_attribute("open", "", timeout=PATIENCE_MS)
        await expect(first.locator(".between")).to_have_text("booking's database ↔ the log")
        await expect(first).to_contain_text("1 event is lost")
        await expect(first.locator(".found li")).to_have_text(
            "a published event is not in the logpayments.v1[3] @ 41 · 0a23dbad"
        )

        audit(line(1), line(2), line(3, "shown"), balanced=True, so_far=False)
        await shows(tab, "#verdict", "✓ balanced")
        audit(line(1), line(2, "not_checked"), balanced=False, so_far=False)
        await shows(tab, "#verdict", "✗ not balanced")
        assert await tab.locator("#lines > li").count() == 2


async def test_the_keyboard_opens_the_lines_of_the_ledger_and_keeps_its_place(tmp_path: Path) -> None:
    bus, ledger = MemoryBus(), tmp_path / "ledger.json"
    lines = [line(number) for number in range(1, 31)]
    ledger.write_text(json.dumps({"balanced": None, "so_far": True, "lines": lines, "audited_s_ago": 0.5}))
    async with page(bus, ledger_file=ledger) as url, browser() as chromium, visit(chromium, url) as tab:
        await shows(tab, "#verdict", "✓ agrees so far")
        await tab.locator("#lines").focus()
        await tab.keyboard.press("Tab")
        await tab.keyboard.press("Tab")
        await tab.keyboard.press("Enter")
        second = tab.locator("[data-line=line-2]")
        await expect(second.locator(".body")).to_be_visible(timeout=PATIENCE_MS)
        lines[9] = line(10, "disagrees", findings=[LOST])
        ledger.write_text(json.dumps({"balanced": False, "so_far": True, "lines": lines, "audited_s_ago": 0.5}))
        await shows(tab, "#verdict", "✗ not balanced so far")
        # The line that disagrees comes first; what was open and focused stays so.
        await expect(tab.locator("#lines > li").first).to_have_attribute("data-line", "line-10", timeout=PATIENCE_MS)
        await expect(second.locator(".body")).to_be_visible()
        assert await tab.evaluate("document.activeElement.closest('li')?.dataset.line") == "line-2"


async def test_an_auditor_that_stopped_proves_nothing(tmp_path: Path) -> None:
    bus, ledger = MemoryBus(), tmp_path / "ledger.json"
    ledger.write_text(json.dumps({"balanced": None, "so_far": True, "lines": [line(1)], "audited_s_ago": 1}))
    async with page(bus, ledger_file=ledger) as url, browser() as chromium, visit(chromium, url) as tab:
        await shows(tab, "#verdict", "✓ agrees so far")
        ledger.write_text(json.dumps({"balanced": None, "so_far": True, "lines": [line(1)], "audited_s_ago": 45}))
        await shows(tab, "#verdict", "no audit for 45 s")
        assert await tab.locator("#verdict").get_attribute("data-ok") == "none"
        ledger.write_text(json.dumps({"balanced": None, "so_far": True, "lines": [line(1)], "audited_s_ago": 1}))
        await shows(tab, "#verdict", "✓ agrees so far")
        hour_ago = time.time() - 3600
        os.utime(ledger, (hour_ago, hour_ago))
        await expect(tab.locator("#verdict")).to_have_text("no audit for 60 min", timeout=PATIENCE_MS)


async def test_flow_recommendations_and_groups_are_told() -> None:
    async with told() as (tell, tab):
        await tell.ride("one", until="completed")
        await tell.recommend()
        await expect(tab.locator("#graph")).to_contain_text("payments", timeout=PATIENCE_MS)
        await shows(tab, "#rec-figures", "1 served · 100 % chosen")
        await expect(tab.locator("#served li")).to_contain_text("usual at this hour from Times Sq/Theatre District")
        await shows(tab, "#groups td", "no group has committed yet")
        await expect(tab.locator("#lake-rows")).to_have_text("no lake is connected to this page")


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_forecast_card_shows_band_naive_line_and_errors(width: int, height: int) -> None:
    async with told(width=width, height=height) as (tell, tab):
        await shows(tab, "#forecast-error", "no forecast yet")
        # Eight requests in the first quarter, six in the second, of which five were expected.
        for number in range(8):
            await tell.ride(f"first-{number}", until="requested")

        async def expect_of(cell: str, minute: int, median: float) -> None:
            band: dict[str, Any] = {"p10": median / 2, "p50": median, "p90": 2 * median, "mean": median, "model": "m"}
            issued_at = EVENING + timedelta(minutes=minute)
            await tell.say(DemandForecastPublished(cell=cell, horizon_min=15, issued_at=issued_at, **band), 60 * minute)

        await expect_of(HOT, 15, 5.0)
        await expect_of(BROOKLYN.cell(), 15, 1.0)
        await expect_of(TIMES_SQUARE.cell(7), 15, 40.0)  # a larger cell, which the page does not count requests of
        await shows(tab, "#forecast-zone", "Midtown Center")
        await shows(tab, "#forecast-error", "not scored yet")
        for number in range(6):
            await tell.ride(f"second-{number}", until="requested", later_s=16 * 60)
        # Events of different rides may come in any order, and a quarter is scored once a later event has come.
        await shows(tab, "#l-requested", "14")
        await tell.ride("third", until="requested", later_s=33 * 60)
        ended = 30 * 60
        score: dict[str, Any] = {"issued_at": EVENING + timedelta(minutes=15), "forecasts": 2, "model": "m"}
        for horizon, resolution, errors in ((15, 8, (2, 3)), (30, 8, (50, 60)), (15, 7, (70, 80))):
            error, naive = errors
            sums = {"absolute_error": error, "naive_absolute_error": naive}
            await tell.say(DemandForecastScored(horizon_min=horizon, resolution=resolution, **sums, **score), ended)
        # Those of 15 minutes in pricing cells are shown, as the chart is of them.
        await shows(tab, "#forecast-error", "MAE 1.0 against naive 1.5")
        await expect(tab.locator("#supply-expected")).to_be_hidden()
        free: dict[str, Any] = {"p10": 1, "p50": 4, "p90": 9, "mean": 4.2, "model": "m", "cell": HOT}
        issued_at = EVENING + timedelta(minutes=30)
        await tell.say(SupplyForecastPublished(horizon_min=15, issued_at=issued_at, **free), ended)
        sums = {"absolute_error": 1, "naive_absolute_error": 4}
        await tell.say(SupplyForecastScored(horizon_min=15, resolution=8, **sums, **score), ended)
        await expect_of(HOT, 30, 7.0)
        await shows(tab, "#supply-expected", "drivers free then: 4 (1 to 9)")
        await expect(tab.locator("#supply-expected")).to_have_attribute(
            "title", re.compile("^MAE 0.5 against naive 2.0")
        )
        await expect(tab.locator("#forecast-chart")).to_have_attribute(
            "aria-label",
            "Midtown Center, from 18:30:00 for 15 minutes: 7 requests expected, 3.5 to 14 likely, naive 6",
            timeout=PATIENCE_MS,
        )
        await expect(tab.locator("#forecast-chart .band")).to_have_count(1)
        await expect(tab.locator("#forecast-chart .naive")).to_have_count(1)
        await expect(tab.locator("#forecast-chart .came")).to_have_count(1)
        card = await tab.locator("#forecast").bounding_box()
        assert card is not None
        for inside in ("#forecast-zone", "#forecast-chart", "#forecast-key", "#supply-expected"):
            box = await tab.locator(inside).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= card["y"] + card["height"], inside
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width


async def test_the_page_of_the_api_asks_nobody_else_and_keeps_the_policy() -> None:
    async with page(MemoryBus()) as url, browser() as chromium:
        tab = await chromium.new_page()
        complaints: list[str] = []
        strangers: list[str] = []
        tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        tab.on("request", lambda request: strangers.append(request.url) if not request.url.startswith(url) else None)
        await tab.goto(f"{url}/docs")
        await expect(tab.locator(".opblock-summary-path").first).to_be_visible(timeout=PATIENCE_MS)
        assert await tab.locator(".opblock").count() >= 6
        await tab.close()
        assert [found for found in strangers if not found.startswith("data:")] == []
        assert complaints == []


async def test_gold_tables_come_first_and_all_tables_can_be_reached(tmp_path: Path) -> None:
    lake = tmp_path / "progress.json"
    names = ["bronze.events", "silver.rides", "silver.payments", "silver.surge", "silver.drivers", "silver.quotes"]
    rows = {name: 9_000 - 100 * number for number, name in enumerate(names)} | {"gold.payments": 7, "gold.hourly": 9}
    lake.write_text(json.dumps({"state": "running", "rows": rows, "lag_records": 0}))
    async with page(MemoryBus(), lake_file=lake) as url, browser() as chromium, visit(chromium, url) as tab:
        shown = tab.locator("#lake-rows dt")
        await expect(shown).to_have_count(8, timeout=PATIENCE_MS)
        assert (await shown.all_inner_texts())[:3] == ["gold.hourly", "gold.payments", "silver.rides"]
        assert await tab.locator("#lake-rows dd").first.inner_text() == "9"
        await tab.locator("#lake-rows div").last.scroll_into_view_if_needed()
        await expect(tab.locator("#lake-rows div").last).to_be_in_viewport()


async def test_a_place_outside_the_city_is_said_to_be_near_it() -> None:
    async with told() as (tell, tab):
        await tell.ride(
            "far", until="riding", start=LatLng(lat=40.6895, lng=-74.1745), end=LatLng(lat=40.75, lng=-74.3)
        )
        await expect(tab.locator("#rides .way")).to_have_text(
            "Newark Airport → near Newark Airport", timeout=PATIENCE_MS
        )


async def test_a_server_that_goes_away_is_said_and_comes_back() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, browser() as chromium:
        await tell.ride("one")
        first = page(bus)
        url = await first.__aenter__()
        async with visit(chromium, url, may_complain=True) as tab:
            await shows(tab, "#l-requested", "1")
            await first.__aexit__(None, None, None)
            await expect(tab.locator("#banner")).to_contain_text("server does not answer", timeout=PATIENCE_MS)
            await shows(tab, "#l-requested", "1")
            await tell.ride("two")
            async with page(bus, port=int(url.rsplit(":", 1)[1])):
                await shows(tab, "#l-requested", "2")
                await expect(tab.locator("#banner")).to_be_hidden()
                await tab.close()


async def test_brokers_show_their_leaders_and_a_lost_replica_stands_out() -> None:
    bus = BusOfThree()
    async with story(bus) as tell, page(bus) as url, browser() as chromium, visit(chromium, url) as tab:
        await tell.ride("one")
        await shows(tab, "#replicas", "✓ all replicas in sync")
        nodes = tab.locator("#nodes li")
        await expect(nodes).to_have_count(3)
        await expect(nodes.first).to_have_text(re.compile(r"broker 1leads \d+controller"))
        opener = tab.locator("#topics-open")
        await opener.focus()
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#topics")).to_be_visible()
        assert await tab.evaluate("document.activeElement.id") == "topics-close"
        row = tab.locator("#leaders-rows tr", has_text="rides.v1")
        count = bus.partition_count("rides.v1")
        await expect(row).to_have_text(
            f"rides.v1{count}"
            + "".join(str(len(range(first, count, 3))) for first in range(3))
            + f"{3 * count} / {3 * count}"
        )
        await expect(tab.locator("#missing")).to_be_hidden()

        # A replica is missing while the table is open.
        bus.behind = frozenset({3})
        await expect(tab.locator("#missing-rows tr", has_text="rides.v1[0]")).to_have_text(
            "rides.v1[0]11, 23", timeout=PATIENCE_MS
        )
        await expect(row).to_have_text(re.compile(f"⚠ {2 * count} / {3 * count}$"))
        await expect(row).to_have_class("behind")
        await expect(tab.locator("#replicas")).to_have_text(re.compile(r"^⚠ (\d+) of \1 partitions under-replicated$"))
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#topics")).to_be_hidden()
        assert await tab.evaluate("document.activeElement.id") == "topics-open"
        await expect(nodes.nth(2)).to_have_text(re.compile(r"^broker 3(\d+) of \1 behind$"))

        # One broker is away: the head of the page says so, too.
        bus.behind, bus.away = frozenset(), frozenset({1})
        await shows(tab, "#status", "1 of 3 brokers away")
        await expect(nodes.first).to_have_text("broker 1away")
        await expect(nodes.nth(1)).to_have_text(re.compile(r"^broker 2leads \d+controller$"))

        # Nobody is left: that is worse, and says so.
        bus.away = frozenset({1, 2, 3})
        await expect(tab.locator("#replicas")).to_have_text(
            re.compile(r"^✗ \d+ partitions without a leader$"), timeout=PATIENCE_MS
        )
        assert await tab.locator("#replicas").get_attribute("data-ok") == "false"
        bus.away = frozenset()
        await shows(tab, "#replicas", "✓ all replicas in sync")
        await shows(tab, "#status", "up to date")

        # A leader that is silent but not fenced yet is no cluster that is down.
        bus.has_silent_leader = True
        await shows(tab, "#status", "some partitions do not answer")
        await expect(tab.locator("#banner")).to_contain_text("Some partitions have not answered since")
        bus.has_silent_leader = False
        await shows(tab, "#status", "up to date")
        await expect(tab.locator("#banner")).to_be_hidden()


async def test_one_broker_claims_no_replicas() -> None:
    async with told() as (_, tab):
        await shows(tab, "#replicas", "✓ one copy of each record")
        await expect(tab.locator("#nodes li")).to_have_count(1)


async def test_the_first_load_is_small() -> None:
    bus = MemoryBus()
    async with story(bus), page(bus) as url, browser() as chromium:
        tab = await chromium.new_page()
        sizes: dict[str, int] = {}

        async def note(response: Response) -> None:
            if not response.url.endswith("/api/stream"):
                sizes[response.url] = len(await response.body())

        tab.on("response", note)
        await tab.goto(url)
        await tab.wait_for_function("() => globalThis.hailbus?.map.paths.size > 1200")
        await expect(tab.locator("#status")).to_have_text("up to date", timeout=PATIENCE_MS)
        await tab.close()
        static = {name: size for name, size in sizes.items() if "/api/" not in name}
        assert len(static) >= 7, static
        assert sum(static.values()) < 200_000, static


@pytest.mark.parametrize(("width", "height"), [(390, 844), (820, 1100), (1280, 800)])
async def test_it_fits_phones_tablets_and_desks_dark_and_light(width: int, height: int, tmp_path: Path) -> None:
    bus = MemoryBus()
    async with story(bus) as tell, page(bus) as url, browser() as chromium:
        await tell.price()
        for number in range(12):
            await tell.ride(f"ride-{number}", until=("riding", "matched", "requested")[number % 3])
        for dark in (True, False):
            async with visit(chromium, url, width=width, height=height, dark=dark) as tab:
                await shows(tab, "#f-flight", "12")
                assert await tab.evaluate("document.documentElement.scrollWidth") <= width
                assert await tab.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
                map_box = await tab.locator("#map").bounding_box()
                assert map_box is not None
                assert map_box["height"] > 0.4 * height
                image = await tab.screenshot(path=tmp_path / f"{width}-{dark}.png")
                assert len(image) > 20_000
                background = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
                assert background == ("rgb(11, 16, 22)" if dark else "rgb(238, 241, 245)")
                await tab.locator("#theme").click()
                assert await tab.evaluate("document.documentElement.dataset.theme") == ("light" if dark else "dark")
