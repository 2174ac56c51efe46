"""Processes that are killed on purpose, as often as somebody clicks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from hailbus_demo.supervise import processes
from hailbus_demo.supervise.processes import CRASHES_IN_A_ROW, ProcessSpec, Supervisor


async def ready() -> bool:
    return True


async def test_a_process_that_is_killed_often_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FIRST_BACKOFF_S", 0.01)
    supervisor = Supervisor(say=lambda _: None)
    sleeper = (sys.executable, "-c", "import time; time.sleep(600)")
    await supervisor.start(ProcessSpec(name="sleeper", argv=sleeper, env={}, log=tmp_path / "log", ready=ready))
    try:
        for _ in range(CRASHES_IN_A_ROW + 1):
            await supervisor.wait_ready("sleeper")
            await supervisor.kill("sleeper")
        async with asyncio.timeout(60):
            await supervisor.wait_ready("sleeper")
        child = supervisor.children["sleeper"]
        assert (child.state, child.restarts) == ("ready", CRASHES_IN_A_ROW + 1)
        assert not supervisor.failure.done()
    finally:
        await supervisor.stop("sleeper")
        supervisor.kill_all()
