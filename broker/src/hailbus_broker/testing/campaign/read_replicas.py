"""Chooses the replica that a client with a rack reads from, as Kafka's consumers do (KIP-392)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.testing.campaign.recorder import Recorder

LASTS_S: Final = 1.5
"""How long a client reads from a follower before it asks the leader again (`metadata.max.age.ms` of Kafka's consumers).

Shorter than `replica.lag.time.max.ms`, so that clients meet followers that have left the ISR since.
"""
NO_REPLICA: Final = -1


class Chosen(NamedTuple):
    """The follower that the leader has named for a partition."""

    node_id: int
    until_s: float


class ReadReplicas:
    """Keeps the follower that each partition is read from, until it fails or its time is over.

    Args:
        rack: Of the client.
        recorder: Gets what must not be, and is told what followers have returned.
    """

    def __init__(self, rack: str, recorder: Recorder) -> None:
        self.rack: Final = rack
        self._recorder: Final = recorder
        self._chosen: Final[dict[tuple[str, int], Chosen]] = {}
        self._left: Final[dict[tuple[str, int], int]] = {}
        """The follower that each partition was read from before its leader was asked again."""

    def clear(self) -> None:
        """Forget all followers."""
        self._chosen.clear()
        self._left.clear()

    def forget(self, topic: str, partition: int) -> None:
        """Ask the leader again: the follower of a partition does not answer, or cannot."""
        chosen = self._chosen.pop((topic, partition), None)
        if chosen is not None:
            self._left[topic, partition] = chosen.node_id

    def follower_of(self, topic: str, partition: int, *, now_s: float) -> int | None:
        """Return the follower to read a partition from; None for its leader."""
        chosen = self._chosen.get((topic, partition))
        if chosen is not None and chosen.until_s <= now_s:
            self.forget(topic, partition)
            return None
        return None if chosen is None else chosen.node_id

    def leader_answered(self, topic: str, data: Any, racks: Mapping[int, str | None], *, now_s: float) -> bool:
        """Take over the follower that the leader names, if it names one.

        Return whether it is a broker that the client knows. Brokers that were fenced are not part of the metadata.

        Args:
            topic: Of the partition.
            data: What the leader has answered of the partition.
            racks: Rack of each broker.
            now_s: The time.
        """
        place, named = (topic, data.partition_index), data.preferred_read_replica
        if data.error_code:
            return True
        left = self._left.pop(place, None)
        if named == NO_REPLICA:
            if left is not None:
                self._recorder.when_returned(topic, data.partition_index, left)
            return True
        if named not in racks:
            return False
        if racks[named] != self.rack:
            self._recorder.fail(
                f"{topic}-{data.partition_index}: the leader names broker {named} of rack {racks[named]} "
                f"to a reader in rack {self.rack}"
            )
        if data.records:
            self._recorder.fail(f"{topic}-{data.partition_index}: the leader names broker {named} and returns records")
        self._recorder.note("follower in the reader's rack preferred")
        self._chosen[place] = Chosen(named, now_s + LASTS_S)
        return True

    def follower_answered(self, topic: str, data: Any) -> bool:
        """Take in what a follower has answered of a partition, and return whether the reader should see it.

        A follower may not have heard of the offset yet. A consumer then asks the leader, and does not reset its offset.
        """
        if data.error_code:
            self.forget(topic, data.partition_index)
            return bool(data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE)
        self._recorder.note("fetch from a follower")
        return True
