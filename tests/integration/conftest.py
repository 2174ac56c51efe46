"""What the services' integration tests share: databases of both kinds, and waiting for conditions."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers import PostgreSQL, shared_postgresql
from tests.support import free_port


@pytest.fixture(scope="session")
def postgresql() -> PostgreSQL:
    """The PostgreSQL server of this run."""
    return shared_postgresql()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'service.db'}"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    name = re.sub(r"\W", "_", request.node.name)[:30].lower()
    return server.create(f"{name}_{uuid.uuid4().hex[:8]}")


class Process:
    """A service as its users run it: a process of its own, told by environment variables, killed at will."""

    def __init__(self, command: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.name, self._command = command, Path(sys.executable).with_name(command)
        self._environment = {**os.environ, **environment}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling it all anew takes longer than the test
        self._log = directory / f"{command}.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [self._command], env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ready_line(self) -> str:
        """The first line of its output; blocks until it is there."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log()[-4000:]
        return line.strip()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end()

    def terminate(self) -> int:
        """Stop it as a supervisor would; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._end()

    def wait(self) -> int:
        return self._end()

    def _end(self) -> int:
        assert self._process is not None
        code = self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The in-house broker in a process of its own."""

    bootstrap: str
    pid: int


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A fresh broker."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("hailbus-broker"),
        "serve",
        "--listen",
        f"127.0.0.1:{free_port()}",
    ]
    options: list[str | Path] = ["--data-dir", tmp_path / "broker", "--set", "group.initial.rebalance.delay.ms=0"]
    with (tmp_path / "broker.log").open("w") as log:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("bootstrap="), (tmp_path / "broker.log").read_text()[-2000:]
        yield Broker(bootstrap=line.strip().removeprefix("bootstrap="), pid=process.pid)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = 20.0) -> None:
    """Wait until a condition holds, or fail."""
    try:
        async with asyncio.timeout(within_s):
            while not await condition():  # noqa: ASYNC110 what is waited for has no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {condition.__qualname__}") from None
