"""A consumer that copies a topic exactly once, as a process of its own: its end is SIGKILL, at any moment.

Run with brokers, a topic, the topic of its copy, which is also the name of the group, and a transactional id. What one
poll has handed over is written to standard output as one line before anything is done with it, the time in nanoseconds
and then `partition:offset:value` each; a line with the time alone says that the copy of it was committed.
"""

import contextlib
import sys
from typing import Any

import kafka
import kafka.errors
import kafka.structs

from tests.history.members import POLL_MS, TIMES, flat, parent_lives, tell, words


def main(address: str, topic: str, copy: str, transactional_id: str) -> None:
    """Copy for as long as the test lives that started it."""
    common = {"bootstrap_servers": address.split(","), **TIMES}
    consumer = kafka.KafkaConsumer(
        topic,
        **common,
        group_id=copy,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        session_timeout_ms=1500,
        heartbeat_interval_ms=300,
        max_poll_interval_ms=20_000,
    )
    producer: Any = None
    while parent_lives():
        try:
            if producer is None:
                producer = kafka.KafkaProducer(
                    **common,
                    transactional_id=transactional_id,
                    max_block_ms=20_000,
                    delivery_timeout_ms=20_000,
                    request_timeout_ms=10_000,
                )
                producer.init_transactions()  # ends what a life before has left open, and fences it
                rewind(consumer)
            copy_some(consumer, producer, copy)
        except (kafka.errors.KafkaError, AssertionError):
            # Nobody knows how the transaction ended: a new producer finds out, and reading continues there.
            drop(producer)
            producer = None


def drop(producer: Any) -> None:
    """Let go of a producer without ending its transaction."""
    if producer is not None:
        producer._sender.force_close()  # `close` would first wait for what can no longer be sent
        with contextlib.suppress(kafka.errors.KafkaError):
            producer.close(timeout=0.5)


def rewind(consumer: Any) -> None:
    """Go on reading where the group stands."""
    for place in consumer.assignment():
        offset = consumer.committed(place)
        if offset is None:
            consumer.seek_to_beginning(place)
        else:
            consumer.seek(place, offset)


def copy_some(consumer: Any, producer: Any, copy: str) -> None:
    """Copy what one poll brings, in a transaction with the offsets."""
    records = flat(consumer.poll(timeout_ms=POLL_MS, max_records=300))
    # Now, not when the offsets are sent: a member whose session ends meanwhile forgets its generation, and offsets
    # without one are accepted from anybody.
    member = consumer.group_metadata()
    if not records:
        return
    tell(words(records))
    if member.generation_id < 0:
        raise kafka.errors.IllegalGenerationError("the group has let go of this member since the poll")
    producer.begin_transaction()
    for record in records:
        producer.send(copy, record.value, partition=record.partition)
    ends = {
        kafka.TopicPartition(record.topic, record.partition): kafka.structs.OffsetAndMetadata(record.offset + 1, "", -1)
        for record in records
    }
    producer.flush(10)
    manager = producer._transaction_manager
    finish(producer, manager.send_offsets_to_transaction(ends, member))
    finish(producer, manager.begin_commit())
    tell("")


def finish(producer: Any, result: Any) -> None:
    """Wait for a step of a transaction with a limit, which the methods of kafka-python do not have.

    It forgets a step whose connection turns out to be broken before the request is sent, with any broker: nobody
    sends it again, and its result never comes.
    """
    producer._sender.wakeup()
    if not result.wait(timeout_ms=15_000):
        raise kafka.errors.KafkaTimeoutError("a step of the transaction was not answered")


if __name__ == "__main__":
    main(*sys.argv[1:])
