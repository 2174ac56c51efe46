"""Build the wheels that others install, and try them as others do: in empty environments, on each Python.

`uv run release` builds hailbus, hailbus-broker and hailbus-registry, looks at what is in the wheels, installs them on
each supported Python, imports events without any extra, tries each extra in an environment of its own, and follows the
quickstart word by word. With `--lowest` it tries the extras and the quickstart in one environment that has the lowest
versions which the wheels say they work with.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from hailbus_devtools.tools import ROOT

__all__ = [
    "PYTHONS",
    "Environment",
    "ReleaseError",
    "Wheel",
    "build",
    "follow_quickstart",
    "interpreters",
    "lowest",
    "main",
    "pins",
    "problems_of",
]

MEMBERS = {"hailbus": "sdk", "hailbus-broker": "broker", "hailbus-registry": "registry"}
"""The distributions that are published, and where they are made."""
PYTHONS = ("3.11", "3.12", "3.13")
QUICKSTART = ROOT / "docs" / "sdk" / "quickstart.md"


class ReleaseError(Exception):
    """A wheel, or what became of it in an empty environment, is not as it must be."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel: its metadata and the names of its files."""

    path: Path
    metadata: Message
    names: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Read a wheel from disk."""
        with zipfile.ZipFile(path) as file:
            names = tuple(file.namelist())
            (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
            return cls(path, Parser().parsestr(file.read(metadata).decode()), names)

    @property
    def name(self) -> str:
        """The distribution's name."""
        return str(self.metadata["Name"])


def build(folder: Path, members: Sequence[str] = tuple(MEMBERS)) -> list[Wheel]:
    """Build wheels of the members into a folder, which must be empty or absent.

    The build's own requirements come from uv's cache where it has them: after `uv sync` this needs no network.

    Raises:
        ReleaseError: A build failed.
    """
    for member in members:
        _uv_build(ROOT / MEMBERS[member], folder)
    return [Wheel.read(path) for path in sorted(folder.glob("*.whl"))]


def _uv_build(source: Path, folder: Path) -> None:
    command = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source)]
    _run([*command, "--offline"], fallback=command)


def _run(
    command: Sequence[str],
    *,
    fallback: Sequence[str] | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode and fallback is not None:
        return _run(fallback, cwd=cwd, environment=environment)
    if done.returncode:
        message = f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
        raise ReleaseError(message)
    return done.stdout


def problems_of(wheel: Wheel) -> list[str]:
    """What a wheel lacks that its users rely on; empty when nothing is missing."""
    package = wheel.name.replace("-", "_")
    found = []
    required = {"Summary", "Requires-Python", "License-Expression", "License-File", "Keywords", "Classifier"}
    found += [f"{wheel.name}: no {field} in its metadata" for field in sorted(required) if not wheel.metadata[field]]
    if not str(wheel.metadata.get_payload()).strip():
        found.append(f"{wheel.name}: no readme")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.names):
        found.append(f"{wheel.name}: no licence file")
    if f"{package}/py.typed" not in wheel.names:
        found.append(f"{wheel.name}: no py.typed")
    others = {name.partition("/")[0] for name in wheel.names} - {package}
    found += [f"{wheel.name}: also contains {name}" for name in sorted(others) if not name.endswith(".dist-info")]
    for requirement in wheel.metadata.get_all("Requires-Dist") or []:
        name = str(requirement).partition(";")[0]
        if not re.search(r"[<>=~]", name) and not name.strip().startswith("hailbus"):
            found.append(f"{wheel.name}: no lower bound for {requirement.strip()}")
    return found


def interpreters(pyenv: Path | None = None) -> dict[str, str]:
    """Return what `--python` gets for each supported version that is on this machine."""
    root = pyenv if pyenv is not None else Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in PYTHONS:
        installed = sorted(root.glob(f"versions/{version}.*/bin/python"))
        if installed:
            found[version] = str(installed[-1])
        elif f"{sys.version_info.major}.{sys.version_info.minor}" == version:
            found[version] = sys.executable
        elif (path := shutil.which(f"python{version}")) and "shims" not in path:
            found[version] = path
    return found


