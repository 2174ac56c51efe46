"""Counts the records of a topic in a faust agent; prints events per second and CPU per event as JSON.

python faust_consumer.py HOST:PORT TOPIC COUNT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

import faust

bootstrap, topic_name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
app = faust.App(
    f"bench-{os.getpid()}",
    broker=f"kafka://{bootstrap}",
    datadir=tempfile.mkdtemp(prefix="hailbus-faust-"),
    web_enabled=False,
    topic_disable_leader=True,
)
topic = app.topic(topic_name, value_serializer="raw", key_serializer="raw")


@app.agent(topic)
async def take(stream: Any) -> None:
    seen = 0
    wall = cpu = 0.0
    async for _ in stream:
        if seen == 0:
            wall, cpu = time.perf_counter(), time.process_time()
        seen += 1
        if seen == count:
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            result = {"events_per_s": count / wall, "cpu_us": cpu / count * 1e6, "per_core": count / cpu}
            os.write(1, json.dumps(result).encode())  # faust turns what is printed into log lines
            os._exit(0)  # a worker has no quick way to stop


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "worker", "-l", "error", "--without-web"]
    app.main()
