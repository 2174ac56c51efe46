"""The seven jars that PyPI's pyspark does not bring: pinned by version and checksum, fetched once into a cache.

Not by `spark.jars.packages`: spark-token-provider-kafka-0-10 was not released for Spark 4.1, so a plain resolve fails.
The 4.0.0 build serves; it matters for delegation tokens only.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from analytics_spark.errors import ChecksumError, SetUpError

__all__ = ["JARS", "Jar", "ProgressCallback", "cache_dir", "fetch_jars", "missing_jars"]

ProgressCallback = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Called with file name and size in bytes; gives a function that is told of every chunk's length in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One Maven artifact, without its dependencies."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.artifact}-{self.version}.jar"


JARS = (
    Jar(
        group="org.apache.spark",
        artifact="spark-sql-kafka-0-10_2.13",
        version="4.1.3",
        sha256="cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    ),
    Jar(
        group="org.apache.spark",
        artifact="spark-token-provider-kafka-0-10_2.13",
        version="4.0.0",
        sha256="f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        group="org.apache.kafka",
        artifact="kafka-clients",
        version="3.9.1",
        sha256="7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    ),
    Jar(
        group="org.apache.commons",
        artifact="commons-pool2",
        version="2.12.1",
        sha256="5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
    ),
    Jar(
        group="org.scala-lang.modules",
        artifact="scala-parallel-collections_2.13",
        version="1.2.0",
        sha256="4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432",
    ),
    Jar(
        group="org.xerial",
        artifact="sqlite-jdbc",
        version="3.53.4.0",
        sha256="bcb1f51e36f940867e83342f9efbf5968ac44a6bef4d397bb4af7b17b45cd2fb",
    ),
    Jar(
        group="org.apache.iceberg",
        artifact="iceberg-spark-runtime-4.1_2.13",
        version="1.12.0",
        sha256="3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
)


def cache_dir() -> Path:
    """Where downloads live: `LAKE_CACHE`, else `hailbus/lake` in the user's cache folder."""
    given = os.environ.get("LAKE_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).expanduser().absolute() / "hailbus" / "lake"


def jar_paths(cache: Path) -> tuple[Path, ...]:
    """Where each jar of `JARS` stands or will stand."""
    return tuple(cache / "jars" / jar.name for jar in JARS)


def missing_jars(cache: Path) -> tuple[Jar, ...]:
    """The jars that still need the network. A file is complete: it was checked before it got its name."""
    return tuple(jar for jar, path in zip(JARS, jar_paths(cache), strict=True) if not path.is_file())


@contextmanager
def _silent(_name: str, _size_bytes: int) -> Generator[Callable[[int], None]]:
    yield lambda _chunk_bytes: None


def fetch_jars(cache: Path, progress: ProgressCallback = _silent) -> tuple[Path, ...]:
    """The paths of all jars, in the order of `JARS`; downloads only what the cache lacks.

    Raises:
        SetUpError: A jar could not be downloaded.
        ChecksumError: What came is not the pinned file.
    """
    for jar in missing_jars(cache):
        _fetch(jar, cache / "jars", progress)
    return jar_paths(cache)


def _fetch(jar: Jar, folder: Path, progress: ProgressCallback) -> None:
    from jgo.maven import MavenContext, PythonResolver

    folder.mkdir(parents=True, exist_ok=True)
    # A folder of its own: a download that dies leaves nothing under the final name, and two set-ups at once do not
    # meet.
    scratch = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    try:
        context = MavenContext(repo_cache=scratch, resolver=PythonResolver(progress_callback=progress), timeout=60)
        try:
            path: Path | None = context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
        except (OSError, RuntimeError, AssertionError) as error:
            raise SetUpError(
                f"{jar.name} could not be downloaded ({str(error).splitlines()[0] if str(error) else error!r}); "
                "check the network or the Maven mirror and run `lake setup` again"
            ) from error
        if path is None:
            raise SetUpError(f"{jar.name} could not be downloaded; check the network and run `lake setup` again")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != jar.sha256:
            raise ChecksumError(name=jar.name, expected=jar.sha256, found=found)
        path.replace(folder / jar.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
