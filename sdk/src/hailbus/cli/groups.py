"""`hailbus groups`: what `kafka-consumer-groups` shows and does, with its flag names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from hailbus._transport import TopicPartition
from hailbus._transport.kafka_admin import GroupDescription, KafkaAdmin
from hailbus.admin import ClusterAdmin
from hailbus.cli.common import Bootstrap, Json, bus_at, out, run, table
from hailbus.cli.kafka import admin_at, moment, needed, one_of
from hailbus.errors import ConfigurationError

__all__ = ["groups"]

_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
_TYPES = ("classic", "consumer")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


def groups(
    bootstrap_server: Bootstrap,
    list_: Annotated[
        bool, typer.Option("--list", help="Ids of all groups; with --state or --type, those too, or only some groups.")
    ] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Offsets and lag; see the views below.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Forget groups without members, with offsets.")] = False,
    delete_offsets: Annotated[bool, typer.Option("--delete-offsets", help="Forget offsets of --topic.")] = False,
    reset_offsets: Annotated[bool, typer.Option("--reset-offsets", help="Move a group without members.")] = False,
    group: Annotated[list[str] | None, typer.Option("--group", help="Id of the group; may be given often.")] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Instead of --group.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="View: offsets and lag (the default).")] = False,
    members: Annotated[bool, typer.Option("--members", help="View: members and what they read.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="[STATES]",
            help="View: state, coordinator, number of members. With --list, alone or like Stable,Empty: only those.",
        ),
    ] = None,
    type_: Annotated[
        str | None,
        typer.Option("--type", metavar="[TYPES]", help="With --list, alone or classic,consumer: only those."),
    ] = None,
    rebalances: Annotated[
        bool, typer.Option("--rebalances", help="View: why the group was rebalanced; hailbus-broker tells.")
    ] = False,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="NAME or NAME:PARTITION,PARTITION; all committed ones else.")
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Those that the group committed for.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="Where it is.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset")] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by")] = None,
    to_datetime: Annotated[str | None, typer.Option("--to-datetime", help="ISO 8601, UTC without zone.")] = None,
    by_duration: Annotated[str | None, typer.Option("--by-duration", help="So long ago, like PT1H30M.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan, as without --execute.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Without it the plan is only shown.")] = False,
    json: Json = False,
) -> None:
    """List, describe, delete or reset consumer groups."""

    async def main() -> None:
        action = one_of(
            list=list_, describe=describe, delete=delete, delete_offsets=delete_offsets, reset_offsets=reset_offsets
        )
        async with admin_at(bootstrap_server) as admin:
            if action == "list":
                states = _chosen(state, _STATES, "group state")
                types = _chosen(type_, _TYPES, "group type")
                await _list(admin, json=json, names_only=state is None and type_ is None, states=states, types=types)
                return
            if state or type_ is not None:
                message = "--type, and --state with a value, choose what --list shows; --state alone is a view"
                raise ConfigurationError(message)
            if all_groups and group:
                message = "give --group or --all-groups, not both"
                raise ConfigurationError(message)
            names = await admin.groups() if all_groups else [needed(name, "--group") for name in group or [""]]
            if action == "describe":
                if sum((offsets, members, state is not None, rebalances)) > 1:
                    message = "give only one of --offsets, --members, --state and --rebalances"
                    raise ConfigurationError(message)
                described = [await _existing(admin, name) for name in names]
                if members:
                    _show_members(described, json=json)
                elif state is not None:
                    _show_states(described, json=json)
                elif rebalances:
                    _show_rebalances(described, json=json)
                else:
                    async with ClusterAdmin(bus_at(bootstrap_server)) as cluster:
                        await _show_offsets(cluster, described, json=json)
            elif action == "delete":
                for name in names:
                    await admin.delete_group(name)
                    out({"group": name, "deleted": True}) if json else typer.echo(f"Deleted group {name}.")
            elif action == "delete_offsets":
                await _delete_offsets(admin, names, topic or [needed(None, "--topic")], json=json)
            else:
                if execute and dry_run:
                    message = "give --execute or --dry-run, not both"
                    raise ConfigurationError(message)
                if topic and all_topics:
                    message = "give --topic or --all-topics, not both"
                    raise ConfigurationError(message)
                how = one_of(
                    to_earliest=to_earliest,
                    to_latest=to_latest,
                    to_current=to_current,
                    to_offset=to_offset is not None,
                    shift_by=shift_by is not None,
                    to_datetime=to_datetime is not None,
                    by_duration=by_duration is not None,
                )
                since = None
                if to_datetime is not None:
                    since = moment(to_datetime, "--to-datetime")
                elif by_duration is not None:
                    since = datetime.now(tz=UTC) - _duration(by_duration)  # noqa: TID251 a command is the edge
                rows: list[list[object]] = []
                for name in names:
                    target = await _target(admin, name, topic or [], how, to_offset or shift_by or 0, since)
                    if execute:
                        await admin.set_offsets(name, target)
                    rows += [[name, tp.topic, tp.partition, found] for tp, found in sorted(target.items())]
                if json:
                    for row in rows:
                        out(dict(zip(["group", "topic", "partition", "new_offset"], row, strict=True)))
                else:
                    table(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], rows)
                    if not execute:
                        typer.echo("Only shown; --execute sets them.", err=True)

    run(main())


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        message = f"--by-duration {text!r} is not like P2DT3H4M5S"
        raise ConfigurationError(message)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _places(topics: Sequence[str], counts: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    """Partitions that somebody named: NAME, or NAME:0,1."""
    places = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        there = counts.get(name, ())
        chosen: Sequence[int] = there
        if colon:
            parts = numbers.split(",")
            if not all(part.isdigit() and int(part) in there for part in parts):
                message = f"--topic {text!r}: {name} has partitions 0 to {len(there) - 1}"
                raise ConfigurationError(message)
            chosen = [int(part) for part in parts]
        places += [TopicPartition(name, index) for index in chosen]
    return places


def _chosen(text: str | None, known: Sequence[str], what: str) -> list[str]:
    """What somebody named of what is known, in any case; nothing when nobody did."""
    if not text:
        return []
    names = {name.lower(): name for name in known}
    wanted = [name.strip() for name in text.split(",")]
    if unknown := [name for name in wanted if name.lower() not in names]:
        message = f"no {what} is called {unknown[0]!r}; there are {', '.join(known)}"
        raise ConfigurationError(message)
    return [names[name.lower()] for name in wanted]


async def _list(
    admin: KafkaAdmin, *, json: bool, names_only: bool, states: Sequence[str], types: Sequence[str]
) -> None:
    if not json and names_only:
        for name in await admin.groups():
            typer.echo(name)
        return
    found = await admin.list_groups(states=states, kinds=types)
    if json:
        for entry in found:
            out({"group": entry.group, "type": entry.kind, "protocol": entry.protocol_type, "state": entry.state})
    else:
        table(["GROUP", "TYPE", "STATE"], [[entry.group, entry.kind, entry.state] for entry in found])


async def _existing(admin: KafkaAdmin, name: str) -> GroupDescription:
    described = await admin.describe_group(name)
    if described.state == "Dead" and not await admin.committed(name):
        message = f"group {name!r} does not exist; --list shows those that do"
        raise ConfigurationError(message)
    return described


async def _show_offsets(cluster: ClusterAdmin, described: Sequence[GroupDescription], *, json: bool) -> None:
    rows: list[list[object]] = []
    for group in described:
        owners = {tp: member for member in group.members for tp in member.partitions}
        assigned = sorted({tp.topic for tp in owners})
        committed = {tp.topic for tp in await cluster.committed(group.group)}
        # A group that has not committed yet has a lag, too.
        for lag in await cluster.lag(group.group, sorted(committed.union(assigned))):
            member = owners.get(TopicPartition(lag.topic, lag.partition))
            if json:
                out(
                    {
                        "group": group.group,
                        "state": group.state,
                        "topic": lag.topic,
                        "partition": lag.partition,
                        "current_offset": lag.committed_offset,
                        "log_end_offset": lag.end_offset,
                        "lag": lag.lag,
                        "member_id": member.member_id if member else None,
                        "client_id": member.client_id if member else None,
                    }
                )
            rows.append(
                [
                    group.group,
                    lag.topic,
                    lag.partition,
                    "-" if lag.committed_offset is None else lag.committed_offset,
                    lag.end_offset,
                    lag.lag,
                    member.member_id if member else "-",
                    member.host if member else "-",
                    member.client_id if member else "-",
                ]
            )
    if not json:
        columns = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
        table(columns.split(), rows)


def _show_members(described: Sequence[GroupDescription], *, json: bool) -> None:
    rows: list[list[object]] = []
    for group in described:
        for member in group.members:
            partitions = [f"{topic}-{index}" for topic, index in member.partitions]
            if json:
                out(
                    {
                        "group": group.group,
                        "member_id": member.member_id,
                        "instance_id": member.instance_id,
                        "host": member.host,
                        "client_id": member.client_id,
                        "partitions": partitions,
                    }
                )
            rows.append(
                [
                    group.group,
                    member.member_id,
                    member.instance_id or "-",
                    member.host,
                    member.client_id,
                    len(partitions),
                    ",".join(partitions) or "-",
                ]
            )
    if not json:
        table(["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"], rows)


def _show_states(described: Sequence[GroupDescription], *, json: bool) -> None:
    rows: list[list[object]] = []
    for group in described:
        last = group.rebalances[-1] if group.rebalances else None
        if json:
            out(
                {
                    "group": group.group,
                    "type": group.kind,
                    "state": group.state,
                    "coordinator": group.coordinator,
                    "assignor": group.assignor,
                    "members": len(group.members),
                    "last_rebalance": last.reason if last else None,
                }
            )
        rows.append(
            [
                group.group,
                group.coordinator,
                group.assignor or "-",
                group.state,
                len(group.members),
                last.reason if last else "-",
            ]
        )
    if not json:
        table(["GROUP", "COORDINATOR", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS", "LAST-REBALANCE"], rows)


def _show_rebalances(described: Sequence[GroupDescription], *, json: bool) -> None:
    rows: list[list[object]] = []
    for group in described:
        for entry in group.rebalances:
            at = datetime.fromtimestamp(entry.at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
            if json:
                out(
                    {
                        "group": group.group,
                        "at": at,
                        "generation": entry.generation,
                        "members": entry.members,
                        "cause": entry.cause,
                        "reason": entry.reason,
                    }
                )
            rows.append([group.group, at, entry.generation, entry.members, entry.cause, entry.reason])
    if not json:
        table(["GROUP", "AT", "GENERATION", "#MEMBERS", "CAUSE", "REASON"], rows)
        if not rows:
            typer.echo("The broker reports no rebalance: hailbus-broker keeps them from its start on.", err=True)


async def _partition_numbers(admin: KafkaAdmin, topics: Sequence[str]) -> dict[str, list[int]]:
    described = await admin.describe([text.partition(":")[0] for text in topics])
    return {name: sorted(description.leaders) for name, description in described.items()}


async def _delete_offsets(admin: KafkaAdmin, names: Sequence[str], topics: Sequence[str], *, json: bool) -> None:
    numbers = await _partition_numbers(admin, topics)
    missing = [text for text in topics if text.partition(":")[0] not in numbers]
    if missing:
        message = f"--topic {missing[0]!r} does not exist"
        raise ConfigurationError(message)
    places = _places(topics, numbers)
    rows: list[list[object]] = []
    for name in names:
        await admin.delete_offsets(name, places)
        for place in places:
            if json:
                out({"group": name, "topic": place.topic, "partition": place.partition, "deleted": True})
            rows.append([name, place.topic, place.partition, "Successful"])
    if not json:
        table(["GROUP", "TOPIC", "PARTITION", "STATUS"], rows)


async def _target(
    admin: KafkaAdmin, group: str, topics: Sequence[str], how: str, number: int, since: datetime | None
) -> dict[TopicPartition, int]:
    """Where a group's offsets shall be, within what there is."""
    now = await admin.committed(group)
    chosen = list(topics) or sorted({tp.topic for tp in now})
    if not chosen:
        message = f"group {group!r} has committed nothing; say which topics by --topic"
        raise ConfigurationError(message)
    names = sorted({text.partition(":")[0] for text in chosen})
    starts, ends = await admin.start_offsets(names), await admin.end_offsets(names)
    numbers: dict[str, list[int]] = {}
    for tp in sorted(ends):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    places = _places(chosen, numbers)
    match how:
        case "to_earliest":
            target = dict(starts)
        case "to_latest":
            target = dict(ends)
        case "to_current":
            target = {tp: now.get(tp, ends[tp]) for tp in ends}
        case "to_offset":
            target = dict.fromkeys(ends, number)
        case "shift_by":
            target = {tp: now.get(tp, starts[tp]) + number for tp in ends}
        case _:
            assert since is not None
            target = dict(await admin.offsets_at(names, since))
    return {tp: min(max(target[tp], starts[tp]), ends[tp]) for tp in places}
