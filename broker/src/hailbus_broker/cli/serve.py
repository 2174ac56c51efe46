"""`hailbus-broker serve`."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Any

import uvloop

from hailbus_broker import config, logging
from hailbus_broker.logging import get_logger
from hailbus_broker.runtime.node import Node
from hailbus_broker.server.listener import Server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log: Any = get_logger()


def serve(
    *,
    file_text: str | None,
    environment: Mapping[str, str],
    settings: Sequence[str],
    flags: Mapping[str, str],
    log_level: str,
) -> int:
    """Run a broker until it is told to stop.

    Raises:
        StartError: It cannot start.
    """
    options = config.load(file_text=file_text, environment=environment, settings=settings, flags=flags)
    logging.configure(log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(Server(Node(options))))
    return 0


async def _run(server: Server) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    # What was made so far lives as long as the process: the collector need not look at it again.
    gc.freeze()
    gc.enable()
    sys.stdout.write(f"bootstrap={server.bootstrap}\n")
    sys.stdout.flush()
    # In a thread, since the first line loads structlog, and clients are served already.
    facts = {"bootstrap": server.bootstrap, "node_id": server.node.node_id, "data_dir": server.node.data.path}
    await loop.run_in_executor(None, lambda: log.info("broker_started", **facts))
    await stop.wait()
    log.info("broker_stopping")
    await server.stop()
    log.info("broker_stopped")
