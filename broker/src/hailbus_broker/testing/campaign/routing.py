"""Clients of a cluster: they look leaders and coordinators up, as Kafka's clients do, and ask again when these move.

The clients of a campaign send one request at a time to "the broker". `CampaignClient` sends it to the only one.
`RoutingClient` sends it to the broker that the request is for, and divides it where it concerns several.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import Client, RefusedError, UnreachableError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.delete_records_request import DeleteRecordsRequest, DeleteRecordsTopic
from hailbus_broker.protocol.definitions.delete_records_response import DeleteRecordsResponse
from hailbus_broker.protocol.definitions.fetch_request import FetchRequest, FetchTopic
from hailbus_broker.protocol.definitions.fetch_response import FetchResponse
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.list_offsets_request import ListOffsetsRequest, ListOffsetsTopic
from hailbus_broker.protocol.definitions.list_offsets_response import ListOffsetsResponse
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest, MetadataRequestTopic
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterator, Sequence

    from hailbus_broker.client import Connection
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.testing.campaign.read_replicas import ReadReplicas

GROUP: Final = 0
TRANSACTION: Final = 1
LOOK_UP_S: Final = 1.0
"""How long a broker may take to say who leads; then another one is asked."""

MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""Codes after which a leader or coordinator is looked up again."""

_OF_GROUPS: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)
_OF_TRANSACTIONS: Final = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})
_DIVIDED: Final = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS})


class CampaignClient(Client):
    """A client of the only broker."""

    async def leader_connection(self, topic: str, partition: int) -> Connection:  # noqa: ARG002 - of the only broker
        """Return a connection to the leader of a partition.

        Raises:
            UnreachableError: There is no broker, or it does not answer.
            RefusedError: The partition has no leader.
        """
        return await self.connect()

    def moved(self, topic: str, partition: int) -> None:
        """Look the leader of a partition up again before the next request."""


