"""A client that books whole rides over HTTP, many at once: `python load.py HOST:PORT --rides 2000`."""

import argparse
import asyncio
import json
import random
import statistics
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvloop
from booking.issue import sign


class Connection:
    """One keep-alive HTTP/1.1 connection; as small as possible, as client and service share two cores."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(
        self, path: str, body: object, key: str, event_time: str | None, token: str | None
    ) -> tuple[int, dict[str, Any]]:
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
            *([f"Authorization: Bearer {token}"] if token else []),
            f"Content-Length: {len(content)}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
        return int(head[9:12]), json.loads(await reader.readexactly(length))


async def run(
    host: str, port: int, rides: int, concurrency: int, *, event_clock: bool, signing_key: dict[str, Any] | None
) -> dict[str, float]:
    chance = random.Random(1)
    mark = uuid.uuid4().hex[:8]
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    moment = datetime(2014, 5, 1, 8, tzinfo=UTC)
    numbers = iter(range(rides))

    # Signed beforehand: what is measured is booking, which sees each token for the first time.
    def token_of(role: str, subject: str) -> str | None:
        if signing_key is None:
            return None
        return sign(signing_key, role=role, subject=subject, lasts=timedelta(hours=1))

    riders = [token_of("rider", f"r-{number}") for number in range(rides)]
    drivers = [token_of("driver", f"d-{mark}-{index}") for index in range(concurrency)]

    async def post(connection: Connection, path: str, body: object, key: str, token: str | None) -> dict[str, Any]:
        nonlocal moment
        moment += timedelta(milliseconds=20)
        begun = time.perf_counter()
        event_time = moment.isoformat() if event_clock else None
        status, answer = await connection.post(path, body, key, event_time, token)
        latencies.append(time.perf_counter() - begun)
        statuses[status] = statuses.get(status, 0) + 1
        return answer

    def place() -> dict[str, float]:
        return {"lat": 40.70 + chance.random() * 0.1, "lng": -74.02 + chance.random() * 0.1}

    async def worker(index: int) -> None:
        connection = Connection(host, port)
        for number in numbers:
            key = f"{mark}-{number}"
            here, driver_id, by_rider = place(), f"d-{mark}-{index}", riders[number]
            await post(connection, f"/drivers/{driver_id}/online", {"position": here}, f"{key}-on", drivers[index])
            body = {"rider_id": f"r-{number}", "pickup": here, "dropoff": place()}
            quote = await post(connection, "/quotes", body, f"{key}-q", by_rider)
            ride = await post(connection, "/rides", {"quote_id": quote["quote_id"]}, f"{key}-r", by_rider)
            if ride.get("driver_id") is None:
                continue
            base, driver = f"/rides/{ride['ride_id']}", {"driver_id": ride["driver_id"]}
            by_driver = drivers[int(ride["driver_id"].rpartition("-")[2])]
            await post(connection, f"{base}/arrived", driver, f"{key}-a", by_driver)
            await post(connection, f"{base}/start", driver, f"{key}-s", by_driver)
            await post(connection, f"{base}/complete", {**driver, "distance_m": 4_000}, f"{key}-c", by_driver)

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
    parser.add_argument("--signing-key", type=Path, help="signs tokens; without it none are sent")
    arguments = parser.parse_args()
    key = None if arguments.signing_key is None else json.loads(arguments.signing_key.read_text())
    host, port = arguments.address.rsplit(":", 1)
    work = run(
        host,
        int(port),
        arguments.rides,
        arguments.concurrency,
        event_clock=arguments.event_clock,
        signing_key=key,
    )
    found = uvloop.run(work)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
