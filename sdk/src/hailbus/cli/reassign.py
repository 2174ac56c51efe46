"""`hailbus reassign`: what `kafka-reassign-partitions` shows and does, with its flag names."""

from __future__ import annotations

import json as encoder
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hailbus._transport import cluster_requests
from hailbus._transport.kafka_admin import KafkaAdmin, reason_of, refused
from hailbus.cli.common import Bootstrap, Json, out, run
from hailbus.cli.kafka import admin_at, needed, one_of
from hailbus.errors import ConfigurationError

__all__ = ["partitions_of", "read_json", "reassign"]

NO_REASSIGNMENT_IN_PROGRESS = 85
Partition = tuple[str, int]
Replicas = Mapping[Partition, Sequence[int]]


def reassign(
    bootstrap_server: Bootstrap,
    list_: Annotated[bool, typer.Option("--list", help="Reassignments that are in progress.")] = False,
    generate: Annotated[bool, typer.Option("--generate", help="Propose replicas; changes nothing.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Start a reassignment.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Whether a reassignment is complete.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel a reassignment that is in progress.")] = False,
    reassignment_json_file: Annotated[
        Path | None,
        typer.Option("--reassignment-json-file", help="With --execute, --verify and --cancel.", dir_okay=False),
    ] = None,
    topics_to_move_json_file: Annotated[
        Path | None,
        typer.Option(
            "--topics-to-move-json-file", help='With --generate: {"topics": [{"topic": "t"}]}', dir_okay=False
        ),
    ] = None,
    broker_list: Annotated[str | None, typer.Option("--broker-list", help="With --generate: ids, like 1,2,3.")] = None,
    disable_rack_aware: Annotated[bool, typer.Option("--disable-rack-aware", help="With --generate.")] = False,
    additional: Annotated[
        bool, typer.Option("--additional", help="With --execute: while others are in progress.")
    ] = False,
    timeout: Annotated[int, typer.Option("--timeout", min=1, help="In ms.")] = 10_000,
    json: Json = False,
) -> None:
    """Move partitions between brokers."""

    async def main() -> None:
        action = one_of(list=list_, generate=generate, execute=execute, verify=verify, cancel=cancel)
        wanted: list[tuple[str, int, list[int]]] = []
        if action in {"execute", "verify", "cancel"}:
            path = Path(needed(str(reassignment_json_file or ""), "--reassignment-json-file"))
            wanted = partitions_of(read_json(path), path, needs_replicas=action != "cancel")
        async with admin_at(bootstrap_server) as admin:
            match action:
                case "list":
                    await _list(admin, timeout, as_json=json)
                case "generate":
                    path = Path(needed(str(topics_to_move_json_file or ""), "--topics-to-move-json-file"))
                    brokers = _broker_ids(needed(broker_list, "--broker-list"))
                    await _generate(admin, _topics_of(path), brokers, is_rack_aware=not disable_rack_aware)
                case "execute":
                    await _execute(admin, wanted, timeout, is_additional=additional)
                case "verify":
                    await _verify(admin, wanted, timeout, as_json=json)
                case "cancel":
                    await _cancel(admin, wanted, timeout)

    run(main())


# ------------------------------------------------------------------------------------------------------ files


def read_json(path: Path) -> Any:  # Any: JSON
    """The content of a JSON file.

    Raises:
        ConfigurationError: There is no such file, or it holds no JSON.
    """
    try:
        return encoder.loads(path.read_text())
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise ConfigurationError(message) from error
    except ValueError as error:
        message = f"{path} is not JSON: {error}"
        raise ConfigurationError(message) from error


def partitions_of(content: Any, path: Path, *, needs_replicas: bool = False) -> list[tuple[str, int, list[int]]]:
    """Topic, number and replicas of each partition in a file for elections or reassignments.

    Raises:
        ConfigurationError: It names no partitions, one of them twice, or moves replicas between directories.
    """
    found: dict[Partition, list[int]] = {}
    try:
        for entry in content["partitions"]:
            place = (str(entry["topic"]), int(entry["partition"]))
            if place in found:
                message = f"{path} names partition {place[0]}-{place[1]} twice"
                raise ConfigurationError(message)
            if any(directory != "any" for directory in entry.get("log_dirs", ())):
                message = f"{path} names log_dirs: replicas cannot be moved between directories by this command"
                raise ConfigurationError(message)
            found[place] = [
                int(broker) for broker in (entry["replicas"] if needs_replicas else entry.get("replicas", ()))
            ]
    except (KeyError, TypeError, ValueError) as error:
        message = (
            f'{path} is not like {{"version": 1, "partitions": [{{"topic": "t", "partition": 0, "replicas": [1]}}]}}'
        )
        raise ConfigurationError(message) from error
    if not found:
        message = f"{path} names no partition"
        raise ConfigurationError(message)
    return [(topic, index, replicas) for (topic, index), replicas in found.items()]


