"""Keep every version, transitive ones too, pinned in the root `pyproject.toml`.

`uv.lock` names download hosts, so it stays out of the repository; the versions that it resolved are written
to `tool.uv.constraint-dependencies` instead.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BEGIN = "# pins: written by `uv run pin`; `uv run pin --upgrade` looks for newer versions"
END = "# end of pins"
_BLOCK = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}\n", re.DOTALL)


def locked_versions(lock: str) -> list[str]:
    """Return `name==version` of every registry package in a `uv.lock`, sorted.

    A package that is locked in several versions for different platforms is left to the resolver.
    """
    versions: dict[str, set[str]] = {}
    for package in tomllib.loads(lock)["package"]:
        if "registry" in package["source"]:
            versions.setdefault(package["name"], set()).add(package["version"])
    return sorted(f"{name}=={found.pop()}" for name, found in versions.items() if len(found) == 1)


def with_pins(pyproject: str, pins: list[str]) -> str:
    """Return the text of `pyproject.toml` with its block of pins replaced by `pins`."""
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    block = f"{BEGIN}\nconstraint-dependencies = [\n{lines}]\n{END}\n"
    if _BLOCK.search(pyproject):
        return _BLOCK.sub(lambda _: block, pyproject)
    return pyproject.replace("[tool.uv]\n", f"[tool.uv]\n{block}", 1)


def main() -> None:
    """Resolve the workspace and write the versions found to the root `pyproject.toml`."""
    pyproject = ROOT / "pyproject.toml"
    text = pyproject.read_text()
    if "--upgrade" in sys.argv[1:]:
        pyproject.write_text(_BLOCK.sub("", text))
    try:
        subprocess.run(["uv", "lock", *sys.argv[1:]], cwd=ROOT, check=True)
    except subprocess.CalledProcessError as error:
        pyproject.write_text(text)
        sys.exit(error.returncode)
    pins = locked_versions((ROOT / "uv.lock").read_text())
    pyproject.write_text(with_pins(pyproject.read_text(), pins))
    print(f"{len(pins)} versions pinned in {pyproject.relative_to(ROOT)}")
