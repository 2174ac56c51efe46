"""The city page beside a whole run: the ledger's verdict so far, and a fault that turns it red before the run ends."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.browsing import browser
from tests.e2e.dashboard.test_page import visit
from tests.support import free_port, wait_for

DEMO = str(Path(sys.executable).parent / "demo")
PATIENCE_MS = 240_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A demo that runs until it is told to stop."""

    process: subprocess.Popen[str]
    out: Path
    page: str


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    port, out = free_port(), tmp_path / "out.txt"
    options = ["--no-spark", "--no-browser", "--exit-when-done", "--rate", "4", "--sabotage", "invented"]
    where = ["--dashboard-port", str(port), "--data-dir", str(tmp_path / "data")]
    with out.open("w") as file:
        process = subprocess.Popen([DEMO, *options, *where], stdout=file, stderr=file, text=True)
    try:
        wait_for("services", lambda: "services are ready" in out.read_text() or process.poll() is not None, 240)
        assert process.poll() is None, out.read_text()[-3000:]
        yield Run(process=process, out=out, page=f"http://127.0.0.1:{port}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("chromium_of_module")
async def test_the_verdict_turns_red_while_the_run_goes_on(run: Run) -> None:
    async with browser() as chromium, visit(chromium, run.page) as tab:
        verdict = tab.locator("#verdict")
        await expect(verdict).to_have_text("✓ agrees so far", timeout=PATIENCE_MS)
        await expect(verdict).to_have_text("✗ not balanced so far", timeout=PATIENCE_MS)
        assert run.process.poll() is None
        await expect(tab.locator("#ledger-note")).to_contain_text("was never decided by booking")
        line = tab.locator("#lines > li[data-line=outbox-log]")
        await expect(line).to_have_attribute("data-verdict", "disagrees")
        await expect(line).to_contain_text("ride.requested")
    run.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(run.process.wait, 300) == 1, run.out.read_text()[-3000:]
    assert "ledger so far: NOT balanced" in run.out.read_text()
    assert "Ledger: not balanced" in run.out.read_text()
