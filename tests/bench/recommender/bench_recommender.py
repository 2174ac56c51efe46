"""How many recommendations a second a running recommender serves, stored and published before each answer.

python tests/bench/recommender/bench_recommender.py HOST:PORT --requests 6000 --connections 32
"""

import argparse
import asyncio
import json
import time
from random import Random


async def ask(address: str, count: int, random: Random, latencies: list[float]) -> None:
    """Ask on one kept-alive connection, one question after the other."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(count):
        question = {
            "rider_id": f"rider-{random.randrange(5000)}",
            "origin": {"lat": 40.68 + random.random() * 0.12, "lng": -74.01 + random.random() * 0.1},
            "time": f"2023-03-01T{random.randrange(24):02}:30:00Z",
        }
        body = json.dumps(question).encode()
        head = f"POST /recommendations HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        began = time.perf_counter()
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        lines = answer.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        content = await reader.readexactly(length)
        if b" 200 " not in lines[0]:
            raise SystemExit(f"{lines[0].decode()}: {content.decode()}")
        latencies.append(time.perf_counter() - began)
    writer.close()


async def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    latencies: list[float] = []
    began = time.perf_counter()
    share = options.requests // options.connections
    await asyncio.gather(
        *(ask(options.address, share, Random(number), latencies) for number in range(options.connections))
    )
    took = time.perf_counter() - began
    latencies.sort()
    half, last = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
    print(f"{len(latencies) / took:,.0f} recommendations/s; {half * 1000:.1f} ms (p50), {last * 1000:.1f} ms (p99)")


if __name__ == "__main__":
    asyncio.run(main())
