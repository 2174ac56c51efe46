"""mypy strict and pyright, both without plugin, accept what is right and refuse what is wrong, line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import mypy_cache

HERE = Path(__file__).parent / "typing"
# Kept as text: the wrong code must not be found by the checks of the repository itself.
SOURCES = {"passes.py": "passes.py", "fails.py": "fails.txt"}
FILES = tuple(SOURCES)
SOURCE = Path(__file__).resolve().parents[3] / "sdk" / "src"


def lines_of(name: str) -> set[int]:
    text = (HERE / SOURCES[name]).read_text().splitlines()
    return {number for number, line in enumerate(text, 1) if line.endswith("# refused")}


Found = dict[str, set[int]]


def mypy(folder: Path) -> Found:
    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {SOURCE}\n[mypy-aiokafka.*]\nignore_missing_imports = True\n"
    )
    cache = mypy_cache("typing")  # the first run reads pydantic, FastAPI and SQLAlchemy
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache), *FILES],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return {name: {int(n) for n in re.findall(rf"{re.escape(name)}:(\d+): error", done.stdout)} for name in FILES}


def pyright(folder: Path) -> Found:
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"include": ["."], "typeCheckingMode": "standard", "extraPaths": [str(SOURCE)]})
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] >= len(FILES)
    errors = [d for d in found["generalDiagnostics"] if d["severity"] == "error"]
    return {name: {d["range"]["start"]["line"] + 1 for d in errors if Path(d["file"]).name == name} for name in FILES}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_code_passes_and_wrong_code_is_refused_where_it_is_wrong(checker: object, tmp_path: Path) -> None:
    assert callable(checker)
    for name, source in SOURCES.items():
        (tmp_path / name).write_text((HERE / source).read_text())
    expected = lines_of("fails.py")
    assert len(expected) == 25
    assert checker(tmp_path) == {"passes.py": set(), "fails.py": expected}