class RoutingClient(CampaignClient):
    """A client of several brokers.

    Args:
        bootstrap: HOST:PORT of some brokers, separated by commas.
        client_id: For the brokers' logs.
        timeout_s: Of connecting and of each request.
        rng: Decides which broker is asked what any of them can answer.
        when_abandoned: Called when a request had a time-out.
        read_replicas: Chooses the followers to read from; None for a client without a rack.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        *,
        timeout_s: float,
        rng: random.Random,
        when_abandoned: Callable[[], object] = lambda: None,
        read_replicas: ReadReplicas | None = None,
    ) -> None:
        self._bootstrap: Final = bootstrap.split(",")
        super().__init__(self._bootstrap[0], client_id, timeout_s=timeout_s, when_abandoned=when_abandoned)
        self._rng: Final = rng
        self._read_replicas: Final = read_replicas
        self._addresses: Final[dict[int, str]] = {}
        self._racks: Final[dict[int, str | None]] = {}
        self._links: Final[dict[str, Client]] = {}
        self._leaders: Final[dict[tuple[str, int], str]] = {}
        self._coordinators: Final[dict[tuple[int, str], str]] = {}
        self._epochs: Final[dict[tuple[str, int], int]] = {}
        """The newest leader epoch that was seen of each partition: what a broker says of older ones is not believed."""
        self._any = ""

    def close(self) -> None:
        """Close all connections, and forget who leads."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._leaders.clear()
        self._coordinators.clear()
        if self._read_replicas is not None:
            self._read_replicas.clear()
        self._any = ""

    def _link(self, address: str) -> Client:
        found = self._links.get(address)
        if found is None:
            found = self._links[address] = Client(
                address, self.client_id, timeout_s=self.timeout_s, when_abandoned=self._when_abandoned
            )
        return found

    def _forget(self, address: str) -> None:
        """A broker does not answer: others may lead what it led."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
        for place in [place for place, found in self._leaders.items() if found == address]:
            del self._leaders[place]
        for where in [where for where, found in self._coordinators.items() if found == address]:
            del self._coordinators[where]
        if self._any == address:
            self._any = ""

    # ------------------------------------------------------------------ look-ups

    def _some_broker(self) -> str:
        if not self._any:
            self._any = self._rng.choice(self._bootstrap)
        return self._any

    async def _ask_any(self, key: ApiKey, version: int, message: Message, timeout_s: float | None = None) -> Any:
        address = self._some_broker()
        try:
            return await self._link(address).ask(key, version, message, timeout_s=timeout_s)
        except UnreachableError:
            self._forget(address)
            raise

    async def leader(self, topic: str, partition: int) -> str:
        """Return the address of a partition's leader.

        Raises:
            UnreachableError: No broker says so.
            RefusedError: The partition has no leader.
        """
        place = (topic, partition)
        found = self._leaders.get(place)
        if found is None:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
            response = await self._ask_any(ApiKey.METADATA, 8, request, min(self.timeout_s, LOOK_UP_S))
            self._addresses.update({broker.node_id: f"{broker.host}:{broker.port}" for broker in response.brokers})
            self._racks.update({broker.node_id: broker.rack for broker in response.brokers})
            alive = {broker.node_id for broker in response.brokers}
            for state in response.topics[0].partitions:
                known = (topic, state.partition_index)
                address = self._addresses[state.leader_id] if state.leader_id in alive else None
                if address is not None and state.leader_epoch >= self._epochs.get(known, 0):
                    self._leaders[known] = address
                    self._epochs[known] = state.leader_epoch
            found = self._leaders.get(place)
        if found is None:
            self._any = ""  # another broker may know more
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, f"Metadata of {topic}-{partition}")
        return found

    async def leader_connection(self, topic: str, partition: int) -> Connection:
        """See `CampaignClient`."""
        address = await self.leader(topic, partition)
        try:
            return await self._link(address).connect()
        except UnreachableError:
            self._forget(address)
            raise

    def moved(self, topic: str, partition: int) -> None:
        """See `CampaignClient`."""
        self._leaders.pop((topic, partition), None)
        if self._read_replicas is not None:
            self._read_replicas.forget(topic, partition)
        self._any = ""

    def _follower(self, topic: str, partition: int, leader: str) -> str | None:
        """Return the address of the follower to read a partition from; None if it is to be read from its leader."""
        if self._read_replicas is None:
            return None
        now_s = asyncio.get_running_loop().time()
        follower = self._read_replicas.follower_of(topic, partition, now_s=now_s)
        if follower is None:
            return None
        if self._addresses[follower] == leader:  # it leads since
            self._read_replicas.forget(topic, partition)
            return None
        return self._addresses[follower]

    async def _coordinator(self, kind: int, key: str) -> str:
        found = self._coordinators.get((kind, key))
        if found is None:
            response = await self._find_coordinator(FindCoordinatorRequest(key=key, key_type=kind))
            if response.error_code:
                self._any = ""
                raise RefusedError(ErrorCode(response.error_code), f"FindCoordinator of {key}")
            found = self._coordinators[kind, key]
        return found

    async def _find_coordinator(self, request: FindCoordinatorRequest) -> Any:
        response = await self._ask_any(ApiKey.FIND_COORDINATOR, 2, request)
        if not response.error_code:
            self._coordinators[request.key_type, request.key] = f"{response.host}:{response.port}"
        return response

    # ------------------------------------------------------------------ requests

    async def ask(self, key: ApiKey, version: int, message: Message, *, timeout_s: float | None = None) -> Any:
        """Send a request to the broker, or brokers, that it is for, and wait for the response.

        Raises:
            UnreachableError: No response came.
            RefusedError: Nobody leads the partition, or coordinates.
        """
        request: Any = message
        if key is ApiKey.FIND_COORDINATOR:
            return await self._find_coordinator(request)
        if key in _DIVIDED:
            return await self._ask_leaders(key, version, request, timeout_s)
        if key is ApiKey.PRODUCE:
            topic, index = request.topic_data[0].name, request.topic_data[0].partition_data[0].index
            response = await self._ask_at(await self.leader(topic, index), key, version, message, timeout_s)
            if response.responses[0].partition_responses[0].error_code in MOVED:
                self.moved(topic, index)
            return response
        where = _coordinator_of(key, request)
        if where is None:
            return await self._ask_any(key, version, message, timeout_s)
        response = await self._ask_at(await self._coordinator(*where), key, version, message, timeout_s)
        if any(code in MOVED for code in _codes(response)):
            self._coordinators.pop(where, None)
            self._any = ""
        return response

    async def _ask_at(self, address: str, key: ApiKey, version: int, message: Message, timeout_s: float | None) -> Any:
        try:
            return await self._link(address).ask(key, version, message, timeout_s=timeout_s)
        except UnreachableError:
            self._forget(address)
            raise

    async def _ask_leaders(self, key: ApiKey, version: int, request: Any, timeout_s: float | None) -> Any:
        """Ask each leader for its partitions, and join what they answer.

        A fetch succeeds if one of the leaders answers; of what the others have it returns nothing. A client with a rack
        fetches from the follower that the leader has named.
        """
        by_leader: dict[str, list[tuple[Any, Any]]] = {}
        of_followers: set[tuple[str, int]] = set()
        failures: list[Exception] = []
        for topic in request.topics:
            for asked in topic.partitions:
                index = asked.partition if key is ApiKey.FETCH else asked.partition_index
                name = topic.topic if key is ApiKey.FETCH else topic.name
                try:
                    address = await self.leader(name, index)
                except (UnreachableError, RefusedError) as error:
                    failures.append(error)
                else:
                    if key is not ApiKey.DELETE_RECORDS:
                        asked.current_leader_epoch = self._epochs[name, index]
                    if key is ApiKey.FETCH and (follower := self._follower(name, index, address)) is not None:
                        address = follower
                        of_followers.add((name, index))
                    by_leader.setdefault(address, []).append((topic, asked))
        parts = [(address, _part(key, request, places)) for address, places in by_leader.items()]
        answers = await asyncio.gather(
            *(self._ask_at(address, key, version, part, timeout_s) for address, part in parts), return_exceptions=True
        )
        responses = []
        for (_, part), answer in zip(parts, answers, strict=True):
            if isinstance(answer, UnreachableError | RefusedError):
                failures.append(answer)
                self._no_answer(key, part)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                responses.append(answer)
                if key is ApiKey.FETCH and self._read_replicas is not None:
                    self._look_at_read_replicas(self._read_replicas, answer, of_followers)
                self._look_at(key, answer)
        if failures and (key is not ApiKey.FETCH or not responses):
            raise failures[0]
        return responses[0] if len(responses) == 1 else _joined(key, responses)

    def _no_answer(self, key: ApiKey, request: Any) -> None:
        """Ask the leaders again of what a follower does not answer."""
        if self._read_replicas is None or key is not ApiKey.FETCH:
            return
        for topic in request.topics:
            for asked in topic.partitions:
                self._read_replicas.forget(topic.topic, asked.partition)

    def _look_at_read_replicas(
        self, replicas: ReadReplicas, response: Any, of_followers: Collection[tuple[str, int]]
    ) -> None:
        """Learn which followers to read from, and drop what a follower refuses only because it lags."""
        now_s = asyncio.get_running_loop().time()
        for topic in response.responses:
            seen = []
            for data in topic.partitions:
                if (topic.topic, data.partition_index) not in of_followers:
                    seen.append(data)
                    if not replicas.leader_answered(topic.topic, data, self._racks, now_s=now_s):
                        self.moved(topic.topic, data.partition_index)
                elif replicas.follower_answered(topic.topic, data):
                    seen.append(data)
            topic.partitions = seen

    def _look_at(self, key: ApiKey, response: Any) -> None:
        """Forget the leaders of partitions that are led by others."""
        for topic in response.responses if key is ApiKey.FETCH else response.topics:
            for data in topic.partitions:
                if data.error_code in MOVED:
                    self.moved(topic.topic if key is ApiKey.FETCH else topic.name, data.partition_index)


def client_for(
    bootstrap: str,
    client_id: str,
    *,
    timeout_s: float,
    rng: random.Random,
    when_abandoned: Callable[[], object] = lambda: None,
    read_replicas: ReadReplicas | None = None,
) -> CampaignClient:
    """Return a client of the broker, or of the brokers, that listen there."""
    if "," not in bootstrap:
        return CampaignClient(bootstrap, client_id, timeout_s=timeout_s, when_abandoned=when_abandoned)
    return RoutingClient(
        bootstrap,
        client_id,
        timeout_s=timeout_s,
        rng=rng,
        when_abandoned=when_abandoned,
        read_replicas=read_replicas,
    )


def _coordinator_of(key: ApiKey, request: Any) -> tuple[int, str] | None:
    if key in _OF_GROUPS:
        return GROUP, request.group_id
    if key in _OF_TRANSACTIONS and request.transactional_id is not None:
        return TRANSACTION, request.transactional_id
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:
        return TRANSACTION, request.v3_and_below_transactional_id
    return None


def _codes(response: Any) -> Iterator[int]:
    """Return the error codes of a coordinator's response."""
    yield getattr(response, "error_code", 0)
    for topic in getattr(response, "topics", ()):
        for part in topic.partitions:
            yield part.error_code
    for result in getattr(response, "results_by_topic_v3_and_below", ()):
        for part in result.results_by_partition:
            yield part.partition_error_code


