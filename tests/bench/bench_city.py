"""The example at work: booking alone under load, and the whole chain from request to applied event.

`just bench-city` starts what it needs: a broker and booking for the first part, `demo` for the others, each once a
round. With `--spark` the lake takes part in the last one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.bench.report import Run  # noqa: E402 - it runs as a script

TOOLS = Path(sys.executable).parent
CONCURRENCY = 50
RIDES = 700
CHAIN = ["--limit", "600", "--speed", "max", "--exit-when-done", "--no-browser", "--fresh"]
Values = list[float]


@contextmanager
def serving(command: Sequence[str | Path], environment: dict[str, str], log: Path) -> Iterator[str]:
    """Run a server; the address that it prints in its first line."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert "=" in line, log.read_text()[-2000:]
        yield line.partition("=")[2]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def booking(run: Run, rounds: int) -> None:
    """State-changing requests a second of booking, its relay publishing to the in-house broker meanwhile."""
    found: list[dict[str, float]] = []
    run.table(
        f"Booking: {RIDES} rides, {CONCURRENCY} requests in flight",
        condition="authentication is on; SQLite and broker sync before they answer; load generator, booking and broker "
        "share the cores",
        columns=("median",),
    )
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="hailbus-bench-") as name, ExitStack() as stack:
            folder = Path(name)
            command: list[str | Path] = [
                TOOLS / "hailbus-broker",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--data-dir",
                folder / "broker",
            ]
            bootstrap = stack.enter_context(serving(command, {}, folder / "broker.log"))
            subprocess.run([TOOLS / "booking-token", "keys", folder / "keys"], check=True, stdout=subprocess.DEVNULL)
            environment = {
                "BOOKING_AUTH_KEYS": str(folder / "keys" / "keys.json"),
                "BOOKING_BOOTSTRAP_SERVERS": bootstrap,
                "BOOKING_DATABASE_URL": f"sqlite+aiosqlite:///{folder / 'booking.db'}",
                "BOOKING_LISTEN": "127.0.0.1:0",
            }
            address = stack.enter_context(serving([TOOLS / "booking"], environment, folder / "booking.log"))
            load = [sys.executable, str(ROOT / "tests/bench/booking/load.py"), address]
            load += ["--rides", str(RIDES), "--concurrency", str(CONCURRENCY)]
            load += ["--signing-key", str(folder / "keys" / "signing-key.json")]
            found.append(json.loads(subprocess.run(load, check=True, stdout=subprocess.PIPE, text=True).stdout))
    for key, what, unit in (
        ("requests_per_s", "state-changing requests", "a second"),
        ("p50_ms", "latency, p50", "ms"),
        ("p99_ms", "latency, p99", "ms"),
    ):
        run.add(what, unit, [one[key] for one in found])


def chain(run: Run, rounds: int, *, spark: bool) -> None:
    """Run the demo and read its summary."""
    options = [*CHAIN, *([] if spark else ["--no-spark"])]
    run.table(
        f"The whole chain: demo {' '.join(options)}",
        condition="SQLite and broker sync before they answer; every process shares the cores",
        columns=("median",),
    )
    found: list[dict[str, Any]] = []  # Any: JSON
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="hailbus-bench-") as folder:
            summary = Path(folder) / "summary.json"
            command = [str(TOOLS / "demo"), *options, "--data-dir", f"{folder}/data", "--summary", str(summary)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found.append(json.loads(summary.read_text()))
    for key, what, unit in (
        ("services_ready_s", "from the command until the services are ready", "s"),
        ("first_event_s", "from the command to the first event", "s"),
        ("chain_events_per_s", "booked, published and applied by every group", "events a second"),
        ("rides_per_s", "rides booked", "a second"),
    ):
        run.add(what, unit, [one["figures"][key] for one in found])
    for process in found[0]["processes"]:
        name = process["name"]
        of = [next(p for p in one["processes"] if p["name"] == name) for one in found]
        run.add(f"{name}: memory at most", "MB", [p["memory_peak_mb"] for p in of])
        run.add(
            f"{name}: CPU per event of the run",
            "µs",
            [p["cpu_s"] / one["events"] * 1e6 for p, one in zip(of, found, strict=True)],
        )
    if spark:
        run.add("rows in the lake", "rows", [float(one["lake_rows"]) for one in found])


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="run the chain once more, with Spark and the lake")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    run = Run(f"just bench-city {' '.join(arguments)}".strip(), rounds=options.rounds)
    booking(run, options.rounds)
    chain(run, options.rounds, spark=False)
    if options.spark:
        chain(run, 1, spark=True)
    if options.json:
        run.write(options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
