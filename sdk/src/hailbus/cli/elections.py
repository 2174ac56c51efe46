"""`hailbus elect`: what `kafka-leader-election` does, with its flag names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hailbus._transport import cluster_requests
from hailbus._transport.kafka_admin import reason_of, refused
from hailbus.cli.common import Bootstrap, Json, out, run
from hailbus.cli.kafka import admin_at, one_of
from hailbus.cli.reassign import partitions_of, read_json
from hailbus.errors import ConfigurationError

__all__ = ["elect"]

ELECTION_TYPES = {"preferred": 0, "unclean": 1}
ELECTION_NOT_NEEDED = 84
TIMEOUT_MS = 30_000


def elect(
    bootstrap_server: Bootstrap,
    election_type: Annotated[str, typer.Option("--election-type", help="preferred or unclean.")],
    topic: Annotated[str | None, typer.Option("--topic", help="With --partition.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Of the topic.")] = None,
    path_to_json_file: Annotated[
        Path | None,
        typer.Option("--path-to-json-file", help='{"partitions": [{"topic": "t", "partition": 0}]}', dir_okay=False),
    ] = None,
    all_topic_partitions: Annotated[bool, typer.Option("--all-topic-partitions", help="All of the cluster.")] = False,
    json: Json = False,
) -> None:
    """Elect leaders: the preferred replicas, or unclean, a replica that may lack records."""

    async def main() -> None:
        chosen = one_of(
            topic=topic is not None,
            path_to_json_file=path_to_json_file is not None,
            all_topic_partitions=all_topic_partitions,
        )
        kind = ELECTION_TYPES.get(election_type.lower())
        if kind is None:
            message = f"--election-type {election_type!r} is not {', '.join(ELECTION_TYPES)}"
            raise ConfigurationError(message)
        if (chosen == "topic") != (partition is not None):
            message = "--topic and --partition go together"
            raise ConfigurationError(message)
        wanted: dict[str, list[int]] | None = None
        if topic is not None and partition is not None:
            wanted = {topic: [partition]}
        elif path_to_json_file is not None:
            wanted = {}
            for name, index, _ in partitions_of(read_json(path_to_json_file), path_to_json_file):
                wanted.setdefault(name, []).append(index)
        async with admin_at(bootstrap_server) as admin:
            answer = await admin.ask(cluster_requests.elect_leaders(kind, wanted, timeout_ms=TIMEOUT_MS))
        refused(answer.error_code, "no leader was elected")
        results = sorted(
            (f"{name}-{index}", code, message) for name, (index, code, message, *_) in cluster_requests.rows(answer)
        )
        _show(election_type.upper(), results, as_json=json)

    run(main())


def _show(kind: str, results: list[tuple[str, int, str | None]], *, as_json: bool) -> None:
    failed = [
        (name, reason_of(code, message)) for name, code, message in results if code not in {0, ELECTION_NOT_NEEDED}
    ]
    if as_json:
        reasons = dict(failed)
        for name, code, _ in results:
            out({"partition": name, "elected": code == 0, "error": reasons.get(name)})
    else:
        elected = ", ".join(name for name, code, _ in results if code == 0)
        unneeded = ", ".join(name for name, code, _ in results if code == ELECTION_NOT_NEEDED)
        if elected:
            typer.echo(f"Successfully completed leader election ({kind}) for partitions {elected}")
        if unneeded:
            typer.echo(f"Valid replica already elected for partitions {unneeded}")
        for name, reason in failed:
            typer.echo(f"Error completing leader election ({kind}) for partition: {name}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)