def _topics_of(path: Path) -> list[str]:
    try:
        found = [str(entry["topic"]) for entry in read_json(path)["topics"]]
    except (KeyError, TypeError) as error:
        message = f'{path} is not like {{"version": 1, "topics": [{{"topic": "t"}}]}}'
        raise ConfigurationError(message) from error
    if not found:
        message = f"{path} names no topic"
        raise ConfigurationError(message)
    return found


def _broker_ids(text: str) -> list[int]:
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in ids) or len(set(ids)) != len(ids):
        message = f"--broker-list {text!r} is not a list of different ids, like 1,2,3"
        raise ConfigurationError(message)
    return [int(part) for part in ids]


def _as_json(replicas: Replicas) -> str:
    entries = [
        {"topic": topic, "partition": index, "replicas": list(brokers), "log_dirs": ["any"] * len(brokers)}
        for (topic, index), brokers in sorted(replicas.items())
    ]
    return encoder.dumps({"version": 1, "partitions": entries}, separators=(",", ":"))


# ------------------------------------------------------------------------------------------------------ actions


async def _in_progress(admin: KafkaAdmin, timeout_ms: int) -> dict[Partition, tuple[list[int], list[int], list[int]]]:
    """Replicas, those that are added, and those that are removed, of each partition that is being reassigned."""
    answer = await admin.ask(cluster_requests.list_partition_reassignments(timeout_ms=timeout_ms))
    refused(answer.error_code, "the reassignments cannot be listed", answer.error_message)
    return {
        (topic, index): (list(replicas), list(adding), list(removing))
        for topic, (index, replicas, adding, removing, *_) in cluster_requests.rows(answer)
    }


async def _current(admin: KafkaAdmin, topics: Sequence[str]) -> dict[Partition, list[int]]:
    described = await admin.describe(topics)
    missing = sorted(set(topics) - set(described))
    if missing:
        message = f"there is no topic {', '.join(missing)}"
        raise ConfigurationError(message)
    return {
        (topic, index): list(replicas) for topic in described for index, replicas in described[topic].replicas.items()
    }


async def _list(admin: KafkaAdmin, timeout_ms: int, *, as_json: bool) -> None:
    found = await _in_progress(admin, timeout_ms)
    if not found and not as_json:
        typer.echo("No partition reassignments found.")
        return
    if not as_json:
        typer.echo("Current partition reassignments:\n")
    for (topic, index), (replicas, adding, removing) in sorted(found.items()):
        if as_json:
            out({"topic": topic, "partition": index, "replicas": replicas, "adding": adding, "removing": removing})
            continue
        line = f"{topic}-{index}: replicas: {_ids(replicas)}."
        line += f" adding: {_ids(adding)}." if adding else ""
        line += f" removing: {_ids(removing)}." if removing else ""
        typer.echo(line)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


async def _generate(admin: KafkaAdmin, topics: list[str], brokers: list[int], *, is_rack_aware: bool) -> None:
    cluster = await admin.ask(cluster_requests.describe_cluster())
    racks = {broker_id: rack for broker_id, _, _, rack, *_ in cluster.brokers}
    unknown = [broker for broker in brokers if broker not in racks]
    if unknown:
        message = f"--broker-list names {_ids(unknown)}, and the cluster has the brokers {_ids(sorted(racks))}"
        raise ConfigurationError(message)
    named = {broker: racks[broker] for broker in brokers}
    if is_rack_aware and len({rack is None for rack in named.values()}) > 1:
        message = "only some of the brokers have a rack: give each one, or --disable-rack-aware"
        raise ConfigurationError(message)
    current = await _current(admin, topics)
    typer.echo(f"Current partition replica assignment\n{_as_json(current)}\n")
    order = alternated(named) if is_rack_aware else sorted(brokers)
    typer.echo(f"Proposed partition reassignment configuration\n{_as_json(proposed(current, order))}")


