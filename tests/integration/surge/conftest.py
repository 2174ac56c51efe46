"""A broker and a surge worker as processes of their own, to be killed and started again."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
IDLE_AFTER_MS = 8_000
"""Far above any stall of a loaded machine: a partition that is only slow must not be taken for idle."""


def low_port() -> int:
    """A free port outside of the range that clients connect from.

    While a broker is down, a client that tries to reconnect can be given the broker's own port to connect from.
    """
    for port in range(21_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


class Process:
    """A command whose output goes to a file beside its data."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, **self._environment}
            )

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals, timeout_s: float = 20) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)

    def said(self, text: str) -> int:
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0


class Broker(Process):
    """The in-house broker, always on the same port."""

    def __init__(self, folder: Path, port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        command = [
            str(BIN / "hailbus-broker"),
            "serve",
            "--listen",
            self.bootstrap,
            "--data-dir",
            str(folder / "broker"),
        ]
        settings = ["--set=group.initial.rebalance.delay.ms=0", "--set=log.cleaner.backoff.ms=100"]
        super().__init__("broker", [*command, *settings], folder, {})


class Worker(Process):
    """The surge worker with its own inbox."""

    def __init__(self, folder: Path, bootstrap: str, *, name: str = "surge", **more: str) -> None:
        self.database = folder / "surge.db"
        environment = {
            "SURGE_BOOTSTRAP_SERVERS": bootstrap,
            "SURGE_DATABASE_URL": f"sqlite:///{self.database}",
            "SURGE_STATE_DIR": str(folder / name),
            "SURGE_CLOCK": "event",
            "SURGE_IDLE_AFTER_MS": str(IDLE_AFTER_MS),
            **more,
        }
        super().__init__(name, [str(BIN / "surge")], folder, environment)

    def inbox(self) -> dict[str, int]:
        """Event id → how often it was seen."""
        if not self.database.exists():
            return {}
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)
        try:
            return dict(connection.execute("SELECT event_id, seen_count FROM hailbus_inbox WHERE consumer = 'surge'"))
        except sqlite3.OperationalError:  # not created yet
            return {}
        finally:
            connection.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, low_port())
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def worker(tmp_path: Path, broker: Broker) -> Iterator[Worker]:
    worker = Worker(tmp_path, broker.bootstrap)
    yield worker
    worker.kill()
