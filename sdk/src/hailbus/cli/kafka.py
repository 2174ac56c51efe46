"""Topics, records, groups and configs of any Kafka-protocol cluster, with the flag names of Kafka's own tools."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from hailbus._transport import Outgoing, Received, TopicPartition, TransportBrokenError
from hailbus._transport.kafka_admin import KafkaAdmin
from hailbus.cli.common import BOOTSTRAP_VARIABLES, Bootstrap, Json, bus_at, out, run
from hailbus.errors import ConfigurationError, TopicMissingError
from hailbus.event import Topic

__all__ = ["consume", "produce", "topics"]


AnyBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLES,
        help="host:port of a broker; several joined by commas.",
    ),
]
"""The brokers, for a command with subcommands: Kafka's tools take the option before the subcommand."""

_LIST_OF_PAIRS = re.compile(r",(?![^\[\]]*\])")  # commas, but not those in [a,b]


@asynccontextmanager
async def admin_at(bootstrap: str) -> AsyncIterator[KafkaAdmin]:
    """A connected admin."""
    admin = bus_at(bootstrap).admin(client_id="hailbus-cli")
    await admin.start()
    try:
        yield admin
    finally:
        await admin.stop()


def pairs(settings: list[str], option: str) -> dict[str, str]:
    """name=value of each setting."""
    found = {}
    for setting in settings:
        for part in _LIST_OF_PAIRS.split(setting) if option == "--add-config" else [setting]:
            name, equals, value = part.partition("=")
            if not equals or not name:
                message = f"{option} {part!r} is not like 'name=value'"
                raise ConfigurationError(message)
            is_list = option == "--add-config" and value.startswith("[") and value.endswith("]")
            found[name.strip()] = value.strip()[1:-1] if is_list else value.strip()
    return found


def one_of(**flags: bool) -> str:
    """The one flag that was given."""
    chosen = [name for name, is_set in flags.items() if is_set]
    if len(chosen) != 1:
        message = f"give exactly one of {', '.join('--' + name.replace('_', '-') for name in flags)}"
        raise ConfigurationError(message)
    return chosen[0]


async def _own_settings(admin: KafkaAdmin, topic: str) -> dict[str, str | None] | None:
    """The settings that a topic has of its own; None when it has been deleted since it was listed."""
    try:
        return {entry.name: entry.value for entry in await admin.configs("topic", topic) if not entry.is_default}
    except ConfigurationError:
        if await admin.describe([topic]):
            raise
        return None


def needed(value: str | None, option: str) -> str:
    """A value that this action cannot do without."""
    if not value:
        message = f"{option} is needed here"
        raise ConfigurationError(message)
    return value


def brokers_of(ctx: typer.Context, given: str | None) -> str:
    """Return the brokers that were given after the subcommand, or before it.

    Raises:
        ConfigurationError: Neither was given.
    """
    return needed(given or ctx.obj, "--bootstrap-server")


