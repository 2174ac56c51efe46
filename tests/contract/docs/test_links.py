"""Every link of every page leads to a file that exists, and to a heading that it has."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.contract.docs.pages import PAGES, ROOT, anchors, links


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_navigation_has_each_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = re.findall(r"[\w./-]+\.md", navigation)
    assert len(pages) > 30
    assert [page for page, count in Counter(pages).items() if count > 1] == []


def test_the_pages_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "ARCHITECTURE.md", "docs/index.md", "docs/sdk/consuming.md", "broker/README.md"} <= names
    assert "broker-beside-apache-kafka" not in anchors(ROOT / "README.md")
    assert "durability" in anchors(ROOT / "docs" / "testing.md")
