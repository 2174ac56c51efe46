"""Administration of a cluster over aiokafka: topics, configuration, groups and offsets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, ParamSpec, TypeVar, cast

import aiokafka
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.commit import OffsetFetchRequest

from hailbus._transport import (
    BrokerDescription,
    ClusterDescription,
    TopicDescription,
    TopicPartition,
    admin_requests,
    aiokafka_private,
    cluster_requests,
)
from hailbus._transport.aiokafka_client import connected, connection
from hailbus._transport.aiokafka_consumer import stop_consumer
from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings
from hailbus.errors import BrokerUnreachableError, ConfigurationError, TopicMissingError
from hailbus.event import Topic

__all__ = ["ConfigEntry", "ConfigKind", "GroupDescription", "GroupMember", "KafkaAdmin", "ListedGroup", "Rebalance"]

P = ParamSpec("P")
T = TypeVar("T")

TOPIC_ALREADY_EXISTS = 36
GROUP_ID_NOT_FOUND = 69
COORDINATOR_MOVES = frozenset({14, 15, 16})
"""Loading, not available, not this one: each passes."""
REBALANCES_TAG = 10_000
LED_WITHIN_S = 30.0
"""How long the partitions of new topics may take to get leaders."""
ANSWERS_WITHIN_S = 5.0
"""A broker that does not tell within this time what it knows of new topics is not waited for."""
ConfigKind = Literal["topic", "broker", "group"]
CONFIG_KINDS: Mapping[ConfigKind, int] = {"topic": 2, "broker": 4, "group": 32}
# Where a value comes from. 1: set on the topic; 2 to 4: set on the broker; 5: Kafka's default; 8: set on the group.
OWN_SOURCES: Mapping[ConfigKind, frozenset[int]] = {
    "topic": frozenset({1}),
    "broker": frozenset({2, 3, 4}),
    "group": frozenset({8}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One configuration value; None for a secret."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Why a group was rebalanced, where the broker tells: hailbus-broker does, Apache Kafka does not."""

    at_ms: int
    generation: int
    members: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as its coordinator sees it. `rebalances` are the last few, oldest first."""

    group: str
    kind: Literal["classic", "consumer"]
    state: str
    coordinator: int
    assignor: str
    members: tuple[GroupMember, ...]
    rebalances: tuple[Rebalance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in a list."""

    group: str
    kind: str
    protocol_type: str
    state: str


NAMES_OF_CODES: Mapping[int, str] = {125: "InvalidVoterKey", 126: "DuplicateVoter", 127: "VoterNotFound"}
"""Codes that the client library does not know."""


def reason_of(code: int, message: str | None) -> str:
    """Why a broker has refused something: its message, or else what the code means."""
    known = kafka_errors.for_code(code)
    name = NAMES_OF_CODES.get(code) or getattr(known, "description", "") or known.__name__
    return message or name


def refused(code: int, what: str, message: str | None = None) -> None:
    """Raise `ConfigurationError` with the broker's reason, if it has refused something."""
    if code:
        text = f"{what}: {reason_of(code, message)}"
        raise ConfigurationError(text)


def _broker(kind: ConfigKind, name: str) -> int | None:
    """Who must be asked: a broker's own settings are its own affair.

    Raises:
        ConfigurationError: A broker's name is not its id.
    """
    if kind != "broker" or not name:
        return None
    if not name.isdigit():
        message = f"{name!r} is no broker id: it is a number"
        raise ConfigurationError(message)
    return int(name)


def _assigned(assignment: bytes | None) -> tuple[TopicPartition, ...]:
    if not assignment:
        return ()
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return tuple(sorted(TopicPartition(topic, index) for topic, indexes in decoded.assignment for index in indexes))


def _rebalances(tags: Mapping[int, bytes]) -> tuple[Rebalance, ...]:
    """hailbus-broker's own field of a described group: JSON, the oldest first."""
    if REBALANCES_TAG not in tags:
        return ()
    return tuple(Rebalance(**entry) for entry in json.loads(tags[REBALANCES_TAG]))