def moment(text: str, option: str) -> datetime:
    """A moment that somebody typed; UTC unless it has a zone of its own."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{option} {text!r} is not like 2024-05-01T12:00:00"
        raise ConfigurationError(message) from error
    return found.replace(tzinfo=found.tzinfo or UTC)


def topics(
    bootstrap_server: Bootstrap,
    list_: Annotated[bool, typer.Option("--list", help="Names of all topics.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Partitions, leaders, replicas, configs.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create a topic.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete a topic.")] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Raise the number of partitions.")] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="Name of the topic.")] = None,
    partitions: Annotated[int | None, typer.Option("--partitions", help="With --create and --alter.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="With --create.")
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", help="With --create: brokers of each partition, like 1:2,2:3."),
    ] = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="name=value, with --create.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="With --create.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="With --delete, --alter and --describe.")] = False,
    topics_with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="With --describe: only those with settings of their own.")
    ] = False,
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="With --describe: only those with replicas behind.")
    ] = False,
    unavailable_partitions: Annotated[
        bool, typer.Option("--unavailable-partitions", help="With --describe: only those without a leader.")
    ] = False,
    json: Json = False,
) -> None:
    """List, describe, create, delete or alter topics."""

    async def main() -> None:
        action = one_of(list=list_, describe=describe, create=create, delete=delete, alter=alter)
        async with admin_at(bootstrap_server) as admin:
            match action:
                case "list":
                    for name in sorted(await admin.describe()):
                        out({"topic": name}) if json else typer.echo(name)
                case "describe":
                    found = await admin.describe([topic] if topic else None)
                    if topic and topic not in found and not if_exists:
                        raise TopicMissingError(topic=topic)
                    for name, description in sorted(found.items()):
                        settings = await _own_settings(admin, name)
                        if settings is None or (topics_with_overrides and not settings):
                            continue
                        shown = [
                            p
                            for p in sorted(description.leaders)
                            if (
                                not under_replicated_partitions
                                or len(description.isr[p]) < len(description.replicas[p])
                            )
                            and (not unavailable_partitions or description.leaders[p] < 0)
                        ]
                        if (under_replicated_partitions or unavailable_partitions) and not shown:
                            continue
                        if json:
                            out(
                                {
                                    "topic": name,
                                    "partition_count": description.partition_count,
                                    "replication_factor": description.replication_factor,
                                    "configs": settings,
                                    "partitions": [
                                        {
                                            "partition": p,
                                            "leader": description.leaders[p],
                                            "replicas": description.replicas[p],
                                            "isr": description.isr[p],
                                        }
                                        for p in shown
                                    ],
                                }
                            )
                            continue
                        text = ",".join(f"{key}={value}" for key, value in settings.items())
                        typer.echo(
                            f"Topic: {name}\tPartitionCount: {description.partition_count}\t"
                            f"ReplicationFactor: {description.replication_factor}\tConfigs: {text}"
                        )
                        for p in shown:
                            replicas = ",".join(map(str, description.replicas[p]))
                            isr = ",".join(map(str, description.isr[p]))
                            typer.echo(
                                f"\tTopic: {name}\tPartition: {p}\tLeader: {description.leaders[p]}\t"
                                f"Replicas: {replicas}\tIsr: {isr}"
                            )
                case "create":
                    name = needed(topic, "--topic")
                    assignment = None if replica_assignment is None else _replicas(replica_assignment)
                    if assignment is not None and (partitions is not None or replication_factor is not None):
                        message = "--replica-assignment says it all: leave --partitions and --replication-factor out"
                        raise ConfigurationError(message)
                    created = await admin.create(
                        [
                            Topic(
                                name,
                                partitions=len(assignment or ()) or partitions or 1,
                                config=pairs(config or [], "--config"),
                            )
                        ],
                        replication_factor=replication_factor,
                        assignment=assignment,
                    )
                    if not created and not if_not_exists:
                        message = f"topic {name!r} exists already; --if-not-exists accepts that"
                        raise ConfigurationError(message)
                    if json:
                        out({"topic": name, "created": bool(created)})
                    elif created:
                        typer.echo(f"Created topic {name}.")
                case "delete":
                    name = needed(topic, "--topic")
                    if name not in await admin.describe([name]):
                        if if_exists:
                            return
                        raise TopicMissingError(topic=name)
                    await admin.delete([name])
                    if json:
                        out({"topic": name, "deleted": True})
                case _:
                    name = needed(topic, "--topic")
                    if partitions is None:
                        message = "--alter changes the number of partitions: give --partitions"
                        raise ConfigurationError(message)
                    if if_exists and name not in await admin.describe([name]):
                        return
                    await admin.add_partitions(name, partitions)
                    if json:
                        out({"topic": name, "partition_count": partitions})

    run(main())


def _replicas(text: str) -> list[list[int]]:
    """Broker ids of each partition: `1:2,2:3` is two partitions of two replicas."""
    found = [part.split(":") for part in text.split(",")]
    if not all(broker.isdigit() for brokers in found for broker in brokers):
        message = f"--replica-assignment {text!r} is not like 1:2,2:3: broker ids, partitions parted by commas"
        raise ConfigurationError(message)
    return [[int(broker) for broker in brokers] for brokers in found]


def produce(
    bootstrap_server: Bootstrap,
    topic: Annotated[str, typer.Option("--topic", help="Where to.")],
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "--reader-property",
            help="parse.key=true, key.separator, parse.headers=true, headers.delimiter, headers.separator, "
            "headers.key.separator, null.marker.",
        ),
    ] = None,
    command_property: Annotated[
        list[str] | None,
        typer.Option("--command-property", "--producer-property", help="acks=all, 1 or 0."),
    ] = None,
    request_required_acks: Annotated[str, typer.Option("--request-required-acks", help="all, 1 or 0.")] = "all",
    partition: Annotated[int | None, typer.Option("--partition", help="All lines to this partition.")] = None,
    json: Json = False,
) -> None:
    """Write lines of standard input as records; keys go where Java's default partitioner puts them."""

    async def main() -> None:
        known = {
            "parse.key": "false",
            "key.separator": "\t",
            "parse.headers": "false",
            "headers.delimiter": "\t",
            "headers.separator": ",",
            "headers.key.separator": ":",
            "null.marker": "",
        }
        properties = known | _checked_properties(property_ or [], known)
        client = {"acks": request_required_acks}
        client |= _checked_properties(command_property or [], client, option="--command-property")
        acks: Any = {"all": "all", "-1": "all", "1": 1, "0": 0}.get(client["acks"])
        if acks is None:
            message = f"acks={client['acks']} is not all, 1 or 0"
            raise ConfigurationError(message)
        base = bus_at(bootstrap_server)
        from dataclasses import replace

        bus = replace(base, acks=acks, idempotent=acks == "all")
        producer = bus.producer(client_id="hailbus-produce")
        await producer.start()
        try:
            count = await producer.partition_count(topic)
            if partition is not None and not 0 <= partition < count:
                message = f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
                raise ConfigurationError(message)
            pending: dict[int, list[Outgoing]] = {}

            async def send() -> None:
                written = await asyncio.gather(*(producer.send(topic, p, records) for p, records in pending.items()))
                if json:
                    for p, offsets in zip(pending, written, strict=True):
                        for offset in offsets:
                            out({"topic": topic, "partition": p, "offset": offset})
                pending.clear()

            waiting = 0
            while line := await asyncio.to_thread(sys.stdin.readline):
                key, value, headers = _parsed(line.rstrip("\n"), properties)
                place = partition if partition is not None else bus.partitioner(topic, key, count)
                pending.setdefault(place, []).append((key, value, headers))
                waiting += 1
                if waiting == 1000 or sys.stdin.isatty():
                    await send()
                    waiting = 0
            await send()
        finally:
            await producer.stop()

    run(main())


