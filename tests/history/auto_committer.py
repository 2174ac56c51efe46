"""A consumer that commits by itself, as a process of its own that never closes it: its end is SIGKILL.

Run with the broker's address, a topic and a group. What one poll has handed over is written to standard output as one
line, the time in nanoseconds and then `partition:offset:value` each, before the next poll may commit it.
"""

import os
import sys
import time

import kafka
import kafka.errors


def main(address: str, topic: str, group: str) -> None:
    """Consume for as long as the test lives that started it."""
    test = os.getppid()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
        group_id=group,
        enable_auto_commit=True,
        auto_commit_interval_ms=100,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        session_timeout_ms=1500,
        heartbeat_interval_ms=300,
    )
    while os.getppid() == test:
        try:
            # Long: kafka-python 3.0 never applies an assignment that comes after the poll which joined has timed out.
            polled = consumer.poll(timeout_ms=10_000, max_records=500)
        except kafka.errors.KafkaError:
            continue  # the broker was killed
        handed = [
            f"{record.partition}:{record.offset}:{int(record.value)}"
            for records in polled.values()
            for record in records
        ]
        if handed:
            # CLOCK_MONOTONIC is the same for all processes: a partition's next owner is handed its records later.
            os.write(1, f"{time.monotonic_ns()} {' '.join(handed)}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
