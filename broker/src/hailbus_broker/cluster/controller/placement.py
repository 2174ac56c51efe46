"""Which brokers get the replicas of new partitions: striped over racks, brokers that are fenced last.

Partitions begin with one rack after the other, and replicas of a partition go round the racks. So leaders and replicas
are spread evenly, and a partition survives a rack as soon as it has as many replicas as there are racks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from hailbus_broker.cluster.metadata.brokers import BrokerState


def place(
    brokers: Iterable[BrokerState], *, partition_count: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition; the first one is on a broker that is not fenced.

    Args:
        brokers: All that are registered. Those in controlled shutdown get nothing.
        partition_count: How many partitions there are to place.
        replication_factor: Of each.
        rng: Where the stripes begin.

    Raises:
        ApiError: INVALID_REPLICATION_FACTOR: there are too few brokers.
    """
    usable = [broker for broker in brokers if not broker.in_controlled_shutdown]
    check_replication_factor(replication_factor, usable)
    racks = _Racks(usable, rng)
    return [racks.place(replication_factor) for _ in range(partition_count)]


def check_replication_factor(replication_factor: int, usable: Sequence[BrokerState]) -> None:
    """Refuse a factor that the brokers cannot give.

    Raises:
        ApiError: INVALID_REPLICATION_FACTOR.
    """
    if replication_factor <= 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    start = f"Unable to replicate the partition {replication_factor} time(s): "
    if replication_factor > len(usable):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{start}The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered. Start more brokers, or ask for {len(usable)} at most.",
        )
    if all(broker.fenced for broker in usable):
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{start}All brokers are currently fenced.")


class _Stripe:
    """Brokers of a rack in their order. Each round begins one broker further."""

    def __init__(self, brokers: list[int], rng: random.Random) -> None:
        self.brokers: Final = sorted(brokers)
        self._start = rng.randrange(len(brokers)) if brokers else 0
        self._taken = 0
        self._round = 0

    def next(self, number: int) -> int | None:
        """Return the next broker in a round, or None when all had their turn."""
        if not self.brokers:
            return None
        if self._round != number:
            self._round, self._taken, self._start = number, 0, (self._start + 1) % len(self.brokers)
        if self._taken == len(self.brokers):
            return None
        found = self.brokers[(self._start + self._taken) % len(self.brokers)]
        self._taken += 1
        return found


class _Rack:
    """The brokers of a rack."""

    def __init__(self, brokers: Sequence[BrokerState], rng: random.Random) -> None:
        self.fenced: Final = _Stripe([broker.node_id for broker in brokers if broker.fenced], rng)
        self.unfenced: Final = _Stripe([broker.node_id for broker in brokers if not broker.fenced], rng)

    def next(self, number: int) -> int | None:
        found = self.unfenced.next(number)
        return self.fenced.next(number) if found is None else found

    def shuffle(self, rng: random.Random) -> None:
        rng.shuffle(self.fenced.brokers)
        rng.shuffle(self.unfenced.brokers)


class _Racks:
    """All racks. Brokers without a rack share one."""

    def __init__(self, brokers: Sequence[BrokerState], rng: random.Random) -> None:
        names = sorted({broker.rack for broker in brokers}, key=lambda name: (name is not None, name or ""))
        self._racks: Final = [_Rack([broker for broker in brokers if broker.rack == name], rng) for name in names]
        self._unfenced_count: Final = sum(not broker.fenced for broker in brokers)
        self._rng: Final = rng
        self._start = rng.randrange(len(self._racks))
        self._round = 0

    def place(self, replication_factor: int) -> tuple[int, ...]:
        if self._round and self._unfenced_count > 1 and self._round % self._unfenced_count == 0:
            # Every broker has led once: another order avoids the same combinations.
            self._rng.shuffle(self._racks)
            for rack in self._racks:
                rack.shuffle(self._rng)
        order = self._racks[self._start :] + self._racks[: self._start]
        replicas: list[int] = []
        turn = order
        for rack in order:
            leader = rack.unfenced.next(self._round)
            if leader is not None:
                replicas.append(leader)
                # The leader's rack has had its turn in the first pass over the racks.
                turn = [other for other in order if other is not rack]
                break
        while len(replicas) < replication_factor:
            for rack in turn:
                if len(replicas) < replication_factor:
                    found = rack.next(self._round)
                    if found is not None:
                        replicas.append(found)
            turn = order
        self._round += 1
        self._start = (self._start + 1) % len(self._racks)
        return tuple(replicas)