def _checked_properties(settings: list[str], known: dict[str, str], option: str = "--property") -> dict[str, str]:
    found = pairs(settings, option)
    for name in found:
        if name not in known:
            message = f"{option} {name!r} is not known; known are {', '.join(sorted(known))}"
            raise ConfigurationError(message)
    return {name: value.encode().decode("unicode_escape") for name, value in found.items()}


def _parsed(line: str, properties: dict[str, str]) -> Outgoing:
    headers: list[tuple[str, bytes]] = []
    key: bytes | None = None
    if properties["parse.headers"] == "true":
        text, found, line = line.partition(properties["headers.delimiter"])
        if not found:
            message = f"no headers delimiter {properties['headers.delimiter']!r} in line {text[:60]!r}"
            raise ConfigurationError(message)
        for pair in text.split(properties["headers.separator"]) if text else ():
            name, _, content = pair.partition(properties["headers.key.separator"])
            headers.append((name, content.encode()))
    if properties["parse.key"] == "true":
        text, found, line = line.partition(properties["key.separator"])
        if not found:
            message = f"no key separator {properties['key.separator']!r} in line {text[:60]!r}"
            raise ConfigurationError(message)
        key = None if properties["null.marker"] and text == properties["null.marker"] else text.encode()
    is_null = bool(properties["null.marker"]) and line == properties["null.marker"]
    return key, None if is_null else line.encode(), headers


