"""`hailbus dlq` and `hailbus parked`: what could not be handled, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from json import dumps as dump_json
from json import loads as parse_json
from pathlib import Path
from typing import Annotated

import typer

from hailbus.admin import ClusterAdmin
from hailbus.cli.common import Bootstrap, Json, bus_at, done, out, run, table
from hailbus.dead_letter_queue import DeadLetterQueue, with_fields
from hailbus.errors import ConfigurationError

__all__ = ["dlq", "parked"]

dlq = typer.Typer(help="Dead letters: list, show, edit, replay, drop.", no_args_is_help=True)
parked = typer.Typer(help="Parked keys: list, show, edit, release, drop.", no_args_is_help=True)

TRANSACTION_TIMEOUT_S = 60.0
Queue = Annotated[str, typer.Argument(help="The dead letter topic, <topic>.<group>-dlt.")]
Places = Annotated[list[str] | None, typer.Argument(help="<partition>@<offset>, as `list` shows them.")]
Database = Annotated[
    str, typer.Option("--database", envvar="HAILBUS_DATABASE_URL", help="URL of the service's database.")
]
Consumer = Annotated[str, typer.Option("--group", help="The consumer group.")]


async def _queue(bootstrap: str, name: str) -> DeadLetterQueue:
    """The letters of a queue, to be changed, on a cluster that answers.

    It may still take long to begin a transaction: for the first one of a cluster the broker makes a topic.
    """
    async with ClusterAdmin(bus_at(bootstrap)):
        return DeadLetterQueue(bus_at(bootstrap, connect_timeout_s=TRANSACTION_TIMEOUT_S), name)


@dlq.command("ls", hidden=True)
@dlq.command("list")
def dlq_list(
    bootstrap_server: Bootstrap,
    queue: Annotated[str | None, typer.Argument(help="A dead letter topic; all of them when left out.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Those dealt with, too.")] = False,
    json: Json = False,
) -> None:
    """List dead letters, oldest first."""

    async def main() -> None:
        bus = bus_at(bootstrap_server)
        async with ClusterAdmin(bus) as admin:
            names = [queue] if queue else sorted(name for name in await admin.topics() if name.endswith("-dlt"))
        rows: list[list[object]] = []
        for name in names:
            for letter in await DeadLetterQueue(bus, name).letters():
                if not letter.waits and not all_:
                    continue
                facts = letter.facts
                if json:
                    out(letter.as_json())
                rows.append(
                    [
                        name,
                        letter.place,
                        letter.status,
                        facts.get("ce_type", "?"),
                        facts.get("hailbus-attempt", "?"),
                        facts.get("exception-message", "")[:80],
                    ]
                )
        if not json:
            table(["QUEUE", "PLACE", "STATUS", "TYPE", "ATTEMPTS", "REASON"], rows)

    run(main())


@dlq.command("show")
def dlq_show(bootstrap_server: Bootstrap, queue: Queue, places: Places = None) -> None:
    """Show dead letters with their headers and values, as JSON."""

    async def main() -> None:
        for letter in await DeadLetterQueue(bus_at(bootstrap_server), queue).letters():
            if not places or letter.place in places:
                out(letter.as_json(with_value=True))

    run(main())


@dlq.command("edit")
def dlq_edit(
    bootstrap_server: Bootstrap,
    queue: Queue,
    place: Annotated[str, typer.Argument(help="<partition>@<offset>, as `list` shows it.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="PATH=VALUE: a field by its dotted path, a JSON value or a text.")
    ] = None,
    value_file: Annotated[Path | None, typer.Option("--value-file", help="The whole corrected value.")] = None,
    json: Json = False,
) -> None:
    """Correct the value of a letter that waits; a later replay publishes it so. Without options, in $EDITOR."""

    async def main() -> None:
        if set_ and value_file is not None:
            message = "--set and --value-file exclude each other"
            raise ConfigurationError(message)
        letters = await _queue(bootstrap_server, queue)
        if value_file is not None:
            if not value_file.is_file():
                message = f"there is no file {value_file}"
                raise ConfigurationError(message)
            value = value_file.read_bytes()
        else:
            letter = await letters.letter(place)
            value = with_fields(letter.value, _changes(set_)) if set_ else _in_editor(letter.value)
            if value == letter.value:
                done(f"Nothing changed in the letter at {place}.", json, queue=queue, place=place, edited=False)
                return
        await letters.edit(place, value)
        sentence = f"Edited the letter at {place} of {queue}; `hailbus dlq replay` publishes it."
        done(sentence, json, queue=queue, place=place, edited=True)

    run(main())


def _changes(settings: list[str]) -> dict[str, object]:
    changes: dict[str, object] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            message = f"--set {setting!r} is not like PATH=VALUE"
            raise ConfigurationError(message)
        try:
            changes[path] = parse_json(text)
        except ValueError:
            changes[path] = text
    return changes


def _in_editor(value: bytes | None) -> bytes:
    """What the user makes of a value; JSON is laid out for reading, and written compactly again."""
    text = (value or b"").decode("utf-8", "surrogateescape")
    with contextlib.suppress(ValueError):  # what is broken is edited as it is
        text = dump_json(parse_json(text), indent=2, ensure_ascii=False)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="hailbus-") as folder:
        file = Path(folder) / "letter.json"
        file.write_text(text, "utf-8", "surrogateescape")
        try:
            ended = subprocess.run([*shlex.split(editor), str(file)], check=False)
        except OSError as error:
            message = (
                f"the editor {editor!r} does not start: {error.strerror}; set EDITOR, or give --set or --value-file"
            )
            raise ConfigurationError(message) from error
        if ended.returncode:
            message = f"the editor {editor!r} ended with {ended.returncode}; nothing was changed"
            raise ConfigurationError(message)
        edited = file.read_text("utf-8", "surrogateescape")
    if edited == text:
        return value or b""
    try:
        return dump_json(parse_json(edited), ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as error:
        message = f"what you saved is no JSON: {error}; nothing was changed"
        raise ConfigurationError(message) from error


@dlq.command("replay")
def dlq_replay(
    bootstrap_server: Bootstrap,
    queue: Queue,
    places: Places = None,
    all_: Annotated[bool, typer.Option("--all", help="Every letter that waits.")] = False,
    value_file: Annotated[Path | None, typer.Option("--value-file", help="A corrected value for one letter.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Those replayed or dropped before, too.")] = False,
    json: Json = False,
) -> None:
    """Publish dead letters to where they came from. The event ids stay, so a second replay changes nothing."""

    async def main() -> None:
        if bool(places) == all_:
            message = "name places, or give --all"
            raise ConfigurationError(message)
        if value_file is not None and not value_file.is_file():
            message = f"there is no file {value_file}"
            raise ConfigurationError(message)
        value = value_file.read_bytes() if value_file is not None else None
        letters = await _queue(bootstrap_server, queue)
        replayed = [letter.place for letter in await letters.replay(places or None, value=value, force=force)]
        done(f"Replayed {len(replayed)} dead letters of {queue}.", json, queue=queue, replayed=replayed)

    run(main())


@dlq.command("drop")
def dlq_drop(
    bootstrap_server: Bootstrap, queue: Queue, places: Annotated[list[str], typer.Argument()], json: Json = False
) -> None:
    """Mark dead letters as dealt with, without publishing them."""

    async def main() -> None:
        letters = await _queue(bootstrap_server, queue)
        dropped = [letter.place for letter in await letters.drop(places)]
        done(f"Dropped {len(dropped)} dead letters of {queue}.", json, queue=queue, dropped=dropped)

    run(main())


@parked.command("ls")
def parked_list(database: Database, group: Consumer, json: Json = False) -> None:
    """List parked keys, oldest first."""

    async def main() -> None:
        from hailbus.database import create_engine
        from hailbus.parking import ParkingLot

        engine = create_engine(database)
        lot = ParkingLot(engine)
        await lot.create_tables()
        rows: list[list[object]] = []
        for key in await lot.keys(group):
            text = key.key.decode("utf-8", "backslashreplace")
            if json:
                out(
                    {
                        "topic": key.topic,
                        "partition": key.partition,
                        "key": text,
                        "waiting": key.waiting_count,
                        "parked_at": key.parked_at.isoformat(),
                        "released": key.is_released,
                        "reason": key.reason,
                    }
                )
            rows.append([key.topic, text, key.waiting_count, key.parked_at.isoformat(), key.is_released, key.reason])
        if not json:
            table(["TOPIC", "KEY", "WAITING", "PARKED AT", "RELEASED", "REASON"], rows)
        await engine.dispose()

    run(main())


@parked.command("show")
def parked_show(database: Database, group: Consumer, topic: str, key: str) -> None:
    """Show the waiting records of a key, as JSON, oldest first."""

    async def main() -> None:
        from hailbus.database import create_engine
        from hailbus.parking import ParkingLot

        engine = create_engine(database)
        for record in await ParkingLot(engine).records(group, topic, key.encode()):
            out(
                {
                    "position": record.position,
                    "place": f"{record.topic}-{record.partition}@{record.offset}",
                    "attempts": record.attempts,
                    "reason": record.reason,
                    "headers": [[n, v.decode("utf-8", "backslashreplace")] for n, v in record.headers],
                    "value": None if record.value is None else record.value.decode("utf-8", "backslashreplace"),
                }
            )
        await engine.dispose()

    run(main())


@parked.command("edit")
def parked_edit(
    database: Database,
    position: int,
    value_file: Annotated[Path, typer.Option("--value-file")],
    json: Json = False,
) -> None:
    """Replace the value of a waiting record."""

    async def main() -> None:
        if not value_file.is_file():
            message = f"there is no file {value_file}"
            raise ConfigurationError(message)
        from hailbus.database import create_engine
        from hailbus.parking import ParkingLot

        engine = create_engine(database)
        found = await ParkingLot(engine).edit(position, value_file.read_bytes())
        await engine.dispose()
        if not found:
            message = f"no record waits at position {position}; `hailbus parked show` shows positions"
            raise ConfigurationError(message)
        done(f"Edited the record at position {position}.", json, position=position, edited=True)

    run(main())


@parked.command("release")
def parked_release(
    database: Database,
    group: Consumer,
    topic: str,
    key: str,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Give up the numbered events that are missing before the next one.")
    ] = False,
    inbox: Annotated[
        str | None, typer.Option("--inbox", help="With --accept-gap: the consumer of the inbox, if not the group.")
    ] = None,
    json: Json = False,
) -> None:
    """Let the running service handle the waiting records of a key, in order."""

    async def main() -> None:
        from hailbus.database import create_engine
        from hailbus.parking import ParkingLot
        from hailbus.sequence import Sequences

        engine = create_engine(database)
        lot = ParkingLot(engine)
        if accept_gap and await lot.records(group, topic, key.encode(), limit=1):
            sequences = Sequences(engine, inbox if inbox is not None else group)
            await sequences.create_tables()
            await sequences.accept_gap(topic, key.encode())
        count = await lot.release(group, topic, key.encode())
        await engine.dispose()
        if not count:
            message = f"nothing is parked for key {key!r} of topic {topic!r} and group {group!r}"
            raise ConfigurationError(message)
        done(f"Released {count} records of key {key}.", json, topic=topic, key=key, released_count=count)

    run(main())


@parked.command("drop")
def parked_drop(database: Database, positions: Annotated[list[int], typer.Argument()], json: Json = False) -> None:
    """Drop waiting records by position; later ones of the key stay parked until released."""

    async def main() -> None:
        from hailbus.database import create_engine
        from hailbus.parking import ParkingLot

        engine = create_engine(database)
        count = await ParkingLot(engine).remove(positions)
        await engine.dispose()
        done(f"Dropped {count} records.", json, dropped_count=count)

    run(main())
