"""Slow variants of a test are left out by the mark `slow_with`, and no others."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONFTEST = """
import pytest

from tests.variants import mark_slow_variants


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_slow_variants(items)
"""
TESTS = """
import pytest


@pytest.fixture(params=["inhouse", "apache"])
def cluster(request):
    return request.param


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return request.param


def test_all(cluster, database): ...


@pytest.mark.slow_with("apache")
def test_ours(cluster, database): ...


@pytest.mark.slow_with("apache-sqlite", "inhouse-postgresql")
def test_crossed(cluster, database): ...


@pytest.mark.parametrize("name", ["apaches", "my apache"])
@pytest.mark.slow_with("apache")
def test_part_of_a_word(name): ...


@pytest.mark.slow_with("apache")
def test_without_parameters(): ...
"""


def test_a_variant_is_slow_where_its_parameters_have_the_name(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    slow_with\n")
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "--strict-markers", "-m", "not slow", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    names = [line.split("::")[1] for line in listed.stdout.splitlines() if "::" in line]
    assert sorted(names) == sorted(
        [
            *(
                f"test_all[{cluster}-{database}]"
                for cluster in ("inhouse", "apache")
                for database in ("sqlite", "postgresql")
            ),
            *("test_ours[inhouse-sqlite]", "test_ours[inhouse-postgresql]"),
            *("test_crossed[inhouse-sqlite]", "test_crossed[apache-postgresql]"),
            *("test_part_of_a_word[apaches]", "test_part_of_a_word[my apache]"),
            "test_without_parameters",
        ]
    )
