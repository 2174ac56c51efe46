"""`hailbus transactions`: what `kafka-transactions` shows and does, with its flag names."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from hailbus._transport.transactions import TransactionAdmin
from hailbus.cli.common import Bootstrap, Json, out, run, table
from hailbus.cli.kafka import admin_at
from hailbus.errors import ConfigurationError

__all__ = ["transactions"]

transactions = typer.Typer(help="Transactions: list, describe, find those that hang, abort.", no_args_is_help=True)

TransactionalId = Annotated[str, typer.Option("--transactional-id", help="Of the producer.")]
InTopic = Annotated[str, typer.Option("--topic", help="Name of the topic.")]
InPartition = Annotated[int, typer.Option("--partition", min=0, help="Number of the partition.")]


@asynccontextmanager
async def _transactions_at(bootstrap: str) -> AsyncIterator[TransactionAdmin]:
    async with admin_at(bootstrap) as admin:
        yield TransactionAdmin(admin)


@transactions.command("list")
def list_(
    bootstrap_server: Bootstrap,
    duration_filter: Annotated[
        int | None, typer.Option("--duration-filter", min=0, help="Only those open for longer than so many ms.")
    ] = None,
    transactional_id_pattern: Annotated[
        str | None, typer.Option("--transactional-id-pattern", help="A regular expression for the whole id.")
    ] = None,
    json: Json = False,
) -> None:
    """List transactional ids with the state of their newest transaction."""

    async def main() -> None:
        async with _transactions_at(bootstrap_server) as admin:
            found = await admin.all_ids(
                duration_ms=-1 if duration_filter is None else duration_filter, pattern=transactional_id_pattern
            )
        if json:
            for entry in found:
                out(asdict(entry))
            return
        rows: list[list[object]] = [
            [entry.transactional_id, entry.coordinator, entry.producer_id, entry.state] for entry in found
        ]
        table(["TransactionalId", "Coordinator", "ProducerId", "TransactionState"], rows)

    run(main())


@transactions.command()
def describe(bootstrap_server: Bootstrap, transactional_id: TransactionalId, json: Json = False) -> None:
    """Describe the newest transaction of a transactional id."""

    async def main() -> None:
        async with _transactions_at(bootstrap_server) as admin:
            found = await admin.describe(transactional_id)
        if json:
            out(asdict(found) | {"partitions": [f"{topic}-{index}" for topic, index in found.partitions]})
            return
        duration_ms = "None" if found.start_ms is None else int(time.time() * 1000) - found.start_ms
        table(
            [
                "CoordinatorId",
                "TransactionalId",
                "ProducerId",
                "ProducerEpoch",
                "TransactionState",
                "TransactionTimeoutMs",
                "CurrentTransactionStartTimeMs",
                "TransactionDurationMs",
                "TopicPartitions",
            ],
            [
                [
                    found.coordinator,
                    found.transactional_id,
                    found.producer_id,
                    found.producer_epoch,
                    found.state,
                    found.timeout_ms,
                    "None" if found.start_ms is None else found.start_ms,
                    duration_ms,
                    ",".join(f"{topic}-{index}" for topic, index in found.partitions),
                ]
            ],
        )

    run(main())


@transactions.command("describe-producers")
def describe_producers(bootstrap_server: Bootstrap, topic: InTopic, partition: InPartition, json: Json = False) -> None:
    """Describe the producers that have written to a partition with a producer id."""

    async def main() -> None:
        async with _transactions_at(bootstrap_server) as admin:
            found = await admin.producers(topic, partition)
        if json:
            for producer in found:
                out(asdict(producer))
            return
        rows: list[list[object]] = [
            [
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                "None" if producer.start_offset is None else producer.start_offset,
            ]
            for producer in found
        ]
        table(
            [
                "ProducerId",
                "ProducerEpoch",
                "LatestCoordinatorEpoch",
                "LastSequence",
                "LastTimestamp",
                "CurrentTransactionStartOffset",
            ],
            rows,
        )

    run(main())


@transactions.command()
def abort(
    bootstrap_server: Bootstrap,
    topic: InTopic,
    partition: InPartition,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="Where the transaction begins in the partition.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option("--producer-id", help="Instead of --start-offset.")] = None,
    producer_epoch: Annotated[int | None, typer.Option("--producer-epoch", help="With --producer-id.")] = None,
    coordinator_epoch: Annotated[int | None, typer.Option("--coordinator-epoch", help="With --producer-id.")] = None,
    json: Json = False,
) -> None:
    """Abort a hanging transaction in one partition. Use it for what `find-hanging` shows, not for a live producer."""

    async def main() -> None:
        identity = (producer_id, producer_epoch, coordinator_epoch)
        async with _transactions_at(bootstrap_server) as admin:
            if start_offset is not None and identity == (None, None, None):
                whose = (await admin.abort_at(topic, partition, start_offset)).producer_id
            elif (
                start_offset is None
                and producer_id is not None
                and producer_epoch is not None
                and coordinator_epoch is not None
            ):
                await admin.abort(
                    topic,
                    partition,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    coordinator_epoch=coordinator_epoch,
                )
                whose = producer_id
            else:
                message = (
                    "give either --start-offset, or all of --producer-id, --producer-epoch and --coordinator-epoch"
                )
                raise ConfigurationError(message)
        if json:
            out({"topic": topic, "partition": partition, "producer_id": whose, "aborted": True})
        else:
            typer.echo(f"Aborted the transaction of producer {whose} in {topic}-{partition}.")

    run(main())


@transactions.command("find-hanging")
def find_hanging(
    bootstrap_server: Bootstrap,
    topic: Annotated[str | None, typer.Option("--topic", help="Only in this topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="With --topic.")] = None,
    broker_id: Annotated[int | None, typer.Option("--broker-id", help="Only in partitions that it leads.")] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option("--max-transaction-timeout", min=0, help="Minutes; what the brokers allow a transaction."),
    ] = 15,
    json: Json = False,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end."""

    async def main() -> None:
        if partition is not None and topic is None:
            message = "--partition needs --topic"
            raise ConfigurationError(message)
        async with _transactions_at(bootstrap_server) as admin:
            found = await admin.find_hanging(
                max_timeout_ms=max_transaction_timeout * 60_000, topic=topic, partition=partition, broker=broker_id
            )
        if json:
            for entry in found:
                place = {"topic": entry.partition.topic, "partition": entry.partition.partition}
                out(place | asdict(entry.producer) | {"idle_ms": entry.idle_ms})
            return
        rows: list[list[object]] = [
            [
                entry.partition.topic,
                entry.partition.partition,
                entry.producer.producer_id,
                entry.producer.producer_epoch,
                entry.producer.coordinator_epoch,
                entry.producer.start_offset,
                entry.producer.last_timestamp,
                entry.idle_ms // 1000,
            ]
            for entry in found
        ]
        columns = "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset LastTimestamp Duration(s)"
        table(columns.split(), rows)

    run(main())


@transactions.command("forceTerminateTransaction")
def force_terminate(bootstrap_server: Bootstrap, transactional_id: TransactionalId, json: Json = False) -> None:
    """Fence the producer of a transactional id, and abort what it has open."""

    async def main() -> None:
        async with _transactions_at(bootstrap_server) as admin:
            await admin.terminate(transactional_id)
        if json:
            out({"transactional_id": transactional_id, "terminated": True})
        else:
            typer.echo(f"Ended the transaction of {transactional_id}, and fenced its producer.")

    run(main())
