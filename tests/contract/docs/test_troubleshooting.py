"""Every message of the troubleshooting page is one that the code can log or raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.contract.docs.pages import ROOT, fences

PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("sdk/src", "broker/src", "analytics_spark/src")
MESSAGES = [line for fence in fences(PAGE, "text") for line in fence.text.splitlines() if line.strip()]


def template(node: ast.expr) -> str:
    """Return a text of the source with `…` for each value that it is given."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-.\d]*[a-z]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join("…" if isinstance(part, ast.FormattedValue) else template(part) for part in node.values)
    return ""


@cache
def templates() -> frozenset[str]:
    def found() -> Iterator[str]:
        for source in SOURCES:
            for file in (ROOT / source).rglob("*.py"):
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                    if isinstance(node, (ast.Constant, ast.JoinedStr)):
                        yield template(node)

    return frozenset(text for text in found() if text.strip("… "))


def is_in_the_code(message: str) -> bool:
    """Whether a text of the code has the words of a message in their order; `…` stands for any value."""
    parts = [re.escape(part) for part in message.split("…")]
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in templates())


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_has_the_message(message: str) -> None:
    assert is_in_the_code(message)


def test_a_message_that_nobody_writes_is_found() -> None:
    assert len(MESSAGES) > 20
    assert not is_in_the_code("no Kafka broker answered at …")
    assert is_in_the_code("no Kafka broker answers at …")


def test_the_log_lines_of_the_observability_page_are_written() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    table = page[page.index("| Message begins with |") :].split("\n\n")[0]
    words = [word for row in table.splitlines()[2:] for word in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(words) > 6
    assert [word for word in words if not any(text.startswith(f"{word}:") for text in templates())] == []