def pins() -> str:
    """Return the versions that the workspace is tested with, as a file of constraints."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return "\n".join(pyproject["tool"]["uv"]["constraint-dependencies"]) + "\n"


def lowest(python: str) -> str:
    """Resolve the lowest versions that the published members say they work with, as a file of constraints.

    Their own requirements get their lower bounds, what these require gets its newest version. What none of them
    requires is as in `pins`.

    Raises:
        ReleaseError: The lower bounds contradict each other.
    """
    direct = []
    for member in MEMBERS.values():
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
        found = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
        direct += [r for requirements in found for r in requirements if not r.startswith("hailbus")]
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct"]
    with tempfile.TemporaryDirectory() as elsewhere:  # in the repository its pins would apply
        done = subprocess.run(
            [*command, "--python", python, "-"],
            cwd=elsewhere,
            input="\n".join(direct),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ReleaseError(f"the lower bounds cannot be had together:\n{done.stderr}")
    resolved = {line.partition("==")[0]: line for line in done.stdout.splitlines()}
    others = [line for line in pins().splitlines() if line.partition("==")[0] not in resolved]
    return "\n".join([*resolved.values(), *others]) + "\n"


class Environment:
    """A virtual environment outside the repository, with a folder to work in.

    Args:
        folder: Empty; the environment and the working directory are made below it.
        wheels: Where the wheels under test are.
        python: An interpreter.
        constraints: The versions of everything else; those that the workspace is tested with by default.
    """

    def __init__(
        self, folder: Path, wheels: Path, *, python: str = sys.executable, constraints: str | None = None
    ) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.wheels = wheels
        self._constraints = folder / "constraints.txt"
        self.work.mkdir(parents=True)
        self._built = [Wheel.read(path) for path in sorted(wheels.glob("*.whl"))]
        # Whatever an index may have under the same name: here it means the wheel under test.
        local = [f"{wheel.name}=={wheel.metadata['Version']}\n" for wheel in self._built]
        self._constraints.write_text((pins() if constraints is None else constraints) + "".join(local))
        _run(["uv", "venv", "--quiet", "--python", python, str(folder / "venv")])

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.folder / "venv" / "bin"

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a shell in which it is active; nothing of the workspace's own environment is left."""
        ours = ("HAILBUS_", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHON", "MYPY", "COV")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return {
            **kept,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.folder / "venv"),
            "PIP_CONSTRAINT": str(self._constraints),
            "PIP_FIND_LINKS": str(self.wheels.resolve()),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def install(self, *requirements: str) -> None:
        """Install requirements; `hailbus[...]` and its companions are the wheels under test."""
        names = {wheel.name: wheel.path.resolve().as_uri() for wheel in self._built}
        found = []
        for requirement in requirements:
            name = requirement.partition("[")[0]
            found.append(f"{requirement} @ {names[name]}" if name in names else requirement)
        command = ["uv", "pip", "install", "--quiet", "--python", str(self.bin / "python")]
        command += ["--constraints", str(self._constraints), "--find-links", str(self.wheels.resolve()), *found]
        _run([*command, "--offline"], fallback=command, cwd=self.work)  # in the repository its pins would apply

    def installed(self) -> list[str]:
        """Return the names of the distributions in it, without what every environment has."""
        text = _run(["uv", "pip", "freeze", "--quiet", "--python", str(self.bin / "python")])
        names = {re.split(r"[ =@]", line)[0].lower() for line in text.splitlines() if line}
        return sorted(names - {"pip", "setuptools", "wheel"})

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a program in it, without the repository in its path."""
        return self.run([str(self.bin / "python"), "-c", program])

    def run(self, command: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the working directory, with variables beside those of the environment."""
        return subprocess.run(
            command, cwd=self.work, env={**self.variables, **more}, capture_output=True, text=True, check=False
        )


@dataclass(frozen=True, slots=True)
class QuickstartStep:
    """One block of the page: a file to write, or commands to run."""

    path: str | None
    text: str


