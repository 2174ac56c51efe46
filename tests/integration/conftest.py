"""What the services' integration tests share: databases of both kinds, and waiting for conditions."""

import asyncio
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import free_port


def _server_program(name: str) -> str | None:
    """A PostgreSQL server program; Debian keeps them off the PATH."""
    found = shutil.which(name)
    if found:
        return found
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return str(versions[-1]) if versions else None


class PostgreSQL:
    """A server of our own, in a directory of its own, reached by its socket directory and a free port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._data = directory / "data"
        # PostgreSQL refuses to run as root: then it runs as whoever owns the system's installation.
        self._user = "postgres" if os.geteuid() == 0 else None

    def _run(self, program: str, *arguments: str) -> None:
        path = _server_program(program)
        assert path is not None
        done = subprocess.run(
            [path, *arguments],
            user=self._user,
            group=pwd.getpwnam(self._user).pw_gid if self._user else None,
            extra_groups=[] if self._user else None,
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(self._directory, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "--pgdata", str(self._data), "--auth=trust", "--username=hailbus", "--no-sync")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._directory}"
        log = str(self._directory / "log")
        self._run("pg_ctl", "--pgdata", str(self._data), "--wait", f"--log={log}", f"--options={options}", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--pgdata", str(self._data), "--mode=immediate", "--wait", "stop")

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://hailbus@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        import asyncpg

        async def run() -> None:
            connection = await asyncpg.connect(f"postgresql://hailbus@127.0.0.1:{self.port}/postgres")
            await connection.execute(f"CREATE DATABASE {database}")
            await connection.close()

        asyncio.run(run())
        return self.url(database)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """A PostgreSQL server, started once for all tests that need it."""
    if _server_program("initdb") is None or _server_program("pg_ctl") is None:
        pytest.skip("no PostgreSQL server programs here (initdb, pg_ctl): install the package `postgresql` to run this")
    if os.geteuid() == 0 and not any(entry.pw_name == "postgres" for entry in pwd.getpwall()):
        pytest.skip("PostgreSQL does not run as root, and there is no user `postgres` to run it as")
    # Not under pytest's own directory, which only its user may enter.
    directory = Path(tempfile.mkdtemp(prefix="hailbus-postgresql-"))
    server = PostgreSQL(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


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
        self._command = Path(sys.executable).with_name(command)
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
