"""A client that books whole rides over HTTP, many at once: `python load.py HOST:PORT --rides 2000`."""

import argparse
import asyncio
import json
import random
import statistics
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import uvloop


class Connection:
    """One keep-alive HTTP/1.1 connection; as small as possible, as client and service share two cores."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: object, key: str, event_time: str | None) -> tuple[int, dict[str, Any]]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {self._host}",
            "Content-Type: application/json",
            f"Idempotency-Key: {key}",
            *([f"Event-Time: {event_time}"] if event_time else []),
            f"Content-Length: {len(content)}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
        return int(head[9:12]), json.loads(await reader.readexactly(length))


async def run(host: str, port: int, rides: int, concurrency: int, *, event_clock: bool) -> dict[str, float]:
    chance = random.Random(1)
    mark = uuid.uuid4().hex[:8]
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    moment = datetime(2014, 5, 1, 8, tzinfo=UTC)
    numbers = iter(range(rides))

    async def post(connection: Connection, path: str, body: object, key: str) -> dict[str, Any]:
        nonlocal moment
        moment += timedelta(milliseconds=20)
        begun = time.perf_counter()
        status, answer = await connection.post(path, body, key, moment.isoformat() if event_clock else None)
        latencies.append(time.perf_counter() - begun)
        statuses[status] = statuses.get(status, 0) + 1
        return answer

    def place() -> dict[str, float]:
        return {"lat": 40.70 + chance.random() * 0.1, "lng": -74.02 + chance.random() * 0.1}

    async def worker(index: int) -> None:
        connection = Connection(host, port)
        for number in numbers:
            key = f"{mark}-{number}"
            here = place()
            await post(connection, f"/drivers/d-{mark}-{index}/online", {"position": here}, f"{key}-on")
            quote = await post(
                connection, "/quotes", {"rider_id": f"r-{number}", "pickup": here, "dropoff": place()}, f"{key}-q"
            )
            ride = await post(connection, "/rides", {"quote_id": quote["quote_id"]}, f"{key}-r")
            if ride.get("driver_id") is None:
                continue
            base, driver = f"/rides/{ride['ride_id']}", {"driver_id": ride["driver_id"]}
            await post(connection, f"{base}/arrived", driver, f"{key}-a")
            await post(connection, f"{base}/start", driver, f"{key}-s")
            await post(connection, f"{base}/complete", {**driver, "distance_m": 4_000}, f"{key}-c")

    begun = time.perf_counter()
    await asyncio.gather(*(worker(index) for index in range(concurrency)))
    took = time.perf_counter() - begun
    latencies.sort()
    return {
        "requests": len(latencies),
        "seconds": round(took, 2),
        "requests_per_s": round(len(latencies) / took),
        "p50_ms": round(statistics.median(latencies) * 1e3, 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 1),
        **{f"status_{status}": count for status, count in sorted(statuses.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="HOST:PORT of booking")
    parser.add_argument("--rides", type=int, default=2_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--event-clock", action="store_true")
    arguments = parser.parse_args()
    host, port = arguments.address.rsplit(":", 1)
    found = uvloop.run(run(host, int(port), arguments.rides, arguments.concurrency, event_clock=arguments.event_clock))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
