"""What the refusal of a batch says of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.testing.history.model import End

REFUSED_BEFORE_APPEND: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Codes that a broker gives to a batch that it has not appended."""


def outcome_of_refusal(code: ErrorCode) -> End:
    """Return whether a refused batch, which was sent once, is known not to be in the log.

    Other codes leave that open. After KAFKA_STORAGE_ERROR the batch may be in the log: its sync failed, a kill leaves
    it in the system's page cache, and the next start of the broker writes it again.
    """
    return "fail" if code in REFUSED_BEFORE_APPEND else "unknown"
