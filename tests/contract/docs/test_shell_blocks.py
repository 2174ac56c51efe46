"""Shell examples parse, and their commands, subcommands and options exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from hailbus.cli.main import app

from tests.contract.docs.pages import PAGES, ROOT, Fence, fences

STANDARD = {
    ".",
    "cd",
    "chromium",
    "cp",
    "curl",
    "docker",
    "echo",
    "export",
    "git",
    "grep",
    "head",
    "just",
    "kill",
    "npm",
    "pip",
    "printf",
    "python",
    "tail",
    "touch",
    "uv",
    "xdg-open",
}
KAFKA = {
    "kafka-topics",
    "kafka-console-producer",
    "kafka-console-consumer",
    "kafka-consumer-groups",
    "kafka-server-start",
}
"""What the tutorial and the move to Apache Kafka call; their own tests run them."""
ADDED = {"scooter"}
"""The service that a tutorial adds; its own test runs it."""

SCRIPTS = {
    name
    for file in ROOT.glob("**/pyproject.toml")
    if ".venv" not in file.parts
    for name in tomllib.loads(file.read_text()).get("project", {}).get("scripts", {})
}
BLOCKS = [fence for page in PAGES for fence in fences(page, "sh", "bash", "console")]


def script_of(block: Fence) -> str:
    """Return what a reader would type: the whole block, or the commands of a session."""
    if block.language != "console":
        return block.text
    typed: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            typed.append(line[2:])
        elif typed and typed[-1].endswith("\\"):
            typed.append(line)
    return "\n".join(typed) + "\n"


def commands(script: str) -> Iterator[list[str]]:
    """Yield each simple command of a script as its words."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        is_file = False
        for word in [*lexer, ";"]:
            if is_file:
                is_file = False
            elif set(word) <= set("<>&|") and set(word) & set("<>"):
                is_file = True
            elif set(word) <= set("();|&"):
                if words:
                    yield words
                words = []
            elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
                words.append(word)


def problem_of(words: list[str]) -> str | None:
    """Return what is wrong with a command, or nothing."""
    name, *arguments = words
    if name == "uv" and arguments[:1] == ["run"]:
        rest = arguments[1:]
        while rest and rest[0].startswith("-"):
            rest = rest[2:]
        return problem_of(rest) if rest else "uv run what?"
    if name == "just" and arguments and not arguments[0].startswith("-"):
        recipes = re.findall(r"^([a-z][a-z-]*)[^:=\n]*:(?!=)", (ROOT / "justfile").read_text(), flags=re.MULTILINE)
        return None if arguments[0] in recipes else f"just has no recipe {arguments[0]}"
    if name == "hailbus":
        return problem_of_hailbus(arguments)
    if name in SCRIPTS | STANDARD | KAFKA | ADDED or name in {"pytest", "mkdocs", "pyright", "mypy"}:
        return None
    return f"there is no command {name}"


def problem_of_hailbus(arguments: list[str]) -> str | None:
    """Return which subcommand or option of `hailbus` does not exist, or nothing."""
    command: Any = typer.main.get_command(app)  # Any: of the library that Typer carries inside
    names = ["hailbus"]
    while hasattr(command, "commands"):
        if not arguments or arguments[0].startswith("-"):
            break
        if arguments[0] not in command.commands:
            return f"{' '.join(names)} has no command {arguments[0]}"
        command = command.commands[arguments[0]]
        names.append(arguments.pop(0))
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "--install-completion", "--show-completion"}
    for argument in arguments:
        option = argument.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in options:
            return f"{' '.join(names)} has no option {option}"
    return None


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_of_a_shell_example_exist(block: Fence) -> None:
    script = script_of(block)
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr
    assert [problem for words in commands(script) if (problem := problem_of(words)) is not None] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("hailbus groups --describe --group till | grep -c till", None),
        ("A=b uv run hailbus-broker serve &", None),
        ("hailbus group --list", "hailbus has no command group"),
        ("hailbus groups --list --stat", "hailbus groups has no option --stat"),
        ("hailbus dlq shw orders.v1.till-dlt 0@17", "hailbus dlq has no command shw"),
        ("uv run just benchmark", "just has no recipe benchmark"),
        ("hailbusd run", "there is no command hailbusd"),
    ],
)
def test_what_does_not_exist_is_found(line: str, problem: str | None) -> None:
    found = next((found for words in commands(line) if (found := problem_of(words)) is not None), None)
    assert found == problem
