"""Processes that are killed on purpose, as often as somebody clicks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from hailbus_demo.supervise import processes
from hailbus_demo.supervise.processes import CRASHES_IN_A_ROW, ProcessSpec, Supervisor

from tests.support import wait_for


async def ready() -> bool:
    return True


@asynccontextmanager
async def sleeper(folder: Path, first: str = "pass") -> AsyncIterator[Supervisor]:
    """Supervise a process that runs a statement and does nothing more."""
    supervisor = Supervisor(say=lambda _: None)
    argv = (sys.executable, "-c", f"import time; {first}; time.sleep(600)")
    await supervisor.start(ProcessSpec(name="sleeper", argv=argv, env={}, log=folder / "log", ready=ready))
    try:
        await supervisor.wait_ready("sleeper")
        yield supervisor
    finally:
        await supervisor.stop("sleeper")
        supervisor.kill_all()


async def test_a_process_that_is_killed_often_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FIRST_BACKOFF_S", 0.01)
    async with sleeper(tmp_path) as supervisor:
        for _ in range(CRASHES_IN_A_ROW + 1):
            await supervisor.wait_ready("sleeper")
            await supervisor.kill("sleeper")
        async with asyncio.timeout(60):
            await supervisor.wait_ready("sleeper")
        child = supervisor.children["sleeper"]
        assert (child.state, child.restarts) == ("ready", CRASHES_IN_A_ROW + 1)
        assert not supervisor.failure.done()


async def test_a_suspended_process_does_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async with sleeper(tmp_path) as supervisor:
        pid = supervisor.children["sleeper"].pid
        assert pid is not None

        def is_stopped() -> bool:
            return psutil.Process(pid).status() == psutil.STATUS_STOPPED

        with supervisor.suspended("sleeper"):
            await asyncio.to_thread(wait_for, "the process is stopped", is_stopped)
        await asyncio.to_thread(wait_for, "the process runs again", lambda: not is_stopped())


async def test_a_process_keeps_what_python_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    async with sleeper(tmp_path, "import sys; print(sys.dont_write_bytecode, flush=True)"):
        log = tmp_path / "log"
        await asyncio.to_thread(wait_for, "its word", lambda: len(log.read_text().splitlines()) > 1)
        assert log.read_text().splitlines()[1:] == ["False"]
