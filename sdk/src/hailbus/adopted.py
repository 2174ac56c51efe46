"""A record with the CloudEvents attributes that it lacks; the record itself stays what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hailbus._transport import Received
from hailbus.errors import ContractError

__all__ = ["Adopted", "original_of"]


@dataclass(frozen=True, slots=True)
class Adopted:
    """A record of a producer that knows nothing of CloudEvents.

    Attributes:
        original: The record as it is in the log; dead letters and retries are made of it.
        headers: With the attributes that were found out, before its own headers.
        value: The value as JSON.
        refusal: Why the attributes could not be found out.
    """

    original: Received
    headers: Sequence[tuple[str, bytes]]
    value: bytes | None
    refusal: ContractError | None = None

    @property
    def topic(self) -> str:
        """See `Received`."""
        return self.original.topic

    @property
    def partition(self) -> int:
        """See `Received`."""
        return self.original.partition

    @property
    def offset(self) -> int:
        """See `Received`."""
        return self.original.offset

    @property
    def timestamp(self) -> int:
        """See `Received`."""
        return self.original.timestamp

    @property
    def timestamp_type(self) -> int:
        """See `Received`."""
        return self.original.timestamp_type

    @property
    def key(self) -> bytes | None:
        """See `Received`."""
        return self.original.key


def original_of(record: Received) -> Received:
    """Return the record as it is in the log."""
    while isinstance(record, Adopted):
        record = record.original
    return record
