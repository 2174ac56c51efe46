"""The list of tools: complete, readable, and what tests are skipped by."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hailbus_devtools import tools
from hailbus_devtools.tools import ROOT, TOOLS, Tool, listing, why_missing

HERE = Tool(name="here", skipped="nothing", install="do nothing", is_here=lambda: True, version=lambda: "1.2.3")
AWAY = Tool(name="away", skipped="the far side", install="apt install away", is_here=lambda: False, version=str)


@pytest.fixture
def two_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "TOOLS", {"here": HERE, "away": AWAY})
    why_missing.cache_clear()


@pytest.mark.usefixtures("two_tools")
def test_each_tool_is_listed_found_with_its_version_or_missing_with_what_is_skipped() -> None:
    assert listing() == ["here  found    1.2.3", "away  missing  skips the far side; apt install away"]


@pytest.mark.usefixtures("two_tools")
def test_the_reason_of_a_skip_says_what_to_install() -> None:
    assert why_missing("here") is None
    assert why_missing("here", "away") == "needs away: apt install away"


def test_a_tool_that_the_list_lacks_cannot_be_named() -> None:
    with pytest.raises(KeyError):
        why_missing("abacus")


def test_each_tool_says_what_is_skipped_and_how_to_get_it() -> None:
    for name, tool in TOOLS.items():
        assert name == tool.name
        assert tool.skipped
        assert tool.install


def test_a_version_is_found_in_what_a_program_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "\x1b[1mApache Maven 3.8.7\x1b[m\nCopyright 2014-2021"
    monkeypatch.setattr(tools, "_prints", lambda *_command: printed)
    assert tools._version("mvn", "-v")() == "3.8.7"
    monkeypatch.setattr(tools, "_prints", lambda *_command: "")
    assert tools._version("mvn", "-v")() == ""


def test_ci_installs_every_tool_that_a_package_brings() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    for tool in TOOLS.values():
        for packages in re.findall(r"(?:apt|uv tool) install ([a-z0-9 .=+-]+)", tool.install)[:1]:
            for package in packages.split():
                assert re.search(rf"\b{re.escape(package)}\b", script), f"{tool.name}: .ci/run lacks {package}"


def test_tests_are_skipped_by_this_list_alone() -> None:
    """Elsewhere a skip may only say what happened, not look for a program by itself."""
    here = Path(__file__)
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != here}
    assert not [path for path, source in sources.items() if "shutil.which" in source or "mark.skipif" in source]
    marks = {
        name
        for source in sources.values()
        for mark in re.findall(r"mark\.needs\(([^)]*)\)", source)
        for name in re.findall(r'"([^"]+)"', mark)
    }
    assert marks
    assert marks <= set(TOOLS)


def test_only_what_is_here_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise AssertionError("asked")

    monkeypatch.setattr(tools, "TOOLS", {"away": replace(AWAY, version=fails)})
    assert listing() == ["away  missing  skips the far side; apt install away"]
