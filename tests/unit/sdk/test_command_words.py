"""How the command line reads its words, without any broker."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import pytest
import typer
from hailbus.cli.common import OptionalValues
from typer.testing import CliRunner


def shown(*words: str) -> str:
    app = typer.Typer()

    @app.command(cls=OptionalValues)
    def show(
        rest: Annotated[list[str] | None, typer.Argument()] = None,
        state: Annotated[str | None, typer.Option("--state", metavar="[STATES]")] = None,
        group: Annotated[str | None, typer.Option("--group")] = None,
        list_: Annotated[bool, typer.Option("--list")] = False,
    ) -> None:
        typer.echo(f"{state} {group} {list_} {rest}")

    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--list", "None None True None"),
        ("", "None None False None"),
        ("--list --state", " None True None"),
        ("--state --list", " None True None"),
        ("--list --state Stable,Empty", "Stable,Empty None True None"),
        ("--list --state=Stable,Empty", "Stable,Empty None True None"),
        ("--state=Stable --group g", "Stable g False None"),
        ("--state --group=g", " g False None"),
        ("--state Stable rest", "Stable None False ['rest']"),
        ("--list -- --state", "None None True ['--state']"),
    ],
)
def test_an_option_may_stand_with_or_without_its_value(words: str, expected: str) -> None:
    assert shown(*words.split()) == expected.strip()


PROGRAM = """
import asyncio
from hailbus.cli.common import run
async def main():
    print("x" * 100_000, flush=True) if {prints} else None
    raise BrokenPipeError(32, "Broken pipe")
try:
    run(main())
except BaseException as error:
    raise SystemExit(error.exit_code)
"""


def test_a_reader_of_the_output_that_goes_is_no_failure_and_a_broken_connection_is() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(prints=True)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
    assert process.returncode == 0
    broken = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(prints=False)], capture_output=True, text=True, check=False
    )
    assert broken.returncode == 1
    assert "hailbus: a connection was closed: [Errno 32] Broken pipe" in broken.stderr
