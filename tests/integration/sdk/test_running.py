"""`hailbus run`: services and applications, several processes, reloading; signals and deaths."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from tests.support import wait_for


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


# Nothing of it needs a broker: what a process handles is not what these tests are about.
IDLE = """
import os, sys
from hailbus import Service
from hailbus.testing import MemoryBus

svc = Service("till", bus=MemoryBus())
print(f"made {os.getpid()}", flush=True)
"""
APP = """
from fastapi import FastAPI

app = FastAPI(lifespan=svc.lifespan)
app.include_router(svc.health())

@app.get("/pid")
async def pid() -> int:
    return os.getpid()
"""

Started = subprocess.Popen[str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    running: list[Started] = []

    def run(*words: str) -> Started:
        with (tmp_path / "out").open("a") as out, (tmp_path / "err").open("a") as err:
            process = subprocess.Popen(
                [str(Path(sys.executable).with_name("hailbus")), "run", *words],
                cwd=tmp_path,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=out,
                stderr=err,
                text=True,
            )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def made(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"made (\d+)", (folder / "out").read_text())]


def started(folder: Path) -> int:
    return (folder / "err").read_text().count("service_started")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_service_with_health_routes_ends_with_a_signal(start: Callable[..., Started], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(IDLE)
    process = start("shop:svc", "--listen", "127.0.0.1:0")
    wait_for("the address", lambda: "listening=" in (tmp_path / "out").read_text())
    address = (tmp_path / "out").read_text().partition("listening=")[2].split()[0]
    assert httpx.get(f"http://{address}/readyz").json() == {"status": "ok", "lag_seconds": {}}
    process.terminate()
    assert process.wait(60) == 0


def test_workers_share_an_address_are_replaced_when_they_die_and_end_together(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(IDLE + APP)
    process = start("shop:app", "--workers", "2", "--listen", "127.0.0.1:0")
    wait_for("both workers", lambda: (tmp_path / "out").read_text().count("listening=") == 2)
    (address,) = set(re.findall(r"listening=(\S+)", (tmp_path / "out").read_text()))
    _, first, second = made(tmp_path)  # the supervisor imports it too, to say once what is wrong with it
    assert httpx.get(f"http://{address}/pid").json() in {first, second}
    os.kill(first, signal.SIGKILL)
    wait_for("a third worker", lambda: (tmp_path / "out").read_text().count("listening=") == 3)
    third = made(tmp_path)[-1]
    assert f"worker {first} ended with -9; starting another" in (tmp_path / "err").read_text()
    process.terminate()
    assert process.wait(60) == 0
    assert not [pid for pid in (second, third) if is_alive(pid)]


def test_workers_that_cannot_live_end_all_with_a_code(start: Callable[..., Started], tmp_path: Path) -> None:
    dies = "import os, sys\nif '--parent-fd' in sys.argv: os._exit(7)\n"
    (tmp_path / "dies.py").write_text(dies + IDLE)
    process = start("dies:svc", "--workers", "2")
    assert process.wait(120) == 1
    assert "5 workers died within 60 s, the last with 7; all stop" in (tmp_path / "err").read_text()
    refuses = "import sys\nif '--parent-fd' in sys.argv: sys.exit(2)\n"
    (tmp_path / "refuses.py").write_text(refuses + IDLE)
    process = start("refuses:svc", "--workers", "2")
    assert process.wait(120) == 2


def test_workers_end_when_their_supervisor_is_killed(start: Callable[..., Started], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(IDLE)
    process = start("shop:svc", "--workers", "2")
    wait_for("both workers", lambda: started(tmp_path) == 2)
    process.kill()
    process.wait()
    wait_for("the end of the workers", lambda: not [pid for pid in made(tmp_path)[1:] if is_alive(pid)])


def test_reload_starts_again_when_a_file_changes_also_after_a_mistake(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    module = tmp_path / "shop.py"
    module.write_text(IDLE)
    process = start("shop:svc", "--reload")
    wait_for("the service", lambda: started(tmp_path) == 1)
    (first,) = made(tmp_path)
    module.write_text(IDLE + "this is no Python\n")
    wait_for("the mistake", lambda: "SyntaxError" in (tmp_path / "err").read_text())
    assert not is_alive(first)
    assert process.poll() is None
    module.write_text(IDLE)
    wait_for("the service again", lambda: started(tmp_path) == 2)
    process.terminate()
    assert process.wait(60) == 0
    assert not [pid for pid in made(tmp_path) if is_alive(pid)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["shop:nothing"], "module 'shop' has no 'nothing'"),
        (["shop:os"], "'shop:os' is neither a hailbus.Service nor a FastAPI application"),
        (["shop:svc", "--workers", "2", "--reload"], "--workers and --reload exclude each other; reload one process"),
        (["shop:svc", "--workers", "2", "--listen", "nowhere"], "'nowhere' is no address to listen on"),
    ],
)
def test_what_cannot_run_is_said_once(
    words: list[str], sentence: str, start: Callable[..., Started], tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(IDLE)
    assert start(*words).wait(60) == 2
    assert (tmp_path / "err").read_text().count(sentence) == 1
