"""The batches that clients of a campaign have read, each parsed once, because many clients read the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.records import BatchView, ControlType, iterate_records, read_control_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.records import BatchHeader, Record

_LENGTH_AT: Final = 8
_FIXED_BYTES: Final = 12
"""Base offset and length: what comes before the bytes that the length counts."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch whose CRC is right. A control batch has no `records`."""

    header: BatchHeader
    is_abort: bool
    records: tuple[Record, ...]


class Batches:
    """Parses batches, and remembers them by their bytes."""

    def __init__(self) -> None:
        self._known: Final[dict[bytes, ReadBatch]] = {}

    def of(self, data: bytes | memoryview) -> Iterator[ReadBatch]:
        """Return the batches of a response; the last one may be cut off, and is left out then.

        Raises:
            RecordsError: The bytes are damaged.
        """
        data = bytes(data)
        position, end = 0, len(data)
        while position + _FIXED_BYTES <= end:
            length = int.from_bytes(data[position + _LENGTH_AT : position + _FIXED_BYTES], "big", signed=True)
            stop = position + _FIXED_BYTES + length
            raw = data[position:stop]
            batch = self._known.get(raw)
            if batch is None:
                if stop > end:
                    return
                batch = self._known[raw] = _parse(raw)
            yield batch
            position = stop


def _parse(raw: bytes) -> ReadBatch:
    view = BatchView(raw)
    view.check_crc()
    if view.header.is_control:
        return ReadBatch(view.header, read_control_type(view) is ControlType.ABORT, ())
    return ReadBatch(view.header, False, tuple(iterate_records(view)))
