"""The transaction that a handler runs in, under `ExactlyOnce`."""

from __future__ import annotations

from contextvars import ContextVar

from hailbus._transport import Outgoing

__all__ = ["Transaction", "current_transaction"]


class Transaction:
    """Records that will be written when the transaction is committed."""

    def __init__(self) -> None:
        self.pending: dict[tuple[str, int], list[Outgoing]] = {}

    def add(self, topic: str, partition: int, record: Outgoing) -> None:
        """Write this record at commit, in the order of adding per partition."""
        self.pending.setdefault((topic, partition), []).append(record)

    def mark(self) -> dict[tuple[str, int], int]:
        """How much has been added, for `rewind`."""
        return {place: len(records) for place, records in self.pending.items()}

    def rewind(self, mark: dict[tuple[str, int], int]) -> None:
        """Forget what was added after a mark."""
        for place, records in self.pending.items():
            del records[mark.get(place, 0) :]


current_transaction: ContextVar[Transaction | None] = ContextVar("hailbus_transaction", default=None)
"""Set while a handler under `ExactlyOnce` runs: publishers add to it in place of sending."""
