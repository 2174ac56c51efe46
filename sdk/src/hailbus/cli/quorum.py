"""`hailbus quorum`: what `kafka-metadata-quorum` shows and does, with its flag names."""

from __future__ import annotations

import json as encoder
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from hailbus._transport import cluster_requests
from hailbus._transport.kafka_admin import KafkaAdmin, refused
from hailbus.cli.common import Json, out, run, table
from hailbus.cli.kafka import AnyBootstrap, admin_at, brokers_of, one_of
from hailbus.errors import ConfigurationError

__all__ = ["quorum"]

quorum = typer.Typer(help="The quorum of the metadata: describe it, add or remove a controller.", no_args_is_help=True)

CHANGE_TIMEOUT_MS = 30_000
DIRECTORY_ID_BYTES = 16

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")]


@quorum.callback()
def _before(ctx: typer.Context, bootstrap_server: AnyBootstrap = None) -> None:
    ctx.obj = bootstrap_server


async def _described(admin: KafkaAdmin) -> tuple[Any, dict[int, list[str]]]:
    """The metadata partition as its leader sees it, and the endpoints of the voters."""
    answer = await admin.ask(cluster_requests.describe_quorum())
    refused(answer.error_code, "the quorum cannot be described", answer.error_message)
    ((_, partition),) = cluster_requests.rows(answer)
    names = ("index", "error_code", "error_message", "leader_id", "leader_epoch", "high_watermark")
    found = dict(zip((*names, "voters", "observers"), partition, strict=False))
    refused(found["error_code"], "the quorum cannot be described", found["error_message"])
    endpoints = {
        node_id: [f"{name}://{host}:{port}" for name, host, port, *_ in listeners]
        for node_id, listeners, *_ in answer.nodes
    }
    return found, endpoints


@quorum.command("describe")
def describe(
    ctx: typer.Context,
    bootstrap_server: AnyBootstrap = None,
    status: Annotated[bool, typer.Option("--status", help="Leader, voters and observers.")] = False,
    replication: Annotated[bool, typer.Option("--replication", help="How far each replica is.")] = False,
    human_readable: Annotated[bool, typer.Option("--human-readable", "-hr", help="Times as text.")] = False,
    json: Json = False,
) -> None:
    """Describe the quorum."""

    async def main() -> None:
        action = one_of(status=status, replication=replication)
        if human_readable and action == "status":
            message = "--human-readable is for --replication"
            raise ConfigurationError(message)
        async with admin_at(brokers_of(ctx, bootstrap_server)) as admin:
            found, endpoints = await _described(admin)
            cluster_id = (await admin.ask(cluster_requests.describe_cluster())).cluster_id
        if action == "status":
            _show_status(cluster_id, found, endpoints, as_json=json)
        else:
            _show_replication(found, human_readable=human_readable, as_json=json)

    run(main())


def _show_status(cluster_id: str, found: dict[str, Any], endpoints: dict[int, list[str]], *, as_json: bool) -> None:
    leader = next(replica for replica in found["voters"] if replica[0] == found["leader_id"])
    others = [*found["voters"], *found["observers"]]
    slowest = min(others, key=lambda replica: replica[2])
    # As Apache Kafka: of the replica with the shortest log, and -1 if it has never caught up.
    lag_ms = -1 if slowest[4] < 0 else leader[4] - slowest[4]
    values = {
        "ClusterId": cluster_id,
        "LeaderId": found["leader_id"],
        "LeaderEpoch": found["leader_epoch"],
        "HighWatermark": found["high_watermark"],
        "MaxFollowerLag": leader[2] - slowest[2],
        "MaxFollowerLagTimeMs": lag_ms,
        "CurrentVoters": [_replica(replica, endpoints) for replica in found["voters"]],
        "CurrentObservers": [_replica(replica, {}) for replica in found["observers"]],
    }
    if as_json:
        out(values)
        return
    for name, value in values.items():
        text = encoder.dumps(value) if isinstance(value, list) else value
        typer.echo(f"{name + ':':<24}{text}")


def _replica(replica: Any, endpoints: dict[int, list[str]]) -> dict[str, object]:
    node_id, directory_id, *_ = replica
    found: dict[str, object] = {"id": node_id}
    if any(directory_id):
        found["directoryId"] = _text(directory_id)
    if endpoints.get(node_id):
        found["endpoints"] = endpoints[node_id]
    return found