def alternated(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers in an order in which neighbours are in different racks, as far as that can be."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    longest = max(len(members) for members in by_rack.values())
    return [
        members[position]
        for position in range(longest)
        for _, members in sorted(by_rack.items())
        if position < len(members)
    ]


def proposed(current: Replicas, order: Sequence[int]) -> dict[Partition, list[int]]:
    """Replicas in turn: each broker leads, and holds, nearly as many partitions as any other.

    Raises:
        ConfigurationError: A partition has more replicas than there are brokers.
    """
    found = {}
    for turn, (place, replicas) in enumerate(sorted(current.items())):
        if len(replicas) > len(order):
            message = f"{place[0]}-{place[1]} has {len(replicas)} replicas, and --broker-list {len(order)} brokers"
            raise ConfigurationError(message)
        found[place] = [order[(turn + number) % len(order)] for number in range(len(replicas))]
    return found


async def _alter(
    admin: KafkaAdmin, wanted: Mapping[Partition, Sequence[int] | None], timeout_ms: int
) -> dict[Partition, tuple[int, str | None]]:
    """Error code and message of each partition."""
    by_topic: dict[str, dict[int, Sequence[int] | None]] = {}
    for (topic, index), replicas in wanted.items():
        by_topic.setdefault(topic, {})[index] = replicas
    answer = await admin.ask(cluster_requests.alter_partition_reassignments(by_topic, timeout_ms=timeout_ms))
    refused(answer.error_code, "the reassignments cannot be changed", answer.error_message)
    return {(topic, index): (code, text) for topic, (index, code, text, *_) in cluster_requests.rows(answer)}


def _names(places: Sequence[Partition]) -> str:
    return ",".join(f"{topic}-{index}" for topic, index in sorted(places))


async def _execute(
    admin: KafkaAdmin, wanted: list[tuple[str, int, list[int]]], timeout_ms: int, *, is_additional: bool
) -> None:
    if not is_additional and await _in_progress(admin, timeout_ms):
        message = (
            "Cannot execute because there is an existing partition assignment.  Use --additional to override this "
            "and create a new partition assignment in addition to the existing one."
        )
        raise ConfigurationError(message)
    replicas: dict[Partition, Sequence[int] | None] = {(topic, index): brokers for topic, index, brokers in wanted}
    current = await _current(admin, sorted({topic for topic, _, _ in wanted}))
    missing = sorted(set(replicas) - set(current))
    if missing:
        message = f"there is no partition {_names(missing)}"
        raise ConfigurationError(message)
    before = _as_json({place: current[place] for place in replicas})
    typer.echo(f"Current partition replica assignment\n\n{before}\n")
    typer.echo("Save this to use as the --reassignment-json-file option during rollback")
    results = await _alter(admin, replicas, timeout_ms)
    failed = {place: reason_of(code, text) for place, (code, text) in results.items() if code}
    if failed:
        lines = "\n".join(f"{_names([place])}: {reason}" for place, reason in sorted(failed.items()))
        message = f"Error reassigning partition(s):\n{lines}"
        raise ConfigurationError(message)
    plural = "s" if len(replicas) > 1 else ""
    typer.echo(f"Successfully started partition reassignment{plural} for {_names(list(replicas))}")


async def _verify(
    admin: KafkaAdmin, wanted: list[tuple[str, int, list[int]]], timeout_ms: int, *, as_json: bool
) -> None:
    busy = await _in_progress(admin, timeout_ms)
    current = await _current(admin, sorted({topic for topic, _, _ in wanted}))
    if not as_json:
        typer.echo("Status of partition reassignment:")
    for topic, index, replicas in sorted(wanted):
        name, found = f"{topic}-{index}", current.get((topic, index))
        if as_json:
            is_busy, is_done = (topic, index) in busy, found == replicas
            out({"partition": name, "in_progress": is_busy, "complete": is_done and not is_busy, "replicas": found})
        elif (topic, index) in busy:
            typer.echo(f"Reassignment of partition {name} is still in progress.")
        elif found == replicas:
            typer.echo(f"Reassignment of partition {name} is completed.")
        else:
            typer.echo(
                f"There is no active reassignment of partition {name}, but replica set is {_ids(found or [])} "
                f"rather than {_ids(replicas)}."
            )


async def _cancel(admin: KafkaAdmin, wanted: list[tuple[str, int, list[int]]], timeout_ms: int) -> None:
    busy = await _in_progress(admin, timeout_ms)
    places = [(topic, index) for topic, index, _ in wanted if (topic, index) in busy]
    results = await _alter(admin, dict.fromkeys(places), timeout_ms) if places else {}
    failed = {
        place: reason_of(code, text)
        for place, (code, text) in results.items()
        if code not in {0, NO_REASSIGNMENT_IN_PROGRESS}
    }
    if failed:
        lines = "\n".join(f"{_names([place])}: {reason}" for place, reason in sorted(failed.items()))
        message = f"Error cancelling partition reassignments:\n{lines}"
        raise ConfigurationError(message)
    if places:
        plural = "s" if len(places) > 1 else ""
        typer.echo(f"Successfully cancelled partition reassignment{plural} for: {_names(places)}")
    else:
        typer.echo("None of the specified partition reassignments are active.")
