"""`docs/tutorial/adding-a-service.md`, followed word by word in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conformance.test_tutorial import as_pattern
from tests.support import free_port, wait_for

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tutorial" / "adding-a-service.md").read_text()
COPIED = ("services", "pyproject.toml", ".gitignore")
PORTS = ("9092", "8010", "8003")
"""Broker, scooter and recommender on the page."""
PREFIX = """
uv() { if [ "$1" = run ]; then shift; "$@"; fi; }
scooter() { exec python -m scooter.main; }
"""
"""The test's own environment has all that `uv sync` would install, but for the new package."""


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Checkout:
    """A copy of what git knows, in a repository of its own, and a shell in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COPIED],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        self.run("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -q -m before")
        self._ports = {port: str(free_port()) for port in PORTS}

    @property
    def environment(self) -> dict[str, str]:
        sources = [str(path) for path in sorted(self.folder.glob("services/*/src"))]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sources),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", PREFIX + command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout

    def on_ports(self, text: str) -> str:
        for written, free in self._ports.items():
            text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{free}")
        return text

    @contextmanager
    def in_background(self, commands: str) -> Iterator[None]:
        """Run commands that end with `&`, and end all that they started."""
        listen = {"SCOOTER_LISTEN": "127.0.0.1:8010", "RECOMMENDER_LISTEN": "127.0.0.1:8003"}
        with (
            (self.folder / "city.log").open("w") as log,
            subprocess.Popen(
                ["bash", "-c", f"{PREFIX}{self.on_ports(commands)}\nwait"],
                cwd=self.folder,
                env={**self.environment, **{name: self.on_ports(address) for name, address in listen.items()}},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as shell,
        ):
            try:
                yield
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGTERM)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def save_files(checkout: Checkout, text: str) -> None:
    """Write each file of which the page says "Save this as"."""
    for name, content in re.findall(r"[Ss]ave this as `([^`]+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL):
        path = checkout.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def apply_diff(checkout: Checkout, diff: str) -> None:
    name = re.search(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)
    assert name is not None
    path = checkout.folder / name.group(1)
    text = path.read_text()
    for old, new in re.findall(r"^-(?!--)(.*)\n\+(.*)$", diff, re.MULTILINE):
        assert text.count(old) == 1, f"the page changes a line that is not there: {old}"
        text = text.replace(old, new)
    path.write_text(text)


def follow(checkout: Checkout, text: str) -> None:
    """Run each command of a part of the page; within a minute it prints what is shown."""
    for block in blocks("console", text):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = step.partition("\n")
            printed: list[str] = []

            def prints_it(command: str = command, shown: str = shown, printed: list[str] = printed) -> bool:
                printed.append(checkout.run(checkout.on_ports(command)))
                return re.fullmatch(as_pattern(shown), printed[-1] + "\n") is not None

            try:
                wait_for(command, prints_it)
            except AssertionError:
                pytest.fail(f"$ {command}\n{printed[-1]}\ninstead of\n{shown}")


def test_a_service_is_added_and_nobody_else_changes(checkout: Checkout) -> None:
    before, running, after = re.split(r"^## (?=4\.|5\.)", PAGE, flags=re.MULTILINE)
    save_files(checkout, before)
    (diff,) = blocks("diff", before)
    apply_diff(checkout, diff)
    follow(checkout, before)
    (start,) = blocks("sh", running)
    with checkout.in_background(start):
        follow(checkout, running)
    follow(checkout, after)
