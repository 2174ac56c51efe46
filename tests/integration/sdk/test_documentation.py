"""The examples that newcomers copy: README and quickstart run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import httpx
import pytest

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


@pytest.mark.parametrize("guide", ["quickstart", "state-machines"])
def test_module_and_test_of_a_guide_run(guide: str, tmp_path: Path) -> None:
    shop, test, *_ = blocks(f"docs/sdk/{guide}.md", "python")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_diagram_of_the_state_machine_is_the_code(tmp_path: Path) -> None:
    shop, *_ = blocks("docs/sdk/state-machines.md", "python")
    (diagram,) = blocks("docs/sdk/state-machines.md", "mermaid")
    (tmp_path / "shop.py").write_text(f"{shop}\nprint(checkout.mermaid(), end='')\n")
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == diagram


def test_http_service_runs(cluster: Cluster, tmp_path: Path) -> None:
    (example,) = blocks("docs/sdk/http-services.md", "python")
    (tmp_path / "bike.py").write_text(example)
    environment = {**os.environ, "BIKE_BOOTSTRAP_SERVERS": cluster.bootstrap, "BIKE_LISTEN": "127.0.0.1:0"}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "bike.py")], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as bike:
        try:
            assert bike.stdout is not None
            line = bike.stdout.readline().decode()
            assert line.startswith("listening=127.0.0.1:"), bike.stderr and bike.stderr.read()
            url = f"http://{line.strip().removeprefix('listening=')}"
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert httpx.post(f"{url}/bikes/b1/hire").json() == {"bike_id": "b1"}
            again = httpx.post(f"{url}/bikes/b1/hire")
            assert (again.status_code, again.json()["type"]) == (409, "/problems/bike-taken")
            assert httpx.get(f"{url}/problems/bike-taken").json()["advice"] == "Choose another bike."
        finally:
            bike.terminate()
        assert bike.wait(timeout=30) == 0


def test_guides_exist_where_the_readme_says() -> None:
    for link in re.findall(r"\]\((\.\./docs/sdk/[^)]+)\)", (ROOT / "sdk/README.md").read_text()):
        assert (ROOT / "sdk" / link).resolve().is_file(), link
