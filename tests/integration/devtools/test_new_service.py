"""`hailbus new`: what it writes passes its own tests, types and style, with the wheel, in an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hailbus_devtools.release import Environment, build


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("new-service")
    build(folder / "wheels", ["hailbus"])
    made = Environment(folder / "environment", folder / "wheels")
    made.install("hailbus[standard]", "httpx", "mypy", "pytest", "ruff")
    done = made.run(["hailbus", "new", "order-history", "--folder", "."])
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize(
    "command", [["pytest", "-q"], ["mypy"], ["ruff", "check", "."], ["ruff", "format", "--check", "."]], ids=" ".join
)
def test_a_new_service_passes(command: list[str], environment: Environment) -> None:
    done = environment.run(command, PYTHONPATH="src", MYPYPATH="src")
    assert done.returncode == 0, done.stdout + done.stderr
    if command[0] == "pytest":
        assert "3 passed" in done.stdout


def test_its_files_for_containers_and_ci_name_what_is_there(environment: Environment) -> None:
    work = environment.work
    text = {
        path.relative_to(work).as_posix(): path.read_text()
        for path in work.rglob("*")
        if path.suffix != ".pyc" and path.is_file() and not path.relative_to(work).parts[0].endswith("_cache")
    }
    assert not [name for name, content in text.items() if "{{" in content.replace("${{", "") or "{{" in name]
    compose = yaml.safe_load(text["compose.yaml"])
    assert set(compose["services"]) == {"broker", "order-history"}
    ci = yaml.safe_load(text[".github/workflows/ci.yaml"])
    assert [step["run"] for step in ci["jobs"]["test"]["steps"] if "run" in step][-1] == "uv run pytest"
    docker = text["Dockerfile"].splitlines()
    copied = [word for line in docker if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((work / name).exists() for name in copied)
    assert 'CMD ["hailbus", "run", "order_history.main:app", "--listen", "0.0.0.0:8000"]' in docker


@pytest.mark.needs("docker compose")
def test_docker_compose_accepts_its_file(environment: Environment) -> None:
    done = subprocess.run(
        ["docker", "compose", "config", "--quiet"], cwd=environment.work, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_names_and_folders_that_cannot_be_used_are_refused(environment: Environment, tmp_path: Path) -> None:
    for name in ("Shop", "9lives", "class", "hailbus", "a_b", "../shop"):
        done = environment.run(["hailbus", "new", name])
        assert done.returncode == 2
        assert "cannot name a service: use lower-case letters, digits and '-'" in done.stderr
    done = environment.run(["hailbus", "new", "order-history", "--folder", "."])
    assert (done.returncode, done.stderr) == (
        2,
        "hailbus: . exists and is not an empty folder; give another name or --folder\n",
    )
    shutil.rmtree(tmp_path)
