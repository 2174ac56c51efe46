"""A consumer that commits by itself, as a process of its own that never closes it: its end is SIGKILL.

Run with brokers, a topic and a group. What one poll has handed over is written to standard output as one line, the time
in nanoseconds and then `partition:offset:value` each, before the next poll may commit it.
"""

import sys

import kafka
import kafka.errors

from tests.history.members import POLL_MS, TIMES, flat, parent_lives, tell, words


def main(address: str, topic: str, group: str) -> None:
    """Consume for as long as the test lives that started it."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address.split(","),
        **TIMES,
        group_id=group,
        enable_auto_commit=True,
        auto_commit_interval_ms=100,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        session_timeout_ms=1500,
        heartbeat_interval_ms=300,
    )
    while parent_lives():
        try:
            records = flat(consumer.poll(timeout_ms=POLL_MS, max_records=500))
        except kafka.errors.KafkaError:
            continue  # the broker was killed
        if records:
            tell(words(records))


if __name__ == "__main__":
    main(*sys.argv[1:])