def _show_replication(found: dict[str, Any], *, human_readable: bool, as_json: bool) -> None:
    leader_end = next(replica[2] for replica in found["voters"] if replica[0] == found["leader_id"])

    def moment(time_ms: int) -> object:
        return (
            datetime.fromtimestamp(time_ms / 1_000, tz=UTC).isoformat() if human_readable and time_ms >= 0 else time_ms
        )

    columns = [
        "NodeId",
        "DirectoryId",
        "LogEndOffset",
        "Lag",
        "LastFetchTimestamp",
        "LastCaughtUpTimestamp",
        "Status",
    ]
    lines: list[list[object]] = []
    for status, replicas in (("Follower", found["voters"]), ("Observer", found["observers"])):
        for node_id, directory_id, end_offset, fetch_ms, caught_up_ms, *_ in replicas:
            is_leader = status == "Follower" and node_id == found["leader_id"]
            lines.append(
                [
                    node_id,
                    _text(directory_id),
                    end_offset,
                    leader_end - end_offset,
                    moment(fetch_ms),
                    moment(caught_up_ms),
                    "Leader" if is_leader else status,
                ]
            )
    lines.sort(key=lambda line: line[-1] != "Leader")
    if as_json:
        for line in lines:
            out(dict(zip(columns, line, strict=True)))
    else:
        table(columns, lines)


@quorum.command("add-controller")
def add_controller(
    ctx: typer.Context,
    command_config: Annotated[
        Path,
        typer.Option("--command-config", "--config", help="The new controller's properties file.", dir_okay=False),
    ],
    bootstrap_server: AnyBootstrap = None,
    dry_run: DryRun = False,
) -> None:
    """Add the controller of this machine to the voters: it must run, and have caught up."""

    async def main() -> None:
        node_id, directory_id, endpoints = _controller(command_config)
        shown = ", ".join(f"{name}://{host}:{port}" for name, host, port in endpoints)
        if not dry_run:
            request = cluster_requests.add_raft_voter(node_id, directory_id, endpoints, timeout_ms=CHANGE_TIMEOUT_MS)
            async with admin_at(brokers_of(ctx, bootstrap_server)) as admin:
                answer = await admin.ask(request)
            refused(answer.error_code, f"controller {node_id} cannot be added", answer.error_message)
        done = "DRY RUN of adding" if dry_run else "Added"
        typer.echo(f"{done} controller {node_id} with directory id {_text(directory_id)} and endpoints: {shown}")

    run(main())


@quorum.command("remove-controller")
def remove_controller(
    ctx: typer.Context,
    controller_id: Annotated[int, typer.Option("--controller-id", "-i", min=0, help="Its node id.")],
    controller_directory_id: Annotated[
        str, typer.Option("--controller-directory-id", "-d", help="Of its metadata directory, see describe.")
    ],
    bootstrap_server: AnyBootstrap = None,
    dry_run: DryRun = False,
) -> None:
    """Remove a controller from the voters; it may be the leader, or gone."""

    async def main() -> None:
        directory_id = _bytes(controller_directory_id, "--controller-directory-id")
        if not dry_run:
            request = cluster_requests.remove_raft_voter(controller_id, directory_id)
            async with admin_at(brokers_of(ctx, bootstrap_server)) as admin:
                answer = await admin.ask(request)
            refused(answer.error_code, f"controller {controller_id} cannot be removed", answer.error_message)
        done = "DRY RUN of removing " if dry_run else "Removed "
        typer.echo(f"{done} KRaft controller {controller_id} with directory id {controller_directory_id}")

    run(main())


def _text(directory_id: bytes) -> str:
    return urlsafe_b64encode(directory_id).decode().rstrip("=")


def _bytes(text: str, option: str) -> bytes:
    try:
        found = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        found = b""
    if len(found) != DIRECTORY_ID_BYTES:
        message = f"{option} {text!r} is no directory id: it has 22 characters, like those that describe prints"
        raise ConfigurationError(message)
    return found


def _controller(path: Path) -> tuple[int, bytes, list[tuple[str, str, int]]]:
    """Node id, directory id and endpoints of the controller that a properties file describes.

    Raises:
        ConfigurationError: The file says too little, or the controller's directory is not formatted.
    """
    values = _properties(path)
    node_id = values.get("node.id", "")
    if not node_id.isdigit():
        message = f"{path} has no node.id"
        raise ConfigurationError(message)
    directories = values.get("metadata.log.dir") or values.get("log.dirs") or values.get("log.dir") or ""
    directory = Path(directories.split(",")[0].strip() or "/tmp/kafka-logs")  # noqa: S108 - Kafka's default
    meta = _properties(directory / "meta.properties")
    names = [name.strip() for name in values.get("controller.listener.names", "").split(",")]
    endpoints = {}
    for listeners in (values.get("listeners", ""), values.get("advertised.listeners", "")):
        for listener in filter(None, (part.strip() for part in listeners.split(","))):
            name, _, address = listener.partition("://")
            host, _, port = address.rpartition(":")
            if name in names and port.isdigit():
                endpoints[name] = (name, host.strip("[]") or "localhost", int(port))
    if not endpoints:
        message = f"{path} has no listener that its controller.listener.names names"
        raise ConfigurationError(message)
    found = [endpoints[name] for name in names if name in endpoints]
    return int(node_id), _bytes(meta.get("directory.id", ""), f"directory.id in {directory}/meta.properties"), found


def _properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise ConfigurationError(message) from error
    pairs = (line.partition("=") for line in map(str.strip, lines) if line and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in pairs}
