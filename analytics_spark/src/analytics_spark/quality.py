"""What may enter silver: exactly what the services accept, because the same code decides.

Runs in Spark's Python workers, on Arrow columns. A UDF, and not `from_json`, since only the event classes know their
own rules (H3 cells, bounds, patterns, versions, structured CloudEvents): a second description of them would drift.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hailbus import Catalogue, ContractError, event_info
from hailbus.codec import decode

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["VERDICT_DDL", "judge", "judge_arrow"]

VERDICT_DDL = (
    "error string, reason string, ce_id string, ce_source string, ce_type string, ce_version int, ce_time timestamp, "
    "ce_subject string, correlation_id string, causation_id string, traceparent string, data string"
)
"""What `judge` says of a record: `error` is null for an event, and `data` is then its JSON as its class writes it."""

_LONG_NUMBER = re.compile(rb"\d{19}")
_REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class _Record:
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


Verdict = tuple[str | None, str | None, Any, Any, Any, Any, Any, Any, Any, Any, Any, str | None]


def judge(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    catalogue: Catalogue,
) -> Verdict:
    """The verdict on one record, in the order of `VERDICT_DDL`. Never raises."""
    try:
        event, envelope = decode(_Record(topic, key, value, headers), catalogue)
        declared = event_info(event).topic.name
        if declared != topic:
            return _refused("WrongTopicError", f"{envelope.type!r} belongs on topic {declared!r}, not on {topic!r}")
        data = event.__pydantic_serializer__.to_json(event)
        # Python's integers are boundless, a column's have 64 bits; only a long number costs the closer look.
        if _LONG_NUMBER.search(data) and _exceeds_long(event.model_dump(mode="json")):
            return _refused("OutOfRangeError", f"{envelope.type!r} holds an integer of more than 64 bits")
    except ContractError as error:
        return _refused(type(error).__name__, str(error))
    except Exception as error:  # noqa: BLE001 one record must not stop the stream; the table says what it was
        return _refused(type(error).__name__, str(error))
    return (
        None,
        None,
        envelope.id,
        envelope.source,
        envelope.type,
        envelope.version,
        envelope.time,
        envelope.subject,
        envelope.correlation_id,
        envelope.causation_id,
        envelope.traceparent,
        data.decode(),
    )


def _refused(error: str, reason: str) -> Verdict:
    return (error, reason[:_REASON_LENGTH], None, None, None, None, None, None, None, None, None, None)


def _exceeds_long(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    inner: Iterable[object] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_exceeds_long(one) for one in inner)


@cache
def _catalogue() -> Catalogue:
    from ride_events import CATALOGUE

    return CATALOGUE


def judge_arrow(topics: "pa.Array", keys: "pa.Array", values: "pa.Array", headers: "pa.Array") -> "pa.StructArray":
    """`judge` over Arrow columns: a struct column of `VERDICT_DDL`, one verdict per record."""
    import pyarrow as pa

    catalogue = _catalogue()
    # Flattened once: a Python dictionary per header would cost more than the decoding.
    names = headers.values.field(0).to_pylist()
    contents = headers.values.field(1).to_pylist()
    pairs = list(zip(names, contents, strict=True))
    bounds = headers.offsets.to_pylist()

    verdicts = [
        judge(topic, key, value, pairs[start:end], catalogue)
        for topic, key, value, start, end in zip(
            topics.to_pylist(), keys.to_pylist(), values.to_pylist(), bounds[:-1], bounds[1:], strict=True
        )
    ]
    columns = list(zip(*verdicts, strict=True)) if verdicts else [() for _ in range(12)]
    kinds = [pa.string(), pa.string(), pa.string(), pa.string(), pa.string(), pa.int32(), pa.timestamp("us", tz="UTC")]
    kinds += [pa.string()] * 5
    fields = [part.split(" ")[0] for part in VERDICT_DDL.split(", ")]
    arrays = [pa.array(column, type=kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.StructArray.from_arrays(arrays, names=fields)
