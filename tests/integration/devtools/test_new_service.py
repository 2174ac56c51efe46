"""`hailbus new`: what it writes passes the commands of its own CI file, with the wheel under test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hailbus import ConfigurationError
from hailbus.cli.new import write_project
from hailbus_devtools.release import PYTHONS, Environment, build, pins

from tests.support import mypy_cache


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("new-service")
    build(folder / "wheels", ["hailbus"])
    made = Environment(folder / "environment", folder / "wheels")
    made.install("hailbus[cli]")
    done = made.run(["hailbus", "new", "order-history", "--folder", "."])
    assert done.returncode == 0, done.stderr
    return made


def test_the_commands_of_its_ci_file_pass(environment: Environment, tmp_path: Path) -> None:
    # In a copy with one table more: where the wheel is, and the versions that this repository is tested with.
    project = tmp_path / "order-history"
    shutil.copytree(environment.work, project)
    with (project / "pyproject.toml").open("a") as file:
        file.write(f"\n[tool.uv]\nfind-links = [{str(environment.wheels)!r}]\n")
        file.write(f"constraint-dependencies = {pins().splitlines()!r}\n")
    ci = yaml.safe_load((project / ".github/workflows/ci.yaml").read_text())
    steps = ci["jobs"]["test"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == [
        "uv sync",
        "uv run ruff check .",
        "uv run ruff format --check .",
        "uv run mypy",
        "uv run pytest",
    ]
    used = [step["uses"].partition("@")[0] for step in steps if "uses" in step]
    assert used == ["actions/checkout", "astral-sh/setup-uv"]
    versions = ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == list(PYTHONS), "the Pythons that hailbus is released for"
    variables = {name: value for name, value in environment.variables.items() if name != "VIRTUAL_ENV"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=project,
            env=variables | {"UV_PYTHON": sys.executable, "MYPY_CACHE_DIR": str(mypy_cache("new-service"))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
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
    done = environment.run(["hailbus", "new", "Shop"])
    assert done.returncode == 2
    assert "cannot name a service: use lower-case letters, digits and '-'" in done.stderr
    for name in ("Shop", "9lives", "class", "hailbus", "a_b", "../shop"):
        with pytest.raises(ConfigurationError, match=f"'{name}' cannot name a service: "):
            write_project(name, tmp_path / "never")
    assert not (tmp_path / "never").exists()
    done = environment.run(["hailbus", "new", "order-history", "--folder", "."])
    assert (done.returncode, done.stderr) == (
        2,
        "hailbus: . exists and is not an empty folder; give another name or --folder\n",
    )
    shutil.rmtree(tmp_path)