def _answered(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn what the client library raises in an admin's method into errors of ours."""

    @functools.wraps(call)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> T:
        began = time.monotonic()
        try:
            return await call(*args, **kwargs)
        except (kafka_errors.KafkaError, OSError) as error:
            address = cast("KafkaAdmin", args[0]).address
            if isinstance(error, OSError) or getattr(error, "retriable", False) or is_connection_error(error):
                waited_s = time.monotonic() - began
                raise BrokerUnreachableError(bootstrap=address, waited_s=waited_s, reason=_reason(error)) from error
            message = f"the cluster at {address} refused: {_reason(error)}"
            raise ConfigurationError(message) from error

    return answered


def is_connection_error(error: Exception) -> bool:
    """Whether a client library's error means that no broker answered."""
    return isinstance(error, (kafka_errors.KafkaConnectionError, kafka_errors.KafkaTimeoutError))


def _described(metadata: Any, topics: Sequence[str] | None) -> dict[str, TopicDescription]:  # Any: aiokafka is untyped
    """Topics by name; all but internal ones when none are named."""
    wanted = None if topics is None else set(topics)
    found = {}
    for topic in metadata.to_object()["topics"]:
        name = topic["topic"]
        if topic["error_code"] != 0 or (topic.get("is_internal") if wanted is None else name not in wanted):
            continue
        partitions = topic["partitions"]
        found[name] = TopicDescription(
            name=name,
            partition_count=len(partitions),
            replication_factor=len(partitions[0]["replicas"]) if partitions else 0,
            leaders={p["partition"]: p["leader"] for p in partitions},
            replicas={p["partition"]: tuple(p["replicas"]) for p in partitions},
            isr={p["partition"]: tuple(p["isr"]) for p in partitions},
        )
    return found


def _reason(error: Exception) -> str:
    return str(error) or getattr(error, "description", "") or type(error).__name__


class KafkaAdmin:
    """Topics and offsets over the admin and the consumer client."""

    def __init__(self, settings: ClusterSettings, *, client_id: str) -> None:
        self._settings = settings
        self._client_id = client_id
        self._client: Any = None  # aiokafka is untyped
        self._reader: Any = None

    async def start(self) -> None:
        self._client = await connected(
            self._settings,
            lambda: AIOKafkaAdminClient(**connection(self._settings, self._client_id)),
            lambda c: c.start(),
            lambda c: c.close(),
        )

    async def stop(self) -> None:
        if self._reader is not None:
            await stop_consumer(self._reader)
        if self._client is not None:
            await self._client.close()

    @_answered
    async def cluster(self) -> ClusterDescription:
        found = await self.ask(cluster_requests.describe_cluster(includes_fenced=True))
        refused(found.error_code, "the cluster cannot be described", found.error_message)
        controller, voters = await self._quorum()
        brokers = [
            BrokerDescription(node_id=node_id, host=host, port=port, rack=rack, is_fenced=more[0] is True)
            for node_id, host, port, rack, *more in found.brokers
        ]
        return ClusterDescription(
            cluster_id=found.cluster_id,
            controller_id=controller,
            voter_ids=voters,
            brokers=tuple(sorted(brokers, key=lambda broker: broker.node_id)),
        )

    async def _quorum(self) -> tuple[int | None, tuple[int, ...]]:
        """The active controller and the voters, as far as the cluster says."""
        try:
            answer = await self.ask(cluster_requests.describe_quorum())
        except ConfigurationError:  # a cluster with ZooKeeper, or one that hides its controllers
            return None, ()
        for _, partition in cluster_requests.rows(answer):
            _, code, _, leader_id, _, _, voters, *_ = partition
            if code == 0:
                return leader_id if leader_id >= 0 else None, tuple(sorted(voter[0] for voter in voters))
        return None, ()

    @_answered
    async def create(
        self,
        topics: Sequence[Topic],
        *,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> frozenset[str]:
        existing = await self.describe([topic.name for topic in topics])
        missing = [topic for topic in topics if topic.name not in existing]
        if not missing:
            return frozenset()
        factor = replication_factor or min(3, len((await self._client.describe_cluster())["brokers"]))
        response = await self._client.create_topics(
            [
                NewTopic(topic.name, topic.partitions, factor, topic_configs=topic.kafka_config())
                if assignment is None
                else NewTopic(
                    topic.name,
                    -1,
                    -1,
                    replica_assignments={number: list(brokers) for number, brokers in enumerate(assignment)},
                    topic_configs=topic.kafka_config(),
                )
                for topic in missing
            ],
            timeout_ms=self._settings.request_timeout_ms,
        )
        created = set()
        for name, code, *message in response.topic_errors:
            if code == 0:
                created.add(name)
            elif code != TOPIC_ALREADY_EXISTS:  # another process was quicker
                reason = (message[0] if message else None) or kafka_errors.for_code(code).__name__
                text = f"topic {name!r} cannot be created on {self._settings.bootstrap_servers}: {reason}"
                raise ConfigurationError(text)
        await self._until_led(missing)
        return frozenset(created)

    async def _until_led(self, topics: Sequence[Topic]) -> None:
        """Wait until every broker that answers knows a leader of every partition.

        A broker that has not heard of a topic yet would tell the next who asks that there is no such topic.
        """
        names = [topic.name for topic in topics]
        try:
            async with asyncio.timeout(LED_WITHIN_S):
                while True:
                    known = await asyncio.gather(*(self._leads(node, names) for node in await self.nodes()))
                    if True in known and False not in known:
                        return
                    await asyncio.sleep(RETRY_BACKOFF_S)
        except TimeoutError as error:
            raise BrokerUnreachableError(
                bootstrap=self._settings.bootstrap_servers, waited_s=LED_WITHIN_S, reason="new topics got no leader"
            ) from error

    async def _leads(self, node: int, names: Sequence[str]) -> bool | None:
        """Whether a broker knows a leader of every partition of these topics; None if it does not answer."""
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                found = _described(await aiokafka_private.cluster_metadata(self._client, node), names)
        except (kafka_errors.KafkaError, OSError, TimeoutError):
            return None
        return all(name in found and all(leader >= 0 for leader in found[name].leaders.values()) for name in names)

    @_answered
    async def describe(self, topics: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        if topics is not None and not topics:
            return {}
        return _described(await aiokafka_private.cluster_metadata(self._client), topics)

    async def _partitions(self, topics: Sequence[str]) -> list[Any]:
        found = await self.describe(topics)
        for topic in topics:
            if topic not in found:
                raise TopicMissingError(topic=topic)
        return [
            aiokafka.TopicPartition(name, partition)
            for name in sorted(found)
            for partition in sorted(found[name].leaders)
        ]

    async def _consumer(self) -> Any:
        if self._reader is None:
            self._reader = await connected(
                self._settings,
                lambda: aiokafka.AIOKafkaConsumer(**connection(self._settings, self._client_id), group_id=None),
                lambda c: c.start(),
                stop_consumer,
            )
        return self._reader

    async def _offsets(self, topics: Sequence[str], ask: Callable[[Any, list[Any]], Awaitable[Any]]) -> dict[Any, Any]:
        partitions = await self._partitions(topics)
        if not partitions:
            return {}
        answer: dict[Any, Any] = await ask(await self._consumer(), partitions)
        return answer

    @_answered
    async def start_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        found = await self._offsets(topics, lambda reader, partitions: reader.beginning_offsets(partitions))
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    @_answered
    async def end_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        found = await self._offsets(topics, lambda reader, partitions: reader.end_offsets(partitions))
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    @_answered
    async def offsets_at(self, topics: Sequence[str], moment: datetime) -> Mapping[TopicPartition, int]:
        moment_ms = int(moment.timestamp() * 1000)
        ends = await self.end_offsets(topics)
        found = await self._offsets(
            topics, lambda reader, partitions: reader.offsets_for_times(dict.fromkeys(partitions, moment_ms))
        )
        return {
            TopicPartition(*tp): ends[TopicPartition(*tp)] if answer is None else answer.offset
            for tp, answer in found.items()
        }

    @_answered
    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        # The client library takes an answer that is only an error for a group without offsets.
        answer, _ = await self._ask_coordinator(
            group, OffsetFetchRequest(group, None), lambda answer: answer.error_code
        )
        codes = [answer.error_code, *(code for _, found in answer.topics for *_, code in found)]
        for code in filter(None, codes):
            raise kafka_errors.for_code(code)(f"the offsets of group {group!r} cannot be read")
        return {
            TopicPartition(topic, partition): offset
            for topic, found in answer.topics
            for partition, offset, *_ in found
            if offset >= 0
        }

    # ---------------------------------------------------------------------------------------- for the command line

    @_answered
    async def delete(self, topics: Sequence[str]) -> None:
        """Delete topics. Raises `ConfigurationError` with the broker's reason."""
        response = await self._client.delete_topics(list(topics))
        for name, code in response.topic_error_codes:
            refused(code, f"topic {name!r} cannot be deleted")

    @_answered
    async def add_partitions(self, topic: str, count: int) -> None:
        """Raise a topic's partition count; keys move. Raises `ConfigurationError`."""
        response = await self._client.create_partitions({topic: NewPartitions(count)})
        for _name, code, message in response.topic_errors:
            refused(code, f"topic {topic!r} cannot get {count} partitions", message)

    @_answered
    async def configs(self, kind: ConfigKind, name: str) -> list[ConfigEntry]:
        """Configuration of a topic, broker or group."""
        request = admin_requests.describe_configs(CONFIG_KINDS[kind], name)
        found = []
        for code, message, _type, _name, entries, _ in (await self.ask(request, _broker(kind, name))).results:
            refused(code, f"the configuration of {kind} {name!r} cannot be read", message)
            for key, value, is_read_only, source, is_sensitive, *_rest in entries:
                found.append(
                    ConfigEntry(
                        name=key,
                        value=None if is_sensitive else value,
                        is_default=source not in OWN_SOURCES[kind],
                        is_read_only=bool(is_read_only),
                    )
                )
        return sorted(found, key=lambda entry: entry.name)

    @_answered
    async def set_configs(self, kind: ConfigKind, name: str, add: Mapping[str, str], remove: Sequence[str]) -> None:
        """Change the configuration of a topic, broker or group; what is not named stays."""
        request = admin_requests.incremental_alter_configs(CONFIG_KINDS[kind], name, add, list(remove))
        for code, message, *_ in (await self.ask(request, _broker(kind, name))).resources:
            refused(code, f"the configuration of {kind} {name!r} cannot be changed", message)

    @_answered
    async def describe_group(self, group: str) -> GroupDescription:
        """State and members of a group of either protocol; state `Dead` when there is none."""
        answer, node = await self._ask_coordinator(
            group, admin_requests.describe_groups(group), lambda answer: answer.groups[0][0]
        )
        (found,) = answer.groups
        code, _, state, _, assignor, members, _, tags = found
        if state == "Dead" or code == GROUP_ID_NOT_FOUND:
            with contextlib.suppress(ConfigurationError):  # a broker from before the consumer protocol
                return await self._describe_consumer_group(group, node)
            state = "Dead"
        else:
            refused(code, f"group {group!r} cannot be described")
        return GroupDescription(
            group=group,
            kind="classic",
            state=state,
            coordinator=node,
            assignor=assignor or "",
            members=tuple(
                GroupMember(
                    member_id=member_id,
                    instance_id=instance_id,
                    client_id=client_id,
                    host=host,
                    partitions=_assigned(assignment),
                )
                for member_id, instance_id, client_id, host, _, assignment, _ in members
            ),
            rebalances=_rebalances(tags),
        )

    async def _describe_consumer_group(self, group: str, node: int) -> GroupDescription:
        (found,) = (await self.ask(admin_requests.consumer_group_describe(group), node)).groups
        code, message, _, state, _, _, assignor, members, _, tags = found
        refused(code, f"group {group!r} cannot be described", message)
        return GroupDescription(
            group=group,
            kind="consumer",
            state=state,
            coordinator=node,
            assignor=assignor,
            members=tuple(
                GroupMember(
                    member_id=member[0],
                    instance_id=member[1],
                    client_id=member[4],
                    host=member[5],
                    partitions=tuple(
                        sorted(
                            TopicPartition(topic, index) for _, topic, indexes, _ in member[8][0] for index in indexes
                        )
                    ),
                )
                for member in members
            ),
            rebalances=_rebalances(tags),
        )

    @_answered
    async def list_groups(self, *, states: Sequence[str] = (), kinds: Sequence[str] = ()) -> list[ListedGroup]:
        """All groups, or those in some states or of some kinds."""
        request = admin_requests.list_groups(list(states), list(kinds))
        found = []
        for node in await self.nodes():
            answer = await self.ask(request, node)
            refused(answer.error_code, "groups cannot be listed")
            found += [
                ListedGroup(group=name, kind=kind, protocol_type=protocol_type, state=state)
                for name, protocol_type, state, kind, _ in answer.groups
            ]
        return sorted(found, key=lambda entry: entry.group)

    @_answered
    async def delete_group(self, group: str) -> None:
        """Forget a group without members, and its offsets. Raises `ConfigurationError`."""
        answer, _ = await self._ask_coordinator(
            group, admin_requests.delete_groups(group), lambda answer: answer.results[0][1]
        )
        for name, code, _ in answer.results:
            refused(code, f"group {name!r} cannot be deleted")

    @_answered
    async def delete_offsets(self, group: str, places: Sequence[TopicPartition]) -> None:
        """Forget a group's offsets of partitions that no member reads. Raises `ConfigurationError`."""
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        answer, _ = await self._ask_coordinator(
            group, admin_requests.offset_delete(group, topics), lambda answer: answer.error_code
        )
        refused(answer.error_code, f"offsets of group {group!r} cannot be deleted")
        for topic, results in answer.topics:
            for partition, code in results:
                refused(code, f"the offset of group {group!r} in {topic}-{partition} cannot be deleted")

    # ---------------------------------------------------------------------------------------- requests of our own

    @property
    def address(self) -> str:
        """For errors."""
        return self._settings.bootstrap_servers

    async def nodes(self) -> list[int]:
        """Ids of all brokers."""
        return sorted(broker["node_id"] for broker in (await self._client.describe_cluster())["brokers"])

    async def coordinator(self, kind: int, key: str) -> int:
        """Who coordinates a group (kind 0) or a transactional id (kind 1). Raises aiokafka's errors."""
        found: int = await self._client.find_coordinator(key, kind)
        return found

    async def group_coordinator(self, group: str) -> int:
        """Who coordinates a group; its topic is made when somebody asks for the first time, which takes a moment."""
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1000
        while True:
            try:
                return await self.coordinator(0, group)
            except kafka_errors.KafkaError as error:
                if not error.retriable or time.monotonic() > deadline_s:
                    raise self._unreachable(error) from error
                await asyncio.sleep(RETRY_BACKOFF_S)

    async def _ask_coordinator(
        self, group: str, request: admin_requests.AdminRequest, code_of: Callable[[Any], int]
    ) -> tuple[Any, int]:
        """A group's coordinator's answer, and who that is; asks again while there is a new one, or it has to load."""
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1000
        while True:
            node = await self.group_coordinator(group)
            answer = await self.ask(request, node)
            if code_of(answer) not in COORDINATOR_MOVES or time.monotonic() > deadline_s:
                return answer, node
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def ask(self, request: admin_requests.AdminRequest, node: int | None = None) -> Any:
        """Send a request that the client library does not have to one broker, or to any.

        Raises:
            BrokerUnreachableError: It does not answer.
            ConfigurationError: It does not serve such requests.
        """
        chosen = (await self.nodes())[0] if node is None else node
        try:
            return await aiokafka_private.send_to_node(self._client, chosen, request)
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> BrokerUnreachableError:
        waited_s = self._settings.request_timeout_ms / 1000
        return BrokerUnreachableError(bootstrap=self._settings.bootstrap_servers, waited_s=waited_s, reason=repr(error))

    @_answered
    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""
        state = (await self.describe_group(group)).state
        if state not in {"Empty", "Dead"}:
            message = f"group {group!r} is {state}, its offsets can only be set while no member runs; stop its service"
            raise ConfigurationError(message)
        consumer = aiokafka.AIOKafkaConsumer(
            **connection(self._settings, self._client_id), group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            partitions = {aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}
            consumer.assign(list(partitions))
            await consumer.commit(partitions)
        finally:
            await stop_consumer(consumer)

    @_answered
    async def groups(self) -> Sequence[str]:
        found = await self._client.list_consumer_groups()
        return sorted({group for group, _protocol in found})
