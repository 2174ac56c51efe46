"""The commands of `hailbus`."""

from __future__ import annotations

import contextlib
import json as encoder
import platform
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from hailbus.admin import ClusterAdmin
from hailbus.cli import contracts, kafka
from hailbus.cli.common import (
    Bootstrap,
    Json,
    OptionalValues,
    bus_at,
    catalogue_named,
    event_named,
    load,
    out,
    run,
    table,
)
from hailbus.cli.configs import configs
from hailbus.cli.database import db
from hailbus.cli.groups import groups
from hailbus.cli.letters import dlq, parked
from hailbus.cli.needs import needs
from hailbus.cli.new import new
from hailbus.cli.registry import registry
from hailbus.cli.relay import relay
from hailbus.cli.running import run_service
from hailbus.cli.transactions import transactions
from hailbus.errors import ConfigurationError, HailbusError, InvalidPayloadError
from hailbus.event import event_info
from hailbus.health import service_checks
from hailbus.reader import bus_reader
from hailbus.service import Service

__all__ = ["app", "main"]

app = typer.Typer(
    name="hailbus",
    help="Typed events over Kafka: run services, look at topics, check contracts, deal with dead letters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(dlq, name="dlq")
app.add_typer(parked, name="parked")
app.add_typer(transactions, name="transactions")
app.add_typer(registry, name="registry")
app.add_typer(needs, name="needs")
app.add_typer(db, name="db")
app.command("relay")(relay)
app.command("new")(new)
app.command("run")(run_service)
app.command("topics")(kafka.topics)
app.command("produce")(kafka.produce)
app.command("consume")(kafka.consume)
app.command("groups", cls=OptionalValues)(groups)
app.command("configs")(configs)
app.command("check")(contracts.check)
app.command("docs")(contracts.docs)
app.command("codegen")(contracts.codegen)


@app.command()
def tail(
    bootstrap_server: Bootstrap,
    events: Annotated[str, typer.Argument(help="package.module[:CATALOGUE | :Event]")],
    start: Annotated[str, typer.Option("--start", help="earliest, latest, or a moment in ISO 8601.")] = "latest",
    until_end: Annotated[bool, typer.Option("--until-end", help="Stop at what is there now.")] = False,
    type_: Annotated[list[str] | None, typer.Option("--type", help="Only these event types.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only this key.")] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", min=1, help="Stop after so many.")] = None,
    registry_url: Annotated[
        str | None,
        typer.Option(
            "--registry", envvar=["HAILBUS_REGISTRY_URL"], help="URL of a schema registry, for Avro, Protobuf."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print events as they come, decoded by their classes."""

    async def main() -> None:
        catalogue = catalogue_named(events)
        begin: Literal["earliest", "latest"] | datetime
        if start == "earliest":
            begin = "earliest"
        elif start == "latest":
            begin = "latest"
        else:
            try:
                begin = datetime.fromisoformat(start).astimezone()
            except ValueError as error:
                message = f"--start {start!r} is not earliest, latest or a moment like 2024-05-01T12:00:00Z"
                raise ConfigurationError(message) from error
        for name in type_ or ():
            if name not in catalogue.types:
                message = f"--type {name!r} is not in {events}; there are {', '.join(catalogue.types)}"
                raise ConfigurationError(message)
        printed = 0
        schemas = None
        if registry_url is not None:
            from hailbus.registry import SchemaRegistry, Schemas

            schemas = Schemas(SchemaRegistry(registry_url))
        async for delivery in bus_reader(
            bus_at(bootstrap_server), catalogue, start=begin, until_end=until_end, schemas=schemas
        ):
            envelope, ctx = delivery.ctx.envelope, delivery.ctx
            if (type_ and envelope.type not in type_) or (key is not None and ctx.key != key.encode()):
                continue
            data = delivery.event.model_dump(mode="json")
            if json:
                out(
                    {
                        "type": envelope.type,
                        "version": envelope.version,
                        "id": envelope.id,
                        "source": envelope.source,
                        "time": envelope.time.isoformat(),
                        "topic": ctx.topic,
                        "partition": ctx.partition,
                        "offset": ctx.offset,
                        "data": data,
                    }
                )
            else:
                typer.echo(
                    f"{envelope.time:%Y-%m-%d %H:%M:%S} {ctx.topic}-{ctx.partition}@{ctx.offset} {envelope.type} "
                    f"{encoder.dumps(data, ensure_ascii=False)}"
                )
            printed += 1
            if printed == max_messages:
                return

    run(main())


@app.command()
def publish(
    bootstrap_server: Bootstrap,
    event: Annotated[str, typer.Argument(help="package.module:Event")],
    data: Annotated[str, typer.Argument(help="The event's fields as JSON.")],
    source: Annotated[str, typer.Option("--source")] = "/hailbus-cli",
    id_: Annotated[str | None, typer.Option("--id", help="A stable id; random else.")] = None,
) -> None:
    """Publish one event, validated by its class."""

    async def main() -> None:
        cls = event_named(event)
        try:
            found = cls.model_validate_json(data, strict=False)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            info = event_info(cls)
            raise InvalidPayloadError(
                type=info.type, version=info.version, reason=f"{place}: {first['msg']}", topic=info.topic.name
            ) from error
        svc = Service("hailbus-cli", source=source)
        pub = svc.publishes(cls)
        async with svc.running(bus_at(bootstrap_server)):
            receipt = await pub.publish(found, id=id_)
        out(receipt._asdict())

    run(main())


@app.command()
def doctor(
    bootstrap_server: Bootstrap,
    service: Annotated[str | None, typer.Option("--service", help="package.module:service to check as well.")] = None,
    json: Json = False,
) -> None:
    """Check the cluster, and whether a service's topics and settings fit it. Exit code 1 when something is wrong."""

    async def main() -> int:
        rows: list[list[object]] = []

        def note(what: str, answer: object, *, ok: bool = True) -> None:
            rows.append(["ok" if ok else "WRONG", what, answer])

        for package in ("hailbus", "aiokafka", "confluent-kafka", "pydantic", "sqlalchemy"):
            with contextlib.suppress(PackageNotFoundError):  # of an extra that is not installed
                note(package, version(package))
        note("python", platform.python_version())
        async with ClusterAdmin(bus_at(bootstrap_server)) as admin:
            topics = await admin.topics()
            note("broker", f"{bootstrap_server}, {len(topics)} topics")
            leaderless = [f"{t.name}-{p}" for t in topics.values() for p, leader in t.leaders.items() if leader < 0]
            note("partitions without leader", ", ".join(leaderless) or "none", ok=not leaderless)
            if service is not None:
                found: Any = load(service)
                if not isinstance(found, Service):
                    message = f"{service!r} is no hailbus.Service"
                    raise ConfigurationError(message)
                for topic in found.topics:
                    there = topics.get(topic.name)
                    if there is None:
                        note(f"topic {topic.name}", "missing; created at the service's start")
                    else:
                        fits = there.partition_count == topic.partitions
                        text = f"{there.partition_count} partitions, declared {topic.partitions}"
                        note(f"topic {topic.name}", text, ok=fits)
                for group in sorted({s.group for s in found.subscriptions}):
                    lag = sum(entry.lag for entry in await admin.lag(group))
                    note(f"group {group}", f"lag {lag}")
                    for topic in found.topics:
                        if topic.name.endswith(f".{group}-dlt") and topic.name in topics:
                            ends = sum((await admin.end_offsets([topic])).values())
                            starts = sum((await admin.start_offsets([topic])).values())
                            note(f"dead letters in {topic.name}", ends - starts)
                for check in await service_checks(found, admin):
                    note(check.what, check.answer, ok=check.ok)
        if json:
            for state, what, answer in rows:
                out({"what": what, "found": answer, "ok": state == "ok"})
        else:
            table(["", "WHAT", "FOUND"], rows)
        return sum(row[0] != "ok" for row in rows)

    if run(main()):
        raise typer.Exit(1)


def main() -> None:
    """Entry point."""
    try:
        app()
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise SystemExit(2) from error
