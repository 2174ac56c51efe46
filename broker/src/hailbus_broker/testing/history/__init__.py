"""Histories of clients, and the checks that tell whether a broker has kept its promises."""

from hailbus_broker.testing.history.checks import CHECKS, consume_counts, violations
from hailbus_broker.testing.history.model import (
    Acked,
    Attempted,
    Committed,
    Deleted,
    End,
    History,
    Identified,
    KeyRead,
    KeyWrite,
    Listed,
    Owned,
    Polled,
    Sent,
    Stored,
    TimeLookup,
    Watermark,
)
from hailbus_broker.testing.history.refusals import outcome_of_refusal

__all__ = [
    "CHECKS",
    "Acked",
    "Attempted",
    "Committed",
    "Deleted",
    "End",
    "History",
    "Identified",
    "KeyRead",
    "KeyWrite",
    "Listed",
    "Owned",
    "Polled",
    "Sent",
    "Stored",
    "TimeLookup",
    "Watermark",
    "consume_counts",
    "outcome_of_refusal",
    "violations",
]