def quickstart_steps(page: str) -> Iterator[QuickstartStep]:
    """Yield the blocks of the page in order: Python blocks that begin with their file's name, and shell blocks."""
    for language, text in re.findall(r"```(python|sh)\n(.*?)```", page, flags=re.DOTALL):
        named = re.match(r"# (\S+\.py)\n", text)
        if language == "python" and named is not None:
            yield QuickstartStep(named.group(1), text)
        elif language == "sh":
            yield QuickstartStep(None, text)


def follow_quickstart(environment: Environment, *, page: Path = QUICKSTART) -> str:
    """Write the files and run the commands of the page, in one shell, as a reader does; return what they printed.

    All that is added is a shell that stops at the first command that fails, and that ends the processes which the page
    leaves running in the background.

    Raises:
        ReleaseError: A command failed.
    """
    script = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for step in quickstart_steps(page.read_text()):
        if step.path is None:
            script.append(step.text)
        else:
            script.append(
                f"mkdir -p {Path(step.path).parent}\ncat > {step.path} <<'END_OF_FILE'\n{step.text}END_OF_FILE"
            )
    done = environment.run(["bash", "-c", "\n".join(script)])
    if done.returncode:
        message = f"the quickstart ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
        raise ReleaseError(message)
    return done.stdout


def main() -> None:
    """Build the wheels into `build/release` and try them."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version; may be repeated")
    parser.add_argument(
        "--lowest",
        action="store_true",
        help="only the lowest versions of what the wheels require, on the oldest Python",
    )
    arguments = parser.parse_args()
    folder = ROOT / "build" / "release"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        wheels = build(folder / "wheels")
        if problems := [problem for wheel in wheels for problem in problems_of(wheel)]:
            raise ReleaseError("\n".join(problems))
        for wheel in wheels:
            print(f"built {wheel.path.relative_to(ROOT)}")
        found = interpreters()
        for version in arguments.python or (PYTHONS[:1] if arguments.lowest else PYTHONS):
            if version not in found:
                raise ReleaseError(
                    f"there is no Python {version} on this machine; install it: uv python install {version}"
                )
            if arguments.lowest:
                _try_lowest(version, found[version], folder)
            else:
                _try_on(version, found[version], folder)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        sys.exit(1)


def _try_lowest(version: str, python: str, folder: Path) -> None:
    from hailbus_devtools.extras import COMBINED, EXTRAS, ON_TOP, try_extra

    constraints = lowest(python)
    with tempfile.TemporaryDirectory(prefix="hailbus-release-") as place:
        made = Environment(Path(place) / "lowest", folder / "wheels", python=python, constraints=constraints)
        made.install(f"hailbus[{','.join((*EXTRAS, *COMBINED))}]", "hailbus-broker", "hailbus-registry")
        for extra in EXTRAS:
            if extra not in ON_TOP:  # what is on top of them is installed as well
                try_extra(extra, made)
        print(f"Python {version}: every extra works with the lowest versions", flush=True)
        follow_quickstart(made)
        print(f"Python {version}: the quickstart works with the lowest versions", flush=True)


def _try_on(version: str, python: str, folder: Path) -> None:
    from hailbus_devtools.extras import COMBINED, EXTRAS, try_extra, try_without_extras

    # Outside the repository, whose pytest settings and packages would be found from a folder below it.
    with tempfile.TemporaryDirectory(prefix="hailbus-release-") as place:
        events = Environment(Path(place) / "events", folder / "wheels", python=python)
        events.install("hailbus")
        done = events.python("from hailbus import Event, Topic")
        if done.returncode:
            raise ReleaseError(f"events cannot be imported on Python {version} without extras:\n{done.stderr}")
        print(f"Python {version}: events need {', '.join(events.installed())}")
        try_without_extras(events)
        for extra in (*EXTRAS, *COMBINED):
            with tempfile.TemporaryDirectory(prefix="hailbus-release-") as own:
                made = Environment(Path(own) / extra, folder / "wheels", python=python)
                made.install(f"hailbus[{extra}]")
                try_extra(extra, made)
        print(f"Python {version}: each extra works, and is named where it is missing", flush=True)
        follow_quickstart(Environment(Path(place) / "quickstart", folder / "wheels", python=python))
        print(f"Python {version}: the quickstart works", flush=True)
