"""A network that only this process sees, with a part of its own for each node, so that packets can be dropped.

Everything lies in network namespaces that end with their processes. The machine's own network does not change. Needs
root, `ip`, `nsenter`, `unshare` and `iptables`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar

T = TypeVar("T")
CLONE_NEWNET: Final = 0x40000000
PREFIX: Final = "10.99.0."
CLIENTS: Final = f"{PREFIX}254"


def in_new_network(function: Callable[[], T]) -> T:
    """Run a function in a thread with a network namespace of its own; threads and processes that it starts share it."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNET):  # of this thread only
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            results.append(function())
        except BaseException as failure:  # noqa: BLE001 - raised by the caller
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def sh(*lines: str) -> None:
    done = subprocess.run(["sh", "-ec", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Network:
    """A bridge in the namespace of the calling thread, and a namespace on it for each node."""

    def __init__(self, node_ids: Collection[int]) -> None:
        self._holders = {node_id: self._hold() for node_id in node_ids}
        sh("ip link set lo up", "ip link add nodes type bridge", f"ip addr add {CLIENTS}/24 dev nodes")
        sh("ip link set nodes up")
        for node_id, holder in self._holders.items():
            link = f"node{node_id}"
            sh(f"ip link add {link} type veth peer name eth0 netns {holder.pid}", f"ip link set {link} master nodes up")
            self.run_in(
                node_id,
                "ip link set lo up",
                f"ip addr add {self.address(node_id)}/24 dev eth0",
                "ip link set eth0 up",
            )

    @staticmethod
    def _hold() -> subprocess.Popen[str]:
        """Start a process that keeps a namespace until its input is closed."""
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo here; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    def address(self, node_id: int) -> str:
        return f"{PREFIX}{node_id}"

    def prefix(self, node_id: int) -> list[str]:
        """The words before a command that is to run in a node's namespace."""
        return ["nsenter", f"--net=/proc/{self._holders[node_id].pid}/ns/net"]

    def run_in(self, node_id: int, *lines: str) -> None:
        done = subprocess.run(
            [*self.prefix(node_id), "sh", "-ec", "\n".join(lines)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def drop(self, node_id: int, *, inbound: Collection[str] = (), outbound: Collection[str] = ()) -> None:
        """Drop what a node gets from some addresses, and what it sends to some."""
        lines = [f"iptables -A INPUT -s {address} -j DROP" for address in inbound]
        lines += [f"iptables -A OUTPUT -d {address} -j DROP" for address in outbound]
        self.run_in(node_id, *lines)

    def heal(self) -> None:
        """Let everything through again."""
        for node_id in self._holders:
            self.run_in(node_id, "iptables -F")

    def close(self) -> None:
        for holder in self._holders.values():
            holder.communicate()


@contextlib.contextmanager
def network(node_ids: Collection[int]) -> Iterator[Network]:
    """A network until the block ends. The calling thread must have a namespace of its own: `in_new_network`."""
    made = Network(node_ids)
    try:
        yield made
    finally:
        made.close()