def _part(key: ApiKey, request: Any, places: Sequence[tuple[Any, Any]]) -> Message:
    """Return a request for some of its partitions."""
    by_topic: dict[str, list[Any]] = {}
    for topic, asked in places:
        by_topic.setdefault(topic.topic if key is ApiKey.FETCH else topic.name, []).append(asked)
    if key is ApiKey.FETCH:
        return FetchRequest(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
            rack_id=request.rack_id,
            topics=[FetchTopic(topic=name, partitions=partitions) for name, partitions in by_topic.items()],
        )
    if key is ApiKey.LIST_OFFSETS:
        return ListOffsetsRequest(
            replica_id=request.replica_id,
            isolation_level=request.isolation_level,
            topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
        )
    return DeleteRecordsRequest(
        timeout_ms=request.timeout_ms,
        topics=[DeleteRecordsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
    )


def _joined(key: ApiKey, responses: Sequence[Any]) -> Any:
    if key is ApiKey.FETCH:
        code = next((response.error_code for response in responses if response.error_code), 0)
        return FetchResponse(error_code=code, responses=[one for found in responses for one in found.responses])
    topics = [one for found in responses for one in found.topics]
    return ListOffsetsResponse(topics=topics) if key is ApiKey.LIST_OFFSETS else DeleteRecordsResponse(topics=topics)
