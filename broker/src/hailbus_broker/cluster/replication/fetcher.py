"""What a follower fetches from one leader: offsets, sessions (KIP-227) and pauses after errors, without I/O.

The offset in a request acknowledges everything before it, so the caller moves a partition only when what came before
is stored here (`moved`). One request is under way at a time: what a response brings is on the disk before the next
request. Kafka's followers acknowledge what they have only written to memory; a follower that fetched ahead of its disk
would have to tell the leader a lower offset than the one that it wants to read from, for which the protocol has no
field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hailbus_broker.protocol.definitions.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.protocol.definitions.fetch_response import FetchResponse, PartitionData
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.records import LeaderEpoch, Offset

    Key: TypeAlias = tuple[Uuid, int]

FIRST_BACKOFF_MS: Final = 20
"""The pause doubles from here to `replica.fetch.backoff.ms`: after an election a leader knows of it within a moment."""

_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """The broker's `replica.fetch` settings."""

    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    wait_max_ms: int = 500
    backoff_ms: int = 1_000


class Fetched(NamedTuple):
    """Records of a partition, possibly none, and how far its leader is."""

    key: Key
    records: bytes | memoryview
    high_watermark: Offset
    log_start_offset: Offset


class Diverged(NamedTuple):
    """The follower's log parts from the leader's no later than at the end of an epoch."""

    key: Key
    epoch: LeaderEpoch
    end_offset: Offset


class OutOfRange(NamedTuple):
    """The leader's log does not have the offset."""

    key: Key


class Refused(NamedTuple):
    """The leader answers with an error; the partition pauses."""

    key: Key
    code: ErrorCode


Action: TypeAlias = Fetched | Diverged | OutOfRange | Refused


@dataclass(slots=True)
class _Partition:
    leader_epoch: LeaderEpoch
    offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    resumes_at_ms: int = 0
    backoff_ms: int = 0

    def position(self) -> _Position:
        return _Position(self.leader_epoch, self.offset, self.last_fetched_epoch, self.log_start_offset)


class _Position(NamedTuple):
    """What a request says of a partition."""

    leader_epoch: LeaderEpoch
    offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset


class Fetcher:
    """The partitions that this node follows from one leader.

    Args:
        node_id: Of this node.
        settings: Of the fetches.
    """

    def __init__(self, node_id: int, settings: FetcherSettings) -> None:
        self._node_id: Final = node_id
        self._settings: Final = settings
        self._partitions: Final[dict[Key, _Partition]] = {}
        self._session_id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH
        self._in_session: dict[Key, _Position] = {}
        """What the leader knows, if there is a session."""
        self._asked: dict[Key, _Position] = {}
        """What the request that is under way asks for."""

    # ------------------------------------------------------------------ partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def add(
        self,
        key: Key,
        *,
        leader_epoch: LeaderEpoch,
        offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        log_start_offset: Offset,
    ) -> None:
        """Fetch a partition from an offset on.

        Args:
            key: Topic id and index.
            leader_epoch: That the leader must have.
            offset: End of this node's log.
            last_fetched_epoch: Newest leader epoch in this node's log, -1 for none.
            log_start_offset: Of this node's log.
        """
        self._partitions[key] = _Partition(leader_epoch, offset, last_fetched_epoch, log_start_offset)

    def remove(self, key: Key) -> None:
        """Fetch a partition no more; what is under way for it is ignored."""
        self._partitions.pop(key, None)
        self._asked.pop(key, None)

    def moved(
        self,
        key: Key,
        *,
        offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        log_start_offset: Offset,
        is_done: bool = True,
    ) -> None:
        """This node has stored everything before an offset, or its log was cut there.

        Args:
            key: Of the partition; one that was removed meanwhile is ignored.
            offset: End of this node's log.
            last_fetched_epoch: Newest leader epoch in it.
            log_start_offset: Of this node's log.
            is_done: Whether the partition works, so that the next pause is a short one again.
        """
        partition = self._partitions.get(key)
        if partition is None:
            return
        partition.offset = offset
        partition.last_fetched_epoch = last_fetched_epoch
        partition.log_start_offset = log_start_offset
        if is_done:
            partition.backoff_ms = 0

    def pause(self, key: Key, *, now_ms: int) -> int:
        """Leave a partition out of the requests for a while, longer each time.

        Returns:
            The length of the pause in milliseconds.
        """
        partition = self._partitions.get(key)
        if partition is None:
            return 0
        longest_ms = self._settings.backoff_ms
        partition.backoff_ms = min(longest_ms, max(2 * partition.backoff_ms, FIRST_BACKOFF_MS))
        partition.resumes_at_ms = now_ms + partition.backoff_ms
        return partition.backoff_ms

    def resumes_at_ms(self) -> int | None:
        """Return when the first pause ends; None if there are no partitions."""
        return min((partition.resumes_at_ms for partition in self._partitions.values()), default=None)

    # ------------------------------------------------------------------ requests

    def request(self, *, broker_epoch: int, now_ms: int) -> FetchRequest | None:
        """Return the next request; None if all partitions pause. `received` or `failed` must follow."""
        wanted = {
            key: partition.position()
            for key, partition in self._partitions.items()
            if partition.resumes_at_ms <= now_ms
        }
        if not wanted:
            return None
        settings = self._settings
        # The leader may keep the request that long: no longer than until a paused partition is due.
        pauses_ms = (one.resumes_at_ms - now_ms for one in self._partitions.values() if one.resumes_at_ms > now_ms)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=min(settings.wait_max_ms, min(pauses_ms, default=settings.wait_max_ms)),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
        )
        if self._epoch == _INITIAL_EPOCH:
            changed: Iterable[Key] = wanted
        else:
            known = self._in_session
            changed = [key for key, position in wanted.items() if known.get(key) != position]
            request.forgotten_topics_data = [
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _by_topic(key for key in known if key not in wanted).items()
            ]
        for topic_id, indexes in _by_topic(changed).items():
            partitions = []
            for index in indexes:
                position = wanted[topic_id, index]
                partitions.append(
                    FetchPartition(
                        partition=index,
                        current_leader_epoch=position.leader_epoch,
                        fetch_offset=position.offset,
                        last_fetched_epoch=position.last_fetched_epoch,
                        log_start_offset=position.log_start_offset,
                        partition_max_bytes=settings.max_bytes,
                    )
                )
            request.topics.append(FetchTopic(topic_id=topic_id, partitions=partitions))
        self._in_session = wanted
        self._asked = dict(wanted)
        return request

    def failed(self) -> None:
        """No response came. The next request begins another session, in place of this one."""
        self._epoch = _INITIAL_EPOCH
        self._asked = {}

    def received(self, response: FetchResponse, *, now_ms: int) -> list[Action]:
        """Take a response in, and return what is to be done, in the order of the response.

        What was removed, or begun anew with another leader epoch, since the request is left out. A partition whose
        leader answers with an error pauses.
        """
        asked, self._asked = self._asked, {}
        if response.error_code:
            # The leader does not know the session any more, or has refused the whole request.
            self._session_id, self._epoch = _NO_SESSION, _INITIAL_EPOCH
            is_session = response.error_code in {
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            }
            if not is_session:
                for key in asked:
                    self.pause(key, now_ms=now_ms)
            return []
        if response.session_id == _NO_SESSION:
            self._session_id, self._epoch = _NO_SESSION, _INITIAL_EPOCH
        else:
            self._session_id = response.session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        actions: list[Action] = []
        for topic in response.responses:
            topic_id = bytes(topic.topic_id)
            for data in topic.partitions:
                key = (topic_id, data.partition_index)
                partition = self._partitions.get(key)
                if partition is None or asked.get(key) != partition.position():
                    continue
                actions.append(self._action(key, data, now_ms))
                if data.records:
                    # The others come first in the next full request: responses are bounded in bytes.
                    self._partitions[key] = self._partitions.pop(key)
        return actions

    def _action(self, key: Key, data: PartitionData, now_ms: int) -> Action:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return OutOfRange(key)
        if data.error_code:
            self.pause(key, now_ms=now_ms)
            return Refused(key, ErrorCode(data.error_code))
        if data.diverging_epoch.end_offset >= 0:
            return Diverged(key, data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        return Fetched(key, data.records or b"", data.high_watermark, data.log_start_offset)


def truncation_offset(
    own: tuple[LeaderEpoch, Offset], leader: tuple[LeaderEpoch, Offset], log_end_offset: Offset
) -> Offset:
    """Return where a follower's log is cut that parts from its leader's (KIP-101, KIP-279).

    If this node has not the leader's epoch, its own next lower one decides, and the next fetch compares again.

    Args:
        own: The newest epoch of this node's log that is not above the leader's, and its end; (-1, -1) for none.
        leader: The epoch in which the logs may agree, and where it ends on the leader.
        log_end_offset: Of this node's log.
    """
    own_epoch, own_end_offset = own
    if own_end_offset < 0:
        return min(leader[1], log_end_offset)
    if own_epoch != leader[0]:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, leader[1], log_end_offset)


def _by_topic(keys: Iterable[Key]) -> dict[Uuid, list[int]]:
    found: dict[Any, list[int]] = {}
    for topic_id, index in keys:
        found.setdefault(topic_id, []).append(index)
    return found