def consume(
    bootstrap_server: Bootstrap,
    topic: Annotated[str, typer.Option("--topic", help="What to read.")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Not only what comes from now on.")] = False,
    group: Annotated[str | None, typer.Option("--group", help="Read as a member of this group, and commit.")] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", help="Stop after so many.")] = None,
    timeout_ms: Annotated[int | None, typer.Option("--timeout-ms", help="Stop when nothing came for so long.")] = None,
    from_datetime: Annotated[
        str | None, typer.Option("--from-datetime", help="From this moment on; ISO 8601, UTC without zone.")
    ] = None,
    until_end: Annotated[bool, typer.Option("--until-end", help="Stop at what is the end now.")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Only records with this key.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Only this partition.")] = None,
    offset: Annotated[str, typer.Option("--offset", help="With --partition: a number, earliest or latest.")] = "latest",
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "--formatter-property",
            help="print.key, print.value, print.partition, print.offset, print.timestamp, print.headers, "
            "key.separator, line.separator, headers.separator, null.literal.",
        ),
    ] = None,
    isolation_level: Annotated[
        str, typer.Option("--isolation-level", help="read_committed or read_uncommitted.")
    ] = "read_uncommitted",
    json: Json = False,
) -> None:
    """Print records as lines. Without --group nothing is committed and no group is touched."""

    async def main() -> None:
        if group is not None and (from_datetime is not None or until_end or partition is not None):
            message = (
                "a member of a group continues at the group's committed offsets: --group excludes --from-datetime, "
                "--until-end and --partition; `hailbus groups --reset-offsets` moves the group"
            )
            raise ConfigurationError(message)
        if from_datetime is not None and (from_beginning or offset != "latest"):
            message = "give only one of --from-beginning, --offset and --from-datetime"
            raise ConfigurationError(message)
        if isolation_level not in {"read_committed", "read_uncommitted"}:
            message = f"--isolation-level {isolation_level!r} is not read_committed or read_uncommitted"
            raise ConfigurationError(message)
        known = {
            "print.key": "false",
            "print.value": "true",
            "print.partition": "false",
            "print.offset": "false",
            "print.timestamp": "false",
            "print.headers": "false",
            "key.separator": "\t",
            "line.separator": "\n",
            "headers.separator": ",",
            "null.literal": "null",
        }
        properties = known | _checked_properties(property_ or [], known)
        bus = bus_at(bootstrap_server)
        async with admin_at(bootstrap_server) as admin:
            if topic not in await admin.describe([topic]):
                raise TopicMissingError(topic=topic)
            starts = await admin.start_offsets([topic])
            ends = await admin.end_offsets([topic])
            at = None
            if from_datetime is not None:
                at = await admin.offsets_at([topic], moment(from_datetime, "--from-datetime"))
        consumer = bus.consumer(
            client_id="hailbus-consume",
            group=group,
            topics=[topic],
            start="earliest" if from_beginning else "latest",
            read_committed=isolation_level == "read_committed",
        )
        await consumer.start()
        printed = 0
        left = set(ends) if until_end else set()
        try:
            if group is None:
                positions = dict(starts if from_beginning else ends if at is None else at)
                if partition is not None:
                    place = TopicPartition(topic, partition)
                    if place not in ends:
                        message = f"topic {topic!r} has partitions 0 to {len(ends) - 1}, not {partition}"
                        raise ConfigurationError(message)
                    if not from_beginning and at is None:
                        positions[place] = {"earliest": starts[place], "latest": ends[place]}.get(offset, -1)
                        if positions[place] < 0:
                            if not offset.isdigit():
                                message = f"--offset {offset!r} is not a number, earliest or latest"
                                raise ConfigurationError(message)
                            positions[place] = int(offset)
                    for other in positions:
                        if other != place:
                            consumer.pause(other)
                    left &= {place}
                await consumer.seek(positions)
                left = {place for place in left if positions[place] < ends[place]}
            loop = asyncio.get_running_loop()
            last_s = loop.time()
            while (max_messages is None or printed < max_messages) and (left or not until_end):
                # By key most records are only looked at.
                wanted = 1000 if max_messages is None or key is not None else max_messages - printed
                wait_s = 0.25 if timeout_ms is None else max(min(0.25, last_s + timeout_ms / 1000 - loop.time()), 0)
                found = await consumer.poll(timeout_s=wait_s, max_records=wanted)
                done: dict[TopicPartition, int] = {}
                for place, records in found.items():
                    for record in records:
                        if max_messages is not None and printed >= max_messages:
                            break
                        if until_end and record.offset >= ends[TopicPartition(*place)]:
                            break
                        done[TopicPartition(*place)] = record.offset + 1
                        if key is None or record.key == key.encode():
                            sys.stdout.write(_line(record, properties, json=json))
                            printed += 1
                if left:
                    # Markers and compacted records leave gaps: the position tells, not the last record.
                    reached = await consumer.positions()
                    left = {place for place in left if reached.get(place, 0) < ends[place]}
                if done:
                    sys.stdout.flush()
                    last_s = loop.time()
                    if group is not None:
                        await consumer.commit(done)
                elif timeout_ms is not None and loop.time() - last_s >= timeout_ms / 1000:
                    break
        except TransportBrokenError as error:
            raise ConfigurationError(str(error)) from error
        finally:
            await consumer.stop()
            typer.echo(f"Processed a total of {printed} messages", err=True)

    run(main())


def _line(record: Received, properties: dict[str, str], *, json: bool) -> str:
    def text(value: bytes | None) -> str:
        return properties["null.literal"] if value is None else value.decode("utf-8", "replace")

    if json:
        import json as encoder

        return (
            encoder.dumps(
                {
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "key": None if record.key is None else record.key.decode("utf-8", "backslashreplace"),
                    "value": None if record.value is None else record.value.decode("utf-8", "backslashreplace"),
                    "headers": [
                        [n, None if v is None else v.decode("utf-8", "backslashreplace")] for n, v in record.headers
                    ],
                },
                ensure_ascii=False,
            )
            + "\n"
        )
    parts = []
    if properties["print.timestamp"] == "true":
        parts.append(f"{'CreateTime' if record.timestamp_type == 0 else 'LogAppendTime'}:{record.timestamp}")
    if properties["print.partition"] == "true":
        parts.append(f"Partition:{record.partition}")
    if properties["print.offset"] == "true":
        parts.append(f"Offset:{record.offset}")
    if properties["print.headers"] == "true":
        pairs = [f"{name}:{text(value)}" for name, value in record.headers]
        parts.append(properties["headers.separator"].join(pairs) or "NO_HEADERS")
    if properties["print.key"] == "true":
        parts.append(text(record.key))
    if properties["print.value"] == "true":
        parts.append(text(record.value))
    return properties["key.separator"].join(parts) + properties["line.separator"]
