"""A broker in a process of its own, to be killed, traced or started on a damaged directory."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SERVE = "from hailbus_broker.cli import main; main()"


@dataclass(kw_only=True)
class BrokerProcess:
    """A running broker: where clients find it, and what it has logged."""

    process: subprocess.Popen[str]
    bootstrap: str
    log_path: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        """Stop in order."""
        self.process.terminate()
        assert self.process.wait(60) == 0

    def log(self) -> str:
        return self.log_path.read_text()


ANY_PORT = "127.0.0.1:0"


def command(
    directory: Path, settings: dict[str, str] | None = None, *, source: str = SERVE, listen: str = ANY_PORT
) -> list[str]:
    """The command of a broker on a directory; `source` is the program that serves."""
    given = [f"--set={name}={value}" for name, value in (settings or {}).items()]
    return [sys.executable, "-c", source, "serve", "--listen", listen, "--data-dir", str(directory), *given]


@contextlib.contextmanager
def broker_process(
    directory: Path,
    settings: dict[str, str] | None = None,
    *,
    source: str = SERVE,
    prefix: Sequence[str] = (),
    descriptors: int | None = None,
    listen: str = ANY_PORT,
) -> Iterator[BrokerProcess]:
    """Run a broker until the block ends; it may have ended before.

    Args:
        directory: Its data directory; the log is written beside it.
        settings: Options by Kafka's names.
        source: The program that serves.
        prefix: What runs the command: a tracer.
        descriptors: Limit of open files, soft and hard.
        listen: Where it listens; a later life of a broker keeps the port, so that clients find it.
    """
    log_path = directory.parent / f"{directory.name}.log"
    limit = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
    with (
        log_path.open("ab") as errors,
        subprocess.Popen(
            [*limit, *prefix, *command(directory, settings, source=source, listen=listen)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"bootstrap=(\S+)\n", line)
            assert found, log_path.read_text()
            yield BrokerProcess(process=process, bootstrap=found[1], log_path=log_path)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def start_failure(directory: Path, settings: dict[str, str] | None = None) -> str:
    """What a broker says that must not start."""
    done = subprocess.run(command(directory, settings), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr
