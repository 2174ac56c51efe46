"""`hailbus configs`: what `kafka-configs` shows and does for topics, brokers and groups."""

from __future__ import annotations

from typing import Annotated

import typer

from hailbus._transport.kafka_admin import ConfigKind
from hailbus.cli.common import Bootstrap, Json, out, run
from hailbus.cli.kafka import admin_at, one_of, pairs
from hailbus.errors import ConfigurationError

__all__ = ["configs"]

KINDS: dict[str, ConfigKind] = {"topics": "topic", "brokers": "broker", "groups": "group"}


def configs(
    bootstrap_server: Bootstrap,
    entity_type: Annotated[str, typer.Option("--entity-type", help="topics, brokers or groups.")],
    entity_name: Annotated[str | None, typer.Option("--entity-name", help="Topic, broker id or group.")] = None,
    entity_default: Annotated[
        bool, typer.Option("--entity-default", help="With brokers: what holds for all of them.")
    ] = False,
    describe: Annotated[bool, typer.Option("--describe")] = False,
    alter: Annotated[bool, typer.Option("--alter")] = False,
    all_: Annotated[bool, typer.Option("--all", help="With --describe: defaults too.")] = False,
    add_config: Annotated[
        list[str] | None, typer.Option("--add-config", help="name=value,name=value; [a,b] for a value with commas.")
    ] = None,
    delete_config: Annotated[list[str] | None, typer.Option("--delete-config", help="name,name.")] = None,
    json: Json = False,
) -> None:
    """Describe or alter the configuration of a topic, broker or group."""

    async def main() -> None:
        action = one_of(describe=describe, alter=alter)
        kind = KINDS.get(entity_type)
        if kind is None:
            message = f"--entity-type {entity_type!r} is not {', '.join(KINDS)}"
            raise ConfigurationError(message)
        if entity_default and kind != "broker":
            message = "--entity-default is for --entity-type brokers"
            raise ConfigurationError(message)
        if (entity_name is None) == (not entity_default):
            message = "give --entity-name, or --entity-default for all brokers"
            raise ConfigurationError(message)
        name = entity_name or ""
        shown = name or "all brokers"
        async with admin_at(bootstrap_server) as admin:
            if action == "alter":
                add = pairs(add_config or [], "--add-config")
                remove = [one for names in delete_config or [] for one in names.split(",")]
                if not add and not remove:
                    message = "--alter needs --add-config or --delete-config"
                    raise ConfigurationError(message)
                await admin.set_configs(kind, name, add, remove)
                if json:
                    out({"entity_type": entity_type, "entity_name": entity_name, "set": add, "deleted": remove})
                else:
                    typer.echo(f"Completed updating config for {kind} {shown}.")
                return
            if not json:
                typer.echo(f"{'All' if all_ else 'Dynamic'} configs for {kind} {shown} are:")
            for entry in await admin.configs(kind, name):
                if all_ or not entry.is_default:
                    if json:
                        out({"name": entry.name, "value": entry.value, "default": entry.is_default})
                    else:
                        typer.echo(f"  {entry.name}={entry.value}")

    run(main())
