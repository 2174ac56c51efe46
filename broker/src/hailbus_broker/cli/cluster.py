"""`hailbus-broker cluster`: a cluster on this machine, each node a process."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from hailbus_broker import config
from hailbus_broker.cli.client import CLIENT_ID
from hailbus_broker.client import Client, UnreachableError
from hailbus_broker.log import LogDirectory, MetaProperties, StorageError, draw_uuid, encode_uuid
from hailbus_broker.log.log_directory import META_PROPERTIES, read_meta
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
STOP_S: Final = 60.0
"""A node that has not stopped after this is killed."""
ANSWER_S: Final = 5.0
ASK_AGAIN_S: Final = 0.01
_OWN: Final = (
    "process.roles",
    "node.id",
    "broker.id",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "controller.listener.names",
    "inter.broker.listener.name",
    "metrics.listen",
)
"""What the command sets itself, or what cannot be the same for all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A node before it runs.

    Attributes:
        properties: Its settings, as a file: `hailbus-broker serve --config` starts the node with it.
    """

    node_id: int
    data_dir: Path
    properties: Path
    client_address: str
    controller_address: str


def run_cluster(
    *,
    node_count: int,
    data_dir: str,
    host: str,
    port: int,
    file_text: str | None,
    environment: Mapping[str, str],
    settings: Sequence[str],
    log_level: str,
    only_prepares: bool,
) -> int:
    """Run a cluster until a signal stops it.

    Args:
        node_count: How many nodes: each is broker and controller.
        data_dir: Node 1 has its data in the folder `node-1` in it, and so on.
        host: Where all nodes listen.
        port: Node 1 serves clients here, node 2 at the next one; controllers listen at those behind. 0: any free ones.
        file_text: Settings of all nodes, as in a properties file.
        environment: Of the process; variables that are settings hold for all nodes.
        settings: `name=value` each, for all nodes.
        log_level: Least level that is logged.
        only_prepares: Whether the directories and the nodes' settings are made, and nothing is started: somebody else
            keeps the nodes running.

    Raises:
        StartError: The cluster cannot start.
    """
    options = config.load(file_text=file_text, environment=environment, settings=settings)
    for name in _OWN:
        if name in options.given:
            raise StartError(f"the command `cluster` sets {name} for each node itself: remove it")
    with ExitStack() as held:
        plans = _plan(node_count, Path(data_dir), host, _ports(host, port, 2 * node_count, held))
        _format(plans)
        voters = ",".join(f"{plan.node_id}@{plan.controller_address}" for plan in plans)
        for plan in plans:
            _write_properties(plan, voters, options.given)
        if only_prepares:
            for plan in plans:
                sys.stdout.write(f"config={plan.properties}\n")
            sys.stdout.write(f"bootstrap={','.join(plan.client_address for plan in plans)}\n")
            return 0
        # A signal waits until all processes are there and can be stopped.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        processes = _fork(plans, log_level, held)
        return asyncio.run(_run(plans, processes))


def _plan(node_count: int, directory: Path, host: str, ports: Sequence[int]) -> list[_Plan]:
    """Give each node its folder and its addresses.

    Raises:
        StartError: The directory holds a cluster with more nodes.
    """
    found = sorted(int(path.parent.name.removeprefix("node-")) for path in directory.glob(f"node-*/{META_PROPERTIES}"))
    if found and found[-1] > node_count:
        raise StartError(f"{directory} holds a cluster of {found[-1]} nodes; give --nodes {found[-1]}")
    return [
        _Plan(
            node_id=node_id,
            data_dir=directory / f"node-{node_id}",
            properties=directory / f"node-{node_id}.properties",
            client_address=f"{host}:{ports[node_id - 1]}",
            controller_address=f"{host}:{ports[node_count + node_id - 1]}",
        )
        for node_id in range(1, node_count + 1)
    ]


def _ports(host: str, first: int, count: int, held: ExitStack) -> list[int]:
    """Return the ports of the nodes; with 0 for the first one, free ones.

    Args:
        host: Where all nodes listen.
        first: Port of node 1, or 0.
        count: How many ports there are.
        held: Keeps free ports bound, so that the system gives them to nobody but the nodes, which share the address.

    Raises:
        StartError: There is no such address.
    """
    if first:
        if first + count - 1 > 65535:
            raise StartError(f"--listen: the cluster needs {count} ports from {first} on, and the last one is 65535")
        return list(range(first, first + count))
    ports = []
    for _ in range(count):
        holder = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        # Linux lets others bind the port that set this option, too, as long as this socket does not listen.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((host, 0))
        except OSError as error:
            raise StartError(f"cannot listen on {host}: {error}; choose another address with --listen") from error
        ports.append(holder.getsockname()[1])
    return ports


def _format(plans: Sequence[_Plan]) -> None:
    """Format the directories of a new cluster.

    Raises:
        StartError: Some nodes have a directory and others do not: theirs was lost.
    """
    disk, rng = RealDisk(), random.SystemRandom()
    known = [plan for plan in plans if (plan.data_dir / META_PROPERTIES).exists()]
    missing = [plan for plan in plans if plan not in known]
    if known and missing:
        cluster_id = _cluster_id(known[0], disk)
        lost = missing[0]
        raise StartError(
            f"{lost.data_dir} is missing or not formatted, and the cluster is not new: restore it from a backup, or, "
            f"if its data are lost and a majority of the nodes has theirs, run `hailbus-broker format --data-dir "
            f"{lost.data_dir} --cluster-id {cluster_id} --set node.id={lost.node_id}`"
        )
    cluster_id = encode_uuid(draw_uuid(rng))
    for plan in missing:
        directory_id = draw_uuid(rng)
        meta = MetaProperties(cluster_id=cluster_id, node_id=plan.node_id, directory_id=directory_id)
        try:
            LogDirectory.open(disk, str(plan.data_dir), new_meta=meta)
        except StorageError as error:
            raise StartError(
                f"cannot format {plan.data_dir}: {error}; give --data-dir a folder that can be written"
            ) from error


def _cluster_id(plan: _Plan, disk: RealDisk) -> str:
    try:
        found = read_meta(disk, str(plan.data_dir))
    except StorageError as error:
        raise StartError(f"cannot use the data directory: {error}") from error
    return found.cluster_id if found is not None else "ID"


def _write_properties(plan: _Plan, voters: str, given: Mapping[str, str]) -> None:
    lines = {
        "process.roles": "broker,controller",
        "node.id": str(plan.node_id),
        "listeners": f"PLAINTEXT://{plan.client_address},CONTROLLER://{plan.controller_address}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": str(plan.data_dir.absolute()),
        **given,
    }
    plan.properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")


# ---------------------------------------------------------------------- processes


class _NodeProcess:
    """A node that runs.

    Args:
        plan: Of the node.
        pid: Of its process.
        output: Read end of its standard output.

    Attributes:
        exit_code: None while it runs; negative for the signal that ended it.
        is_stopping: Whether the command has asked it to stop.
    """

    def __init__(self, plan: _Plan, pid: int, output: int) -> None:
        self.plan: Final = plan
        self.pid: Final = pid
        self.exit_code: int | None = None
        self.is_stopping = False
        self._output: Final = asyncio.StreamReader()
        self._pipe: Final = os.fdopen(output, "rb")

    async def bootstrap(self) -> str:
        """Wait until the node serves, and return its address for clients; an empty text when it has ended."""
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._output), self._pipe
        )
        line = (await self._output.readline()).decode()
        return line.removeprefix("bootstrap=").strip()

    def stop(self) -> None:
        """Ask the node to stop."""
        self.is_stopping = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the node at once."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def watch(self, waiting: ThreadPoolExecutor) -> None:
        """Wait in a thread for the end of the node, and report one that was not asked for."""
        _, status = await asyncio.get_running_loop().run_in_executor(waiting, os.waitpid, self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        if not self.is_stopping:
            _say(
                f"node {self.plan.node_id} has ended with code {self.exit_code}, the others go on; start it again with "
                f"`hailbus-broker serve --config {self.plan.properties}`"
            )


def _fork(plans: Sequence[_Plan], log_level: str, held: ExitStack) -> list[tuple[int, int]]:
    """Start a process for each node.

    The processes are forks of this one, which has imported what a node needs: imports are most of the CPU time of a
    start, and happen once. There is no event loop and no thread yet.

    Returns:
        Id and standard output of each process.
    """
    importlib.import_module("hailbus_broker.cli.preloaded")

    gc.freeze()  # the pages with these objects stay shared
    sys.stdout.flush()
    sys.stderr.flush()
    found = []
    for plan in plans:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            held.close()
            os.close(reading)
            _become_node(plan, writing, log_level)
        os.close(writing)
        found.append((pid, reading))
    return found


def _become_node(plan: _Plan, output: int, log_level: str) -> NoReturn:
    """Be a node until it ends, and then end."""
    code = 1
    try:
        os.dup2(output, sys.stdout.fileno())
        os.close(output)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = _serve(plan, log_level)
    except BaseException as error:  # noqa: BLE001 - nothing may return into what the parent does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(plan: _Plan, log_level: str) -> int:
    from hailbus_broker.cli.serve import serve

    text = plan.properties.read_text("utf-8")
    try:
        return serve(file_text=text, environment=os.environ, settings=(), flags={}, log_level=log_level)
    except StartError as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


async def _run(plans: Sequence[_Plan], processes: Sequence[tuple[int, int]]) -> int:
    stop = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    nodes = [_NodeProcess(plan, pid, output) for plan, (pid, output) in zip(plans, processes, strict=True)]
    waiting = ThreadPoolExecutor(len(nodes))
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(_start(nodes))
    watching = asyncio.ensure_future(_watch(nodes, waiting))
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return 0
        failed = [node for node, address in zip(nodes, starting.result(), strict=True) if not address]
        if failed:
            raise StartError(f"node {failed[0].plan.node_id} does not start: its reason is in the lines above")
        sys.stdout.write(f"bootstrap={','.join(starting.result())}\n")
        sys.stdout.flush()
        for node in nodes:
            facts = {"node_id": node.plan.node_id, "pid": node.pid, "config": str(node.plan.properties)}
            _say(f"node {json.dumps(facts)}")
        await asyncio.wait([watching, stopping], return_when=asyncio.FIRST_COMPLETED)
        return 0 if stop.is_set() else 1
    finally:
        starting.cancel()
        stopping.cancel()
        for node in nodes:
            node.stop()
        _, unfinished = await asyncio.wait([watching], timeout=STOP_S)
        if unfinished:
            for node in nodes:
                node.kill()
            await watching
        waiting.shutdown()


async def _start(nodes: Sequence[_NodeProcess]) -> list[str]:
    """Wait until all nodes serve and each names all of them to clients, or until one has ended; return addresses."""

    def all_run() -> bool:
        return all(node.exit_code is None for node in nodes)

    addresses = await _until_all_serve(nodes)
    if all(addresses):
        await asyncio.gather(*(until_it_names(address, len(nodes), all_run) for address in addresses))
    return addresses


async def until_it_names(address: str, count: int, all_run: Callable[[], bool]) -> None:
    """Wait until a node's metadata have all brokers: it hears of the last one a moment after that one serves.

    A client that saw all of them and then asks a node that does not know one drops that one, with the requests that
    wait for its responses.

    Args:
        address: HOST:PORT of the node.
        count: How many brokers there are.
        all_run: Whether no node has ended; once one has, nobody waits for it.
    """
    client = Client(address, CLIENT_ID, timeout_s=ANSWER_S)
    request = MetadataRequest(topics=[])
    try:
        while all_run() and len((await client.ask(ApiKey.METADATA, 12, request)).brokers) < count:  # noqa: ASYNC110 - another process knows
            await asyncio.sleep(ASK_AGAIN_S)
    except UnreachableError as error:
        # The line of what serves must come nevertheless: the others go on.
        _say(f"the node at {address} does not answer: {error}")
    finally:
        client.close()


async def _until_all_serve(nodes: Sequence[_NodeProcess]) -> list[str]:
    """Wait until all nodes serve, or until one has ended; return their addresses."""
    waiting = [asyncio.ensure_future(node.bootstrap()) for node in nodes]
    pending = set(waiting)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(not task.result() for task in done):
            break
    for task in pending:
        task.cancel()
    return [task.result() if task.done() and not task.cancelled() else "pending" for task in waiting]


async def _watch(nodes: Sequence[_NodeProcess], waiting: ThreadPoolExecutor) -> None:
    await asyncio.gather(*(node.watch(waiting) for node in nodes))


def _say(sentence: str) -> None:
    sys.stderr.write(f"hailbus-broker: {sentence}\n")
