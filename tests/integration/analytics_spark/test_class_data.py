"""The class data archive: a session uses it, and it is made once for each Java and class path."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from analytics_spark.jars import cache_dir, jar_paths
from analytics_spark.java import find_java
from analytics_spark.session import archive_path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_session_maps_the_archive_that_the_set_up_made(spark: Any) -> None:
    cache = cache_dir()
    archive = archive_path(cache, find_java("auto", cache), jar_paths(cache))
    if not archive.is_file():
        pytest.fail("there is no archive: run `lake setup`")
    mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
    assert str(archive) in mapped


def test_other_jars_get_an_archive_of_their_own(tmp_path: Path) -> None:
    cache = cache_dir()
    java = find_java("auto", cache)
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"1")
    known = archive_path(cache, java, (jar,))
    assert archive_path(cache, java, (jar,)) == known
    jar.write_bytes(b"22")
    other = archive_path(cache, java, (jar,))
    assert other != known
    assert other.name.partition("-")[0] == known.name.partition("-")[0]


@pytest.mark.slow
def test_an_archive_is_made_once_and_takes_the_place_of_an_older_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "jars").symlink_to(cache_dir() / "jars")
    archive = archive_path(tmp_path, find_java("auto", tmp_path), jar_paths(tmp_path))
    archive.parent.mkdir()
    older = archive.with_name(f"{archive.name.partition('-')[0]}-older.jsa")
    older.touch()
    said = []
    for _ in range(2):
        command = [str(Path(sys.executable).parent / "lake"), "setup"]  # a process has one JVM, and this one's may run
        environment = {**os.environ, "LAKE_CACHE": str(tmp_path)}
        said.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert ["archive made" in text for text in said] == [True, False]
