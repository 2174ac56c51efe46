"""`hailbus new`: a service with tests, an HTTP application, a Dockerfile, a compose file and a CI file."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from hailbus.errors import ConfigurationError

__all__ = ["new", "write_project"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
SUFFIX = ".tmpl"


def new(
    name: Annotated[str, typer.Argument(help="Name of the service, as in `shop` or `order-history`.")],
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to write it; a folder of that name.")] = None,
) -> None:
    """Write a new service: events, handlers, an HTTP application, tests, Dockerfile, compose file and CI."""
    try:
        written = write_project(name, folder if folder is not None else Path(name))
    except ConfigurationError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise typer.Exit(2) from error
    place = folder if folder is not None else Path(name)
    typer.echo(f"{len(written)} files in {place}. Next: cd {place} && uv sync && uv run pytest")


def write_project(name: str, folder: Path) -> list[Path]:
    """Write a new service into a folder.

    Args:
        name: Of the distribution and of the service; the package's is the same with underscores.
        folder: Empty or absent.

    Returns:
        The files.

    Raises:
        ConfigurationError: The name or the folder cannot be used.
    """
    package = name.replace("-", "_")
    if not _NAME.match(name) or keyword.iskeyword(package) or package in {"hailbus", "tests"}:
        message = f"{name!r} cannot name a service: use lower-case letters, digits and '-', as in 'order-history'"
        raise ConfigurationError(message)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} exists and is not an empty folder; give another name or --folder"
        raise ConfigurationError(message)
    words = {"{{name}}": name, "{{package}}": package}

    def filled(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    written: list[Path] = []

    def copy(source: Traversable, target: Path) -> None:
        for entry in source.iterdir():
            path = target / filled(entry.name).removesuffix(SUFFIX)
            if entry.is_dir():
                copy(entry, path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(filled(entry.read_text()))
                written.append(path)

    copy(files("hailbus.cli") / "template", folder)
    return sorted(written)
