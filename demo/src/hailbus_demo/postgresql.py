"""A PostgreSQL server of the run's own, in its data directory: the regions of booking share a database."""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.supervise.ports import HOST
from hailbus_demo.supervise.processes import ProcessSpec, before_exec
from hailbus_demo.supervise.state import DataDir

NAME: Final = "postgresql"
ROLE: Final = "hailbus"
DATABASE: Final = "postgres"
UNPRIVILEGED: Final = "postgres"
"""PostgreSQL refuses to run as root: then it runs as this user, whom packages of PostgreSQL make."""
DEBIAN: Final = Path("/usr/lib/postgresql")
"""Debian keeps the server's programs off the PATH."""
ANSWERS_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgreSQL:
    """What is needed to start the server.

    Attributes:
        initdb: The program that makes its files.
        postgres: The server's program.
        folder: Where its files and its password are.
        user: Who runs it; None for who runs the demo.
    """

    initdb: str
    postgres: str
    folder: Path
    user: str | None

    @property
    def data(self) -> Path:
        """The server's own files."""
        return self.folder / "data"

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    def url(self, port: int, *, search_path: str | None = None) -> str:
        """Return the address of the database for SQLAlchemy."""
        more = "" if search_path is None else f"?search_path={search_path}"
        return f"postgresql+asyncpg://{ROLE}:{self._password()}@{HOST}:{port}/{DATABASE}{more}"

    async def set_up(self) -> None:
        """Make the server's files, unless an earlier run did.

        Raises:
            UsageError: The server's user cannot reach the data directory.
            RunFailedError: They cannot be made.
        """
        if self.data.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_urlsafe(24), encoding="ascii")
        if self.user is not None:
            for path in (self.folder, self._password_file):
                shutil.chown(path, self.user, pwd.getpwnam(self.user).pw_gid)
            if await self._run("/usr/bin/env", "test", "-r", str(self._password_file)) is not None:
                raise UsageError(
                    f"--regions: PostgreSQL does not run as root, and its user {self.user} cannot enter "
                    f"{self.folder.parent}: give another --data-dir, such as one in /var/tmp, or run as another user"
                )
        making = self.folder / "making"
        shutil.rmtree(making, ignore_errors=True)
        arguments = ["--auth=scram-sha-256", f"--username={ROLE}", f"--pwfile={self._password_file}"]
        arguments += ["--encoding=UTF8", "--locale=C", f"--pgdata={making}"]
        failed = await self._run(self.initdb, *arguments)
        if failed is not None:
            raise RunFailedError(f"PostgreSQL's files cannot be made: {failed}")
        making.rename(self.data)

    def spec(self, data_dir: DataDir, port: int) -> ProcessSpec:
        """Return the server's process."""

        async def ready() -> bool:
            try:
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    connection = await asyncpg.connect(
                        host=HOST, port=port, user=ROLE, password=self._password(), database=DATABASE
                    )
                    await connection.close()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return False
            return True

        return ProcessSpec(
            name=NAME,
            argv=(
                *(self.postgres, "-D", str(self.data), "-p", str(port)),
                *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
            ),
            env={},
            log=data_dir.logs / f"{NAME}.log",
            ready=ready,
            stop_signal=signal.SIGINT,  # SIGTERM would wait for clients
            user=self.user,
            folder=self.folder,
        )

    def _password(self) -> str:
        return self._password_file.read_text(encoding="ascii")

    async def _run(self, *command: str) -> str | None:
        """Run a program as the server's user; return what it wrote if it failed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.folder,
                preexec_fn=before_exec(self.user),
            )
        except OSError as error:
            return str(error)
        _, err = await process.communicate()
        return err.decode("utf-8", "replace").strip() if process.returncode else None


def find_postgresql(data_dir: DataDir) -> PostgreSQL:
    """Return what is needed to start a server.

    Raises:
        UsageError: It is not installed, or root has nobody to run it as.
    """
    programs = [_program(name) for name in ("initdb", "postgres")]
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    if None in programs:
        raise UsageError(
            "--regions needs PostgreSQL, and its programs initdb and postgres are not here: install it, such as by "
            "`apt install postgresql`, or leave --regions out"
        )
    if user is not None and all(entry.pw_name != user for entry in pwd.getpwall()):
        raise UsageError(
            f"--regions: PostgreSQL does not run as root, and there is no user {user}: run the demo as another user"
        )
    initdb, postgres = (program for program in programs if program is not None)
    return PostgreSQL(initdb=initdb, postgres=postgres, folder=data_dir.postgresql.absolute(), user=user)


def _program(name: str) -> str | None:
    if found := shutil.which(name):
        return found
    versions = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(versions[-1]) if versions else None


__all__ = ["NAME", "PostgreSQL", "find_postgresql"]
