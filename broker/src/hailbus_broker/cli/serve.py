"""`hailbus-broker serve`."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvloop

from hailbus_broker import config, logging
from hailbus_broker.logging import get_logger
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.node import Node
from hailbus_broker.runtime.roles import BROKER
from hailbus_broker.server.listener import ControllerServer, Server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hailbus_broker.cluster.options import BrokerConfig

log: Any = get_logger()

COLLECT_ALL_EVERY_S = 300.0
"""A collection of everything looks at each object that lives, the tail cache's tens of thousands among them: nobody is
answered for 25 to 70 ms. CPython would do it every few seconds while a log grows; nearly all garbage dies young."""
GENERATIONS = (700, 10, 100_000)
"""CPython's own for the young; the last one so high that only the timer collects everything."""


def serve(
    *,
    file_text: str | None,
    environment: Mapping[str, str],
    settings: Sequence[str],
    flags: Mapping[str, str],
    log_level: str,
) -> int:
    """Run a node until a signal stops it.

    Raises:
        StartError: It cannot start.
    """
    options = config.load(file_text=file_text, environment=environment, settings=settings, flags=flags)
    logging.configure(log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(_server(options)))


def _server(options: BrokerConfig) -> Server | ControllerServer:
    """Make what the settings' roles ask for.

    Raises:
        StartError: The settings contradict each other.
    """
    roles = options["process.roles"]
    if not roles or BROKER in roles:
        return Server(Node(options))
    from hailbus_broker.runtime.controller_node import ControllerNode

    return ControllerServer(ControllerNode(options))


async def _run(server: Server | ControllerServer) -> int:
    stop = asyncio.Event()
    core = server.node.core
    core.when_unfit = stop.set
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not await _start(server, stop):
        return 0 if core.reason_to_stop is None else 1
    metrics_server = None
    metrics_address = core.config["metrics.listen"]
    if metrics_address is not None:
        from hailbus_broker.metrics import Metrics, MetricsServer

        assert server.dispatcher is not None
        metrics_server = MetricsServer(Metrics(server.dispatcher, max_partitions=core.config["metrics.max.partitions"]))
        try:
            metrics_address = await metrics_server.start(metrics_address)
        except StartError:
            await server.stop()
            raise
    # What was made so far lives as long as the process: the collector need not look at it again.
    gc.freeze()
    gc.set_threshold(*GENERATIONS)
    gc.enable()
    sys.stdout.write(f"{'bootstrap' if isinstance(server, Server) else 'controller'}={server.bootstrap}\n")
    if metrics_address is not None:
        sys.stdout.write(f"metrics=http://{metrics_address}/metrics\n")
    sys.stdout.flush()
    # In a thread, since the first line loads structlog, and clients are served already.
    facts = {"bootstrap": server.bootstrap, "node_id": core.node_id, "data_dir": core.data.path}
    await loop.run_in_executor(None, lambda: log.info("broker_started", **facts))
    await _collecting_until(stop)
    log.info("broker_stopping")
    if metrics_server is not None:
        await metrics_server.stop()
    await server.stop()
    log.info("broker_stopped")
    return 0 if core.reason_to_stop is None else 1


async def _start(server: Server | ControllerServer, stop: asyncio.Event) -> bool:
    """Start a node, and return whether it serves: a node of a cluster may wait for others, and be stopped meanwhile.

    Raises:
        StartError: It cannot start.
    """
    starting = asyncio.ensure_future(server.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done() or server.node.core.reason_to_stop is not None:
        starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
        return True
    return False


async def _collecting_until(stop: asyncio.Event) -> None:
    while True:
        try:
            async with asyncio.timeout(COLLECT_ALL_EVERY_S):
                await stop.wait()
        except TimeoutError:
            gc.collect()
        else:
            return
