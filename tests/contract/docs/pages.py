"""The pages of the repository, and what the tests of this folder read from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("*.md", "docs/**/*.md", "*/README.md", "services/*/README.md", "tests/conformance/*.md")
PAGES = sorted({path for pattern in FOLDERS for path in ROOT.glob(pattern)})


@dataclass(frozen=True, slots=True)
class Fence:
    """A block of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def fences(page: Path, *languages: str) -> Iterator[Fence]:
    """Yield the blocks of code in these languages."""
    for token in tokens(page):
        if token.type == "fence" and token.map is not None and token.info.split(" ")[0] in languages:
            yield Fence(page, token.map[0] + 1, token.info, token.content)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of links and images."""
    for token in tokens(page):
        for child in token.children or ():
            target = child.attrs.get("href") or child.attrs.get("src")
            if target is not None:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    seen: Counter[str] = Counter()
    found = set()
    every = tokens(page)
    for token, content in pairwise(every):
        if token.type == "heading_open":
            text = "".join(child.content for child in content.children or () if child.type in {"text", "code_inline"})
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            found.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
            seen[slug] += 1
    return found
