"""What a broker loads before it serves."""

from __future__ import annotations

import subprocess
import sys

NOT_NEEDED_TO_SERVE = {"structlog", "importlib.metadata", "rich", "pydantic", "greenlet"}


def test_serving_loads_nothing_that_costs_time_and_is_not_needed() -> None:
    source = "import sys, hailbus_broker.cli.serve, hailbus_broker.server.handlers.table; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & NOT_NEEDED_TO_SERVE
    assert {"asyncio", "uvloop", "hailbus_broker"} <= loaded
