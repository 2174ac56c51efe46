"""Everything that the lake needs beyond Python packages, in one call."""

import time
from dataclasses import dataclass

from analytics_spark.config import LakeSettings
from analytics_spark.jars import JARS, ProgressCallback, cache_dir, fetch_jars, missing_jars
from analytics_spark.java import Java, find_java

__all__ = ["SetUp", "set_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What a set-up found and fetched."""

    java: Java
    fetched: int
    seconds: float

    def __str__(self) -> str:
        """One line for a person."""
        jars = f"{self.fetched} of {len(JARS)} jars fetched" if self.fetched else f"all {len(JARS)} jars were there"
        return f"Java {self.java.version} ({self.java.origin}, {self.java.home}); {jars}; {self.seconds:.1f} s"


def set_up(settings: LakeSettings, *, progress: ProgressCallback | None = None) -> SetUp:
    """Find Java and fetch what the cache lacks; offline and instant when it has all.

    Raises:
        SetUpError: Java or a jar cannot be had.
    """
    began = time.monotonic()
    cache = settings.cache or cache_dir()
    java = find_java(settings.java, cache)
    missing = len(missing_jars(cache))
    if progress is None:
        fetch_jars(cache)
    else:
        fetch_jars(cache, progress)
    return SetUp(java=java, fetched=missing, seconds=time.monotonic() - began)
