"""The servers that a test run shares: started once, stopped whatever ends the run."""

import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conformance.conftest import ROOT
from tests.servers import Keeper, SharedServers, Started
from tests.support import wait_for

OWNER = """
import signal, sys
from pathlib import Path
from tests.servers import Keeper
keeper = Keeper(Path(sys.argv[1]))
print("ready", flush=True)
signal.pause()
"""


def test_a_server_is_started_once_for_all(tmp_path: Path) -> None:
    starts: list[Path] = []

    def start(directory: Path) -> Started:
        starts.append(directory)
        return Started(address=f"127.0.0.1:{len(starts)}", stop="true")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: SharedServers(tmp_path).address("kafka", start), range(8)))
    assert found == ["127.0.0.1:1"] * 8
    assert starts == [tmp_path / "kafka"]


def test_a_start_that_fails_is_tried_again_by_the_next_test(tmp_path: Path) -> None:
    def fails(directory: Path) -> Started:
        raise OSError(directory)

    with ThreadPoolExecutor(1) as threads:
        assert isinstance(threads.submit(SharedServers(tmp_path).address, "kafka", fails).exception(), OSError)
    started = Started(address="127.0.0.1:9", stop="true")
    assert SharedServers(tmp_path).address("kafka", lambda _: started) == started.address


def stops(marker: Path) -> Started:
    return Started(address="127.0.0.1:9", stop=f"touch {shlex.quote(str(marker))}")


def test_the_end_of_the_run_stops_its_servers(tmp_path: Path) -> None:
    folder, marker = tmp_path / "run", tmp_path / "stopped"
    folder.mkdir()
    keeper = Keeper(folder)
    SharedServers(folder).address("kafka", lambda _: stops(marker))
    keeper.stop()
    assert marker.exists()
    assert not folder.exists()


def test_a_run_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    folder, marker = tmp_path / "run", tmp_path / "stopped"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, folder], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        SharedServers(folder).address("kafka", lambda _: stops(marker))
        owner.send_signal(signal.SIGKILL)
    wait_for("the servers to be stopped", lambda: marker.exists() and not folder.exists())
