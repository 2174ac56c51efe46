"""The examples that newcomers copy: README and quickstart run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[3]


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def test_readme_example_runs(cluster: Cluster, tmp_path: Path) -> None:
    (example,) = blocks("sdk/README.md", "python")
    program = tmp_path / "hello.py"
    program.write_text(example.replace("127.0.0.1:9092", cluster.bootstrap))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"r1 by ada, rides\.v1-\d@0\n", done.stdout)


def test_quickstart_module_and_test_run(tmp_path: Path) -> None:
    shop, test, *_ = blocks("docs/sdk/quickstart.md", "python")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_guides_exist_where_the_readme_says() -> None:
    for link in re.findall(r"\]\((\.\./docs/sdk/[^)]+)\)", (ROOT / "sdk/README.md").read_text()):
        assert (ROOT / "sdk" / link).resolve().is_file(), link
