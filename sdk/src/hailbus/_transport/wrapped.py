"""A bus, and a consumer, over another one: bases for those that change what is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hailbus._transport import Admin, Bus, Consumer, Producer, RebalanceListener, Start

if TYPE_CHECKING:
    from hailbus.partitioner import Partitioner

__all__ = ["WrappedBus", "WrappedConsumer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedBus:
    """See `Bus`. Passes everything on to the inner bus; subclasses override `producer` and `consumer_over`."""

    inner: Bus

    @property
    def address(self) -> str:
        return self.inner.address

    @property
    def partitioner(self) -> Partitioner:
        return self.inner.partitioner

    @property
    def rebalance_timeout(self) -> timedelta | None:
        return self.inner.rebalance_timeout

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> Producer:
        return self.inner.producer(client_id=client_id, transactional_id=transactional_id)

    def consumer(
        self,
        *,
        client_id: str,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None = None,
        read_committed: bool = True,
    ) -> Consumer:
        inner = self.inner.consumer(
            client_id=client_id,
            group=group,
            topics=topics,
            start=start,
            listener=listener,
            read_committed=read_committed,
        )
        return self.consumer_over(inner, topics)

    def consumer_over(self, inner: Consumer, topics: Sequence[str]) -> Consumer:  # noqa: ARG002 for subclasses
        """Wrap a consumer of the inner bus that reads these topics."""
        return inner

    def admin(self, *, client_id: str) -> Admin:
        return self.inner.admin(client_id=client_id)


class WrappedConsumer:
    """See `Consumer`. Passes everything on to the inner consumer but `poll`, which subclasses define."""

    def __init__(self, inner: Consumer) -> None:
        self._inner = inner
        self.start = inner.start
        self.stop = inner.stop
        self.pause = inner.pause
        self.resume = inner.resume
        self.assignment = inner.assignment
        self.commit = inner.commit
        self.committed = inner.committed
        self.positions = inner.positions
        self.seek = inner.seek

    @property
    def unreachable_since_s(self) -> float | None:
        return self._inner.unreachable_since_s
