"""What a transaction coordinator decides: records, markers in the transaction's partitions, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hailbus_broker.coordinators.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.coordinators.transaction.state import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersToWrite:
    """The markers that end a transaction, to be written when the outcome's records are durable.

    Attributes:
        must_be_newer: Whether a partition must refuse the marker when it has data of the same producer epoch in an open
            transaction: in transactions v2 that data belongs to the next one.
        is_resumed: Whether some of them may have been written before a restart.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    must_be_newer: bool
    is_resumed: bool


@dataclass
class TransactionOutcome(Outcome):
    """An outcome whose markers are written once its records are durable, and before its replies are sent.

    Attributes:
        on_install: What the decision changes besides the records.
    """

    markers: list[MarkersToWrite] = field(default_factory=list)
    on_install: list[Callable[[], object]] = field(default_factory=list)

    def install(self) -> None:
        """See `Outcome`."""
        for change in self.on_install:
            change()
