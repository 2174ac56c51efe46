"""The commands of `hailbus`."""

from __future__ import annotations

import json as encoder
from datetime import datetime
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from hailbus.cli import contracts, kafka
from hailbus.cli.common import (
    Bootstrap,
    Json,
    OptionalValues,
    bus_at,
    catalogue_named,
    event_named,
    out,
    run,
)
from hailbus.cli.configs import configs
from hailbus.cli.database import db
from hailbus.cli.doctor import doctor
from hailbus.cli.elections import elect
from hailbus.cli.features import features
from hailbus.cli.groups import groups
from hailbus.cli.letters import dlq, parked
from hailbus.cli.needs import needs
from hailbus.cli.new import new
from hailbus.cli.quorum import quorum
from hailbus.cli.reassign import reassign
from hailbus.cli.registry import registry
from hailbus.cli.relay import relay
from hailbus.cli.running import run_service
from hailbus.cli.transactions import transactions
from hailbus.errors import ConfigurationError, HailbusError, InvalidPayloadError
from hailbus.event import event_info
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
app.command("doctor")(doctor)
app.command("topics")(kafka.topics)
app.command("produce")(kafka.produce)
app.command("consume")(kafka.consume)
app.command("groups", cls=OptionalValues)(groups)
app.command("configs")(configs)
app.add_typer(quorum, name="quorum")
app.add_typer(features, name="features")
app.command("elect")(elect)
app.command("reassign")(reassign)
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


def main() -> None:
    """Entry point."""
    try:
        app()
    except HailbusError as error:
        typer.echo(f"hailbus: {error}", err=True)
        raise SystemExit(2) from error
