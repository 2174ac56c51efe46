"""The documentation site in a browser that reaches no other host: pages, search, diagrams, both colour schemes."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from hailbus_devtools.tools import ROOT, chromium
from playwright.sync_api import Browser, Page, expect, sync_playwright

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(240)]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `just docs-build` makes it."""
    site = tmp_path_factory.mktemp("site")
    mkdocs = Path(sys.executable).parent / "mkdocs"
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", site], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@contextmanager
def visit(browser: Browser, url: str, scheme: Literal["light", "dark"] = "light") -> Iterator[Page]:
    """Open a page; it may ask no other host for anything, and complain about nothing."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    own = "file:///" if url.startswith("file:") else "/".join(url.split("/")[:3])
    strangers: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: strangers.append(request.url) if not is_own(request.url, own) else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(url)
    yield page
    page.close()
    assert strangers == []
    assert complaints == []


def is_own(url: str, own: str) -> bool:
    return url.startswith((own, "data:", "blob:"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_page_in_both_colour_schemes(
    browser: Browser, address: str, scheme: Literal["light", "dark"]
) -> None:
    with visit(browser, address, scheme) as page:
        expect(page.locator("h1")).to_contain_text("hailbus")
        expected = "slate" if scheme == "dark" else "default"
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", expected)
        shown = page.evaluate("getComputedStyle(document.body).backgroundColor").removeprefix("rgb")
        lightness = sum(int(number) for number in shown.strip("(a)").split(",")[:3])
        assert (lightness < 300) == (scheme == "dark")


def test_search_finds_pages_and_opens_them(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("dead letter")
        expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=30_000)
        page.locator(".md-search-result__link").first.click()
        expect(page.locator("article")).to_contain_text("dead letter", ignore_case=True)


def test_diagrams_are_drawn_without_a_download(browser: Browser, address: str) -> None:
    with visit(browser, f"{address}broker/state-machines.html") as page:
        # Material draws into a closed shadow root, so that its size is what can be seen of it.
        expect(page.locator("div.mermaid")).to_have_count(2, timeout=30_000)
        assert all(box.bounding_box()["height"] > 100 for box in page.locator("div.mermaid").all())  # type: ignore[index]  # a visible box has a height


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_page_is_reachable_and_asks_no_other_host(
    browser: Browser, folder: Path, address: str, share: int
) -> None:
    """All pages are in the navigation; each, or each tenth, is opened."""
    pages = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.html") if file.name != "404.html")
    with visit(browser, address) as page:
        linked = set(page.evaluate("[...document.querySelectorAll('.md-nav a')].map(link => link.href.split('#')[0])"))
    assert {f"{address}{name}" for name in pages} <= linked | {address, f"{address}index.html"}
    for name in pages[::share]:
        with visit(browser, f"{address}{name}") as page:
            expect(page.locator("h1").first).to_be_visible()


def test_pages_and_search_work_from_a_folder(browser: Browser, folder: Path) -> None:
    with visit(browser, (folder / "observability.html").as_uri()) as page:
        expect(page.locator("h1")).to_contain_text("Observability")
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("dead letter")
        expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=30_000)
