"""Single records of the log and of bronze, looked up by offset, to say what differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from analytics_spark.broker_view import Place, RecordSink, TopicView

__all__ = ["Content", "Log", "difference", "header_pairs", "id_of", "records_of_lake", "records_of_log"]


class Log(Protocol):
    """The broker, as verification uses it; `BrokerView` is one."""

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        """See `BrokerView.describe`."""
        ...

    def read(self, wanted: Mapping[Place, tuple[int, int]], sink: RecordSink) -> dict[Place, str]:
        """See `BrokerView.read`."""
        ...


@dataclass(frozen=True, slots=True)
class Content:
    """What a record holds, but for its timestamp."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records_of_log(log: Log, wanted: Sequence[tuple[Place, int]]) -> dict[tuple[Place, int], Content]:
    """The records at these offsets; fewer when the broker falls silent."""
    found: dict[tuple[Place, int], Content] = {}
    waiting = list(wanted)
    while waiting:
        # One offset of each partition at a time: the others between them need not be read.
        now = dict(reversed(waiting))

        def take(
            place: Place,
            offset: int,
            key: bytes | None,
            value: bytes | None,
            headers: Sequence[tuple[str, bytes | None]],
        ) -> None:
            found[place, offset] = Content(key, value, list(headers))

        if log.read({place: (offset, offset + 1) for place, offset in now.items()}, take):
            break  # the broker fell silent: the records are named without their ids
        waiting = [one for one in waiting if now.get(one[0]) != one[1]]
    return found


def records_of_lake(connection: Any, wanted: Sequence[tuple[Place, int]]) -> dict[tuple[Place, int], Content]:
    """The rows of bronze at these offsets; one of them where there are several."""
    import pyarrow as pa

    if not wanted:
        return {}
    connection.register(
        "wanted",
        pa.table(
            {
                "topic": pa.array([place[0] for place, _ in wanted], pa.string()),
                "partition": pa.array([place[1] for place, _ in wanted], pa.int32()),
                "offset": pa.array([offset for _, offset in wanted], pa.int64()),
            }
        ),
    )
    rows = connection.execute(
        'SELECT topic, "partition", "offset", key, value, headers FROM bronze '
        'SEMI JOIN wanted USING (topic, "partition", "offset")'
    ).fetchall()
    connection.unregister("wanted")
    return {
        ((topic, partition), offset): Content(key, value, [(one["key"], one["value"]) for one in headers or ()])
        for topic, partition, offset, key, value, headers in rows
    }


def header_pairs(headers: Any) -> Iterator[list[tuple[str, bytes | None]]]:
    """The headers of each row of an Arrow column, as pairs."""
    # Flattened once: a Python dictionary per header would cost more than the hashing.
    names = headers.values.field(0).to_pylist()
    contents = headers.values.field(1).to_pylist()
    bounds = headers.offsets.to_pylist()
    pairs = list(zip(names, contents, strict=True))
    for start, end in pairwise(bounds):
        yield pairs[start:end]


def id_of(content: Content | None) -> str | None:
    """Return the CloudEvents id in the headers."""
    found = next((value for name, value in content.headers if name == "ce_id"), None) if content is not None else None
    return found.decode("utf-8", "replace") if found is not None else None


def difference(log: Content | None, lake: Content | None) -> str | None:
    """Name the parts that differ: key, value, headers. None where one side could not be read."""
    if log is None or lake is None:
        return None
    names = [name for name in ("key", "value", "headers") if getattr(log, name) != getattr(lake, name)]
    return " and ".join(names) or None
