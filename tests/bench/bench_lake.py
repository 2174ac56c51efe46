"""How long the lake takes for a backlog: events on an in-house broker, `lake-sink --until-caught-up` on an empty lake.

`just bench-lake` fills two topics with the published examples of their events under new ids, lands them through gold,
and has `lake verify` compare lake and broker: a run that loses a record is no figure.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.bench.bench_city import TOOLS, serving  # noqa: E402 - it runs as a script
from tests.bench.report import Run  # noqa: E402 - the path is set before

TOPICS = {"rides.v1": ("ride.requested", "ride_id"), "quotes.v1": ("quote.offered", "quote_id")}
PARTITIONS = 6


def fill(bootstrap: str, count: int) -> None:
    """Publish as many events as wanted, alternating between the topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in TOPICS]).values():
        future.result()
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": count + 1, "linger.ms": 20})
    cases = []
    for topic, (kind, key) in TOPICS.items():
        example = json.loads((ROOT / "tests/contract/examples" / kind / "v1.json").read_text())
        cases.append((topic, kind, key, example.get("data", example)))
    for number in range(count):
        topic, kind, key, data = cases[number % len(cases)]
        subject = str(uuid.UUID(int=number))
        headers = {
            "ce_specversion": "1.0",
            "ce_id": str(uuid.UUID(int=count + number)),
            "ce_source": "/bench",
            "ce_type": kind,
            "ce_time": f"2014-05-01T{number % 24:02d}:00:00Z",
            "ce_dataschema": f"hailbus:{kind}/v1",
            "content-type": "application/json",
        }
        producer.produce(topic, json.dumps({**data, key: subject}), subject, headers=list(headers.items()))
    assert producer.flush(120) == 0


def measure(count: int) -> dict[str, float]:
    """Fill a broker, land everything, and verify it."""
    with tempfile.TemporaryDirectory(prefix="hailbus-bench-") as name:
        folder = Path(name)
        command: list[str | Path] = [TOOLS / "hailbus-broker", "serve", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", folder / "broker"]
        with serving(command, {}, folder / "broker.log") as bootstrap:
            fill(bootstrap, count)
            options = ["--bootstrap", bootstrap, "--dir", str(folder / "lake")]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.monotonic()
            subprocess.run([TOOLS / "lake-sink", *options, "--until-caught-up"], check=True, capture_output=True)
            took = time.monotonic() - began
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.monotonic()
            verified = subprocess.run(
                [TOOLS / "lake", "verify", *options, "--json"], check=True, stdout=subprocess.PIPE
            )
            verify_s = time.monotonic() - began
            rows = json.loads(verified.stdout)["rows"]
            assert rows == count, f"{rows} rows for {count} records"
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"land_s": took, "rows_per_s": count / took, "cpu_us": cpu_s / count * 1e6, "verify_s": verify_s}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    subprocess.run([TOOLS / "lake", "setup"], check=True, stdout=subprocess.DEVNULL)
    run = Run(f"just bench-lake {' '.join(arguments)}".strip(), rounds=options.rounds)
    run.table(
        f"Lake: {options.records:,} records of two topics, {PARTITIONS} partitions each, on an empty lake",
        condition=f"start of the JVM included; broker, driver and JVM share {os.cpu_count()} cores",
        columns=("median",),
    )
    found = [measure(options.records) for _ in range(options.rounds)]
    for key, what, unit in (
        ("land_s", "from the start until bronze, silver and gold have everything", "s"),
        ("rows_per_s", "records landed through gold", "a second"),
        ("cpu_us", "CPU of driver, workers and JVM", "µs per record"),
        ("verify_s", "lake verify of all of it", "s"),
    ):
        run.add(what, unit, [one[key] for one in found])
    if options.json:
        run.write(options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
