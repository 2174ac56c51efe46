"""Metadata transactions (KIP-868): records that are applied together, although they fill many batches.

A controller writes them for changes that are larger than a batch, such as the records of a new cluster. Records
between a beginning and its end are held back. The end releases them, an abort drops them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol.definitions.abort_transaction_record import AbortTransactionRecord
from hailbus_broker.protocol.definitions.begin_transaction_record import BeginTransactionRecord
from hailbus_broker.protocol.definitions.end_transaction_record import EndTransactionRecord
from hailbus_broker.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import Offset


class TransactionReplay:
    """Gives out the records of a metadata log in the order in which they are applied.

    Nothing of it is durable: a restart reads the log from the last snapshot, and no snapshot covers a part of a
    transaction.

    Attributes:
        start_offset: Offset of the record that began the open transaction; None if there is none. A snapshot must not
            end behind it.
        name: Of the open transaction.
    """

    def __init__(self) -> None:
        self.start_offset: Offset | None = None
        self.name: str | None = None
        self._held_back: Final[list[Message]] = []

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended. A new controller aborts it before anything else."""
        return self.start_offset is not None

    def take(self, records: Iterable[tuple[Offset, Message]]) -> list[Message]:
        """Return the records to apply now, in order. The markers of transactions are not among them.

        Args:
            records: The next ones of the log, with their offsets.

        Raises:
            ProtocolError: A transaction begins in another one, or ends without a beginning. The node must stop.
        """
        released: list[Message] = []
        for offset, record in records:
            match record:
                case BeginTransactionRecord():
                    if self.start_offset is not None:
                        raise ProtocolError(
                            f"a metadata transaction begins at offset {offset}, and the one that began at offset "
                            f"{self.start_offset} has not ended"
                        )
                    self.start_offset, self.name = offset, record.name
                case EndTransactionRecord():
                    self._end(offset, "ends")
                    released += self._held_back
                    self._held_back.clear()
                case AbortTransactionRecord():
                    self._end(offset, "is aborted")
                    self._held_back.clear()
                case _:
                    (released if self.start_offset is None else self._held_back).append(record)
        return released

    def _end(self, offset: Offset, what: str) -> None:
        if self.start_offset is None:
            raise ProtocolError(f"a metadata transaction {what} at offset {offset}, and none has begun")
        self.start_offset = self.name = None
