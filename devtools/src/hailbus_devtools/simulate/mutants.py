"""Mutants of the broker: what is replaced by what, and how a process runs with one of them.

A mutant is data: lines of the source and what stands there instead. Its place is found by the lines, wherever they are
in the package and however deep they are indented, so that a mutant survives that code moves. Lines that are gone, or
that stand at two places, fail a test.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

FILES: Final = tuple(
    Path(__file__).with_name(name)
    for name in ("mutants.toml", "cluster_mutants.toml", "held_out.toml", "cluster_held_out.toml")
)
"""Those that are held out are run by nobody while the campaigns are tuned."""
CLUSTER_NODES: Final = 3


class MutantError(Exception):
    """The lines of a mutant are not at exactly one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change of the broker's source.

    Attributes:
        name: What the changed broker does wrong.
        old: Lines that stand at one place of the package.
        new: Lines to put there; further indentation is relative to that of `old`.
        is_held_out: Whether it shows how well campaigns find what nobody thought of.
        nodes: How many brokers a campaign needs to find it.
    """

    name: str
    old: str
    new: str
    is_held_out: bool = False
    nodes: int = 1


def read_mutants() -> list[Mutant]:
    """Return all mutants, those that are held out last."""
    found = []
    for file in FILES:
        for entry in tomllib.loads(file.read_text())["mutant"]:
            mutant = Mutant(
                name=entry["name"],
                old=entry["old"],
                new=entry["new"],
                is_held_out=file.name.endswith("held_out.toml"),
                nodes=CLUSTER_NODES if file.name.startswith("cluster") else 1,
            )
            found.append(mutant)
    return found


def package_of_the_broker() -> Path:
    """Return the folder of the broker's package, without importing anything below it."""
    spec = PathFinder.find_spec("hailbus_broker", None)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def apply(mutant: Mutant, package: Path) -> tuple[Path, str]:
    """Return the file that a mutant changes and its new source.

    Raises:
        MutantError: Its lines are gone, or stand at several places.
    """
    pattern = _pattern(mutant.old)
    places = []
    for file in sorted(package.rglob("*.py")):
        if "testing" in file.relative_to(package).parts:
            continue
        source = file.read_text()
        places += [(file, source, found) for found in pattern.finditer(source)]
    if len(places) != 1:
        raise MutantError(f"the lines of the mutant {mutant.name!r} stand at {len(places)} places:\n{mutant.old}")
    ((file, source, found),) = places
    indent = found["indent"]
    lines = mutant.new.strip("\n").splitlines()
    replaced = "\n".join(indent + line if line.strip() else "" for line in lines)
    return file, source[: found.start()] + replaced + source[found.end() :]


def _pattern(old: str) -> re.Pattern[str]:
    first, *rest = old.strip("\n").splitlines()
    lines = [r"^(?P<indent>[ ]*)" + re.escape(first), *(r"(?P=indent)" + re.escape(line) for line in rest)]
    return re.compile("\n".join(lines) + "$", re.MULTILINE)


class _Loader(SourceFileLoader):
    """Compiles another source than that of the file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType | None:
        """See `SourceFileLoader`; no cache is read or written."""
        del fullname
        return self.source_to_code(self._source.encode(), self.path)


class _Finder(MetaPathFinder):
    """Finds the one module that is replaced."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self._module = module
        self._path = path
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        del target
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        spec.loader = _Loader(fullname, str(self._path), self._source)
        return spec


def install(mutant: Mutant) -> None:
    """Let this process import the broker with a mutant in it; before anything of the broker is imported.

    Raises:
        MutantError: Its lines are gone, or stand at several places.
    """
    package = package_of_the_broker()
    file, source = apply(mutant, package)
    parts = file.relative_to(package.parent).with_suffix("").parts
    module = ".".join(part for part in parts if part != "__init__")
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, _Finder(module, file, source))
