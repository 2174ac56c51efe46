"""How the command line reads its words, without any broker."""

from __future__ import annotations

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
