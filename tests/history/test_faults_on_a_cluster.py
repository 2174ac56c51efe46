"""Concurrent clients while the nodes of a cluster are killed, suspended, restarted and cut off one another.

One test goes through a list of four faults. The other one draws faults from a seed: `HAILBUS_FAULTS_SECONDS` sets how
long (default 15; `just faults` takes 3600), and `HAILBUS_SEED` replays the same choices.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.history.cluster import Cluster, Place, System, cluster, restart_one_by_one
from tests.history.network import CLIENTS, Network, in_new_network, network
from tests.history.workload import Workload, create_topics, has_resumed
from tests.needs import need
from tests.support import wait_for

SECONDS = float(os.environ.get("HAILBUS_FAULTS_SECONDS", "15"))
IS_LONG = SECONDS > 60
SETTINGS = {
    # Faults are short: a silent node is fenced, and a silent follower leaves the ISR, within them.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}


NODES = (1, 2, 3)
DELAYED = 3
"""The node whose broker is behind a proxy."""
PORT = 9092
BEHIND_PROXY = 9095
SEED = 1
"""Of the test whose faults are not drawn."""
SOCKET_TIMEOUT_MS = 3000
"""Of its clients: they give up a suspended node soon after it has been fenced."""


class Faults:
    """What happens to the nodes: each method is one fault, from its beginning until it is healed."""

    def __init__(
        self, running: Cluster, net: Network, proxy: subprocess.Popen[str], rng: random.Random, work: Workload
    ) -> None:
        self.cluster = running
        self.net = net
        self.proxy = proxy
        self.rng = rng
        self.work = work
        self.counts: Counter[str] = Counter()
        self.longest_s: dict[str, float] = {}
        """By fault: the longest time from its end until the cluster was whole."""

    def any_node(self) -> int:
        return self.rng.choice(sorted(self.cluster.nodes))

    def wait(self, least_s: float, most_s: float) -> None:
        """Let the fault last."""
        self.work.stopped.wait(self.rng.uniform(least_s, most_s))

    def kill_one(self) -> None:
        node = self.cluster.nodes[self.any_node()]
        node.kill()
        self.wait(0, 4)
        node.start()

    def kill_a_leader(self) -> None:
        node = self.cluster.nodes[self.cluster.leader("history", self.rng.randrange(4))]
        node.kill()
        self.wait(0, 6)
        node.start()

    def kill_two(self) -> None:
        """Without a majority nothing is acknowledged; after its return clients make progress."""
        nodes = [self.cluster.nodes[number] for number in self.rng.sample(sorted(self.cluster.nodes), 2)]
        for node in nodes:
            node.kill()
            self.wait(0, 1)
        self.wait(0, 3)
        for node in nodes:
            node.start()

    def kill_all(self) -> None:
        for node in self.cluster.nodes.values():
            node.signal(signal.SIGKILL)
        for node in self.cluster.nodes.values():
            node.kill()
            node.start()

    def suspend_one(self) -> None:
        node = self.cluster.nodes[self.any_node()]
        node.suspend()
        self.wait(0.5, 8)
        node.resume()

    def restart_in_order(self) -> None:
        restart_one_by_one(self.cluster, self.rng)

    def cut_one_off(self) -> None:
        """Neither nodes nor clients reach a node."""
        one = self.any_node()
        everybody = [CLIENTS, *self.others(one)]
        self.net.drop(one, inbound=everybody, outbound=everybody)
        self.wait(1, 8)
        self.net.heal()

    def cut_one_from_nodes(self) -> None:
        """Clients reach a node that no other node does: it must not acknowledge on its own."""
        one = self.any_node()
        self.net.drop(one, inbound=self.others(one), outbound=self.others(one))
        self.wait(1, 8)
        self.net.heal()

    def cut_two_apart(self) -> None:
        """Two nodes reach the third one, but not each other."""
        one = self.any_node()
        other = self.rng.choice(self.others(one))
        self.net.drop(one, inbound=[other], outbound=[other])
        self.wait(1, 8)
        self.net.heal()

    def cut_one_way(self) -> None:
        """A node hears the others, and they do not hear it."""
        one = self.any_node()
        self.net.drop(one, outbound=self.others(one))
        self.wait(1, 8)
        self.net.heal()

    def delay_one(self) -> None:
        """Everything that the last node is asked, and all that it answers, is late."""
        self.set_delay(self.rng.choice((0.02, 0.2, 1.0)))
        self.wait(1, 8)
        self.set_delay(0)

    def set_delay(self, seconds: float) -> None:
        assert self.proxy.stdin is not None
        self.proxy.stdin.write(f"{seconds}\n")
        self.proxy.stdin.flush()

    def others(self, node_id: int) -> list[str]:
        return [self.net.address(other) for other in self.cluster.nodes if other != node_id]

    def run(self, seconds: float) -> None:
        """Let faults happen until the time is over, each kind once before any comes again."""
        ends = time.monotonic() + seconds
        left: list[Callable[[], None]] = []
        while (time.monotonic() < ends or len(self.counts) < (len(self.all()) if IS_LONG else 3)) and (
            not self.work.failures
        ):
            left = left or self.rng.sample(self.all(), len(self.all()))
            fault = left.pop()
            self.counts[fault.__name__] += 1
            fault()
            healed = time.monotonic()
            if self.rng.random() < 0.6:
                self.cluster.wait_until_whole()
                took = time.monotonic() - healed
                self.longest_s[fault.__name__] = max(self.longest_s.get(fault.__name__, 0), took)
            self.wait(0, 4)

    def all(self) -> list[Callable[[], None]]:
        return [
            self.kill_one,
            self.kill_a_leader,
            self.kill_two,
            self.kill_all,
            self.suspend_one,
            self.restart_in_order,
            self.cut_one_off,
            self.cut_one_from_nodes,
            self.cut_two_apart,
            self.cut_one_way,
            self.delay_one,
        ]


@pytest.mark.timeout(600)
@pytest.mark.needs("network namespaces")
def test_clients_make_progress_during_and_after_each_fault(tmp_path: Path) -> None:
    def run() -> None:
        with network(NODES) as net:
            places = {number: place(net, number, is_delayed=False) for number in NODES}
            with cluster("hailbus", tmp_path, places, SETTINGS) as running:
                fail_in_order(running, net)

    in_new_network(run)


def fail_in_order(running: Cluster, net: Network) -> None:
    """Run clients while a leader is killed, suspended and cut off, and all nodes restart; check the history."""
    create_topics(running.bootstrap, replicas=3)
    work = Workload(
        running.bootstrap, rate=20, may_be_stale=True, life_s=(3, 5), each=1, socket_timeout_ms=SOCKET_TIMEOUT_MS
    )
    work.start_all(SEED)
    work.start(work.produce_by_aiokafka, "aiokafka", 0)
    began = time.monotonic()
    steps: list[str] = []

    def note(step: str) -> None:
        steps.append(f"{step} after {time.monotonic() - began:.1f} s")

    try:
        work.wait_for_progress()
        note("progress")
        for partition, fault in enumerate((killed, suspended, cut_off)):
            with fault(running, net, running.leader("history", partition)):
                # The other two nodes are a majority, and satisfy min.insync.replicas.
                work.wait_for_progress(f"sends to partition {partition}", "transactions")
                note(f"{fault.__name__}, progress")
            running.wait_until_whole()
            note("whole")
        restart_one_by_one(running, random.Random(SEED))
        note("restarted")
        work.wait_for_progress()
        note("progress")
        wait_for("a killed member resumed", lambda: bool(work.failures) or has_resumed(work.handed), seconds=120)
    finally:
        work.stopped.set()
    work.stop_all(SEED)
    lives = sum(node.lives for node in running.nodes.values())
    work.check(work.history(), seed=SEED, ran=f"{lives} lives, {', '.join(steps)}")


@contextlib.contextmanager
def killed(running: Cluster, _: Network, node_id: int) -> Iterator[None]:
    node = running.nodes[node_id]
    node.kill()
    yield
    node.start()


@contextlib.contextmanager
def suspended(running: Cluster, _: Network, node_id: int) -> Iterator[None]:
    node = running.nodes[node_id]
    node.suspend()
    yield
    node.resume()


@contextlib.contextmanager
def cut_off(running: Cluster, net: Network, node_id: int) -> Iterator[None]:
    """Neither nodes nor clients reach a node."""
    everybody = [CLIENTS, *(net.address(other) for other in running.nodes if other != node_id)]
    net.drop(node_id, inbound=everybody, outbound=everybody)
    yield
    net.heal()


@pytest.mark.timeout(2 * SECONDS + 400)
@pytest.mark.needs("network namespaces")
@pytest.mark.slow
@pytest.mark.parametrize("system", ["hailbus", "apache"])
def test_no_promise_is_broken_while_nodes_fail(system: System, tmp_path: Path) -> None:
    seed = int(os.environ.get("HAILBUS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"HAILBUS_SEED={seed} HAILBUS_FAULTS_SECONDS={SECONDS:.0f}", flush=True)
    rng = random.Random(seed)

    def run() -> None:
        with network(NODES) as net:
            places = {number: place(net, number, is_delayed=number == DELAYED) for number in NODES}
            proxy: list[str | Path] = [sys.executable, Path(__file__).with_name("delaying_proxy.py")]
            host = places[DELAYED].host
            with (
                subprocess.Popen(
                    [*net.prefix(DELAYED), *proxy, f"{host}:{PORT}", f"{host}:{BEHIND_PROXY}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                ) as delaying,
                cluster(system, tmp_path, places, SETTINGS) as running,
            ):
                fail(running, net, delaying, rng, seed)

    in_new_network(run)


def place(net: Network, number: int, *, is_delayed: bool) -> Place:
    """Return where a node runs, behind the proxy or not."""
    behind = BEHIND_PROXY if is_delayed else None
    return Place(
        host=net.address(number),
        port=PORT,
        controller_port=PORT + 1,
        listen_port=behind,
        prefix=net.prefix(number),
    )


def fail(running: Cluster, net: Network, delaying: subprocess.Popen[str], rng: random.Random, seed: int) -> None:
    """Run clients and faults, and check the history."""
    create_topics(running.bootstrap, replicas=3)
    work = Workload(
        running.bootstrap,
        rate=40,
        may_be_stale=True,
        life_s=(10, 30) if IS_LONG else (6, 20),
        socket_timeout_ms=10_000,
    )
    faults = Faults(running, net, delaying, rng, work)
    work.start_all(seed)
    work.start(work.produce_by_aiokafka, "aiokafka", 0)
    if IS_LONG:
        need("apache kafka")
        work.start(work.produce_by_java, "java")
    try:
        faults.run(SECONDS)
        running.wait_until_whole()
        work.wait_for_progress(seconds=120)
        wait_for("a killed member resumed", lambda: bool(work.failures) or has_resumed(work.handed), seconds=180)
    finally:
        work.stopped.set()
    work.stop_all(seed)
    acknowledged = {send.process for send in work.sent if send.outcome == "ok"}
    assert {"aiokafka", *(["java"] if IS_LONG else [])} <= acknowledged, acknowledged
    slowest = {name: f"{took:.1f} s" for name, took in sorted(faults.longest_s.items())}
    lives = sum(node.lives for node in running.nodes.values())
    ran = f"{lives} lives, faults {dict(sorted(faults.counts.items()))}, slowest until whole {slowest}"
    work.check(work.history(), seed=seed, ran=ran)
