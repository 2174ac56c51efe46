"""Ports of tests: no process is given one that another process of tests has, and none comes again soon."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.support import PORTS_OF_A_PROCESS, free_port

DRAW = "from tests.support import free_port; print(*(free_port() for _ in range(100)), flush=True); input()"


def test_no_two_processes_are_given_the_same_port() -> None:
    command = [sys.executable, "-c", DRAW]
    root = Path(__file__).resolve().parents[3]
    drawn = [free_port() for _ in range(100)]
    with (
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        for process in (one, other):
            assert process.stdout is not None
            drawn += [int(port) for port in process.stdout.readline().split()]
        for process in (one, other):
            process.communicate("\n")
    assert len(drawn) == len(set(drawn)) == 300


def test_further_ports_are_free_and_not_offered_afterwards() -> None:
    first = free_port(also=(1, 10))
    following = [free_port() for _ in range(20)]
    assert not {first, first + 1, first + 10} & set(following)


def test_a_port_that_somebody_listens_on_is_left_out() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in [free_port() for _ in range(PORTS_OF_A_PROCESS)]
