"""What every decision of the controller looks at."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.cluster.controller.partition_change import Election, PartitionChange
from hailbus_broker.cluster.controller.sessions import BrokerSessions
from hailbus_broker.cluster.features import ELR_VERSION
from hailbus_broker.cluster.metadata.names import ResourceType
from hailbus_broker.cluster.metadata.topics import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from hailbus_broker.cluster.options import topic_value
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage, PartitionState, TopicState
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.protocol.schema import Message, Uuid


class TopicRules(NamedTuple):
    """What a topic's settings say about elections.

    Attributes:
        min_isr: `min.insync.replicas`, never more than the replication factor.
        allows_unclean: Whether the topic would rather lose records than wait for a replica that has them all.
    """

    min_isr: int
    allows_unclean: bool


class ControllerState:
    """Base of the parts of the controller.

    Args:
        image: Everything that was decided, also what is not committed yet.
        config: Settings of this node, which is the active controller.
        node_id: Of this node.
        directory_id: Of this node's log directory.
        rng: For topic ids and placement.

    Attributes:
        image: The driver replaces it by a copy of the committed image when an append failed or leadership is lost.
        sessions: When brokers were last heard of. Not durable: a new controller begins with sessions of full length.
    """

    def __init__(
        self, image: MetadataImage, config: BrokerConfig, *, node_id: int, directory_id: Uuid, rng: random.Random
    ) -> None:
        self.image = image
        self.sessions: Final = BrokerSessions(timeout_ms=config["broker.session.timeout.ms"])
        self._config: Final = config
        self._node_id: Final = node_id
        self._directory_id: Final = directory_id
        self._rng: Final = rng

    # ------------------------------------------------------------------ brokers

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and be in sync: registered, not fenced, not shutting down."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Refuse a request of an incarnation that is not the registered one.

        Raises:
            ApiError: STALE_BROKER_EPOCH.
        """
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
        if broker.broker_epoch != broker_epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {broker.broker_epoch}, but got broker epoch {broker_epoch}",
            )

    def check_assignment(self, replicas: Sequence[int]) -> None:
        """Refuse replicas that no partition can have.

        Raises:
            ApiError: INVALID_REPLICA_ASSIGNMENT: there are none, a broker is named twice, or it is not registered.
        """
        if not replicas:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes an empty replica list.",
            )
        before = None
        for broker_id in sorted(replicas):
            if broker_id not in self.image.brokers:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes broker {broker_id}, but no such broker is registered. "
                    f"Registered are {', '.join(map(str, sorted(self.image.brokers)))}.",
                )
            if broker_id == before:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes the broker {broker_id} more than once.",
                )
            before = broker_id

    def default_directory(self, broker_id: int) -> Uuid:
        """Return the directory of a new replica: the only one of its broker, or else one that the broker will name."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or not broker.log_dirs:
            return MIGRATING_DIRECTORY
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else UNASSIGNED_DIRECTORY

    # ------------------------------------------------------------------ topics

    @property
    def has_elr(self) -> bool:
        """Whether the cluster keeps eligible leader replicas (KIP-966)."""
        return self.image.features.get(ELR_VERSION, 0) >= 1

    def rules(self, topic: TopicState) -> TopicRules:
        """Return what a topic's settings say about elections."""
        configs = self.image.configs
        overrides = {**configs(ResourceType.BROKER, ""), **configs(ResourceType.TOPIC, topic.name)}
        minimum: int = topic_value(overrides, self._config, "min.insync.replicas")
        allows: bool = topic_value(overrides, self._config, "unclean.leader.election.enable")
        return TopicRules(
            min_isr=min(minimum, len(topic.partitions[0].replicas)) if topic.partitions else minimum,
            allows_unclean=allows,
        )

    def allows_unclean_election(self, topic: TopicState) -> bool:
        """Whether a topic would rather lose records than wait for a replica that has them all."""
        return self.rules(topic).allows_unclean

    # ------------------------------------------------------------------ changes of partitions

    def change(
        self,
        topic: TopicState,
        state: PartitionState,
        *,
        is_acceptable: Callable[[int], bool] | None = None,
        election: Election | None = None,
        rules: TopicRules | None = None,
    ) -> PartitionChange:
        """Begin a change of a partition.

        Args:
            topic: Of the partition.
            state: What it is now.
            is_acceptable: Whether a broker may lead; None for those that are active.
            election: None for an unclean one where the topic allows it.
            rules: Of the topic, if they are at hand.
        """
        if rules is None:
            rules = self.rules(topic)
        if election is None:
            election = Election.UNCLEAN if rules.allows_unclean else Election.ONLINE
        may_lead = is_acceptable or self.is_active

        def can_lead(broker_id: int) -> bool:
            broker = self.image.brokers.get(broker_id)
            return (
                broker is not None
                and may_lead(broker_id)
                and (broker_id not in state.replicas or broker.has_online_directory(state.directory(broker_id)))
            )

        return PartitionChange(
            topic.topic_id,
            state,
            can_lead=can_lead,
            min_isr=rules.min_isr,
            has_elr=self.has_elr,
            default_directory=self.default_directory,
            election=election,
        )

    def leader_and_isr_changes(
        self,
        partitions: Iterable[tuple[TopicState, PartitionState]],
        *,
        removed: int | None = None,
        added: int | None = None,
        lost_tail: int | None = None,
    ) -> list[Message]:
        """Return what follows for partitions from a broker that comes or goes.

        Args:
            partitions: To look at.
            removed: This broker leaves the ISRs and leads nothing from now on.
            added: This broker may lead from now on, although the image still has it as fenced.
            lost_tail: This broker leaves the ISRs and the ELRs, as its logs may miss their last records.
        """

        def is_acceptable(broker_id: int) -> bool:
            return broker_id not in {removed, lost_tail} and (broker_id == added or self.is_active(broker_id))

        records: list[Message] = []
        rules: dict[Uuid, TopicRules] = {}
        for topic, state in partitions:
            if topic.topic_id not in rules:
                rules[topic.topic_id] = self.rules(topic)
            change = self.change(topic, state, is_acceptable=is_acceptable, rules=rules[topic.topic_id])
            change.isr = tuple(broker_id for broker_id in state.isr if broker_id not in {removed, lost_tail})
            if lost_tail is not None:
                change.without_tail = frozenset({lost_tail})
            record = change.build()
            if record is not None:
                records.append(record)
        return records

    def partitions(self) -> Iterator[tuple[TopicState, PartitionState]]:
        """Return all partitions of the cluster, each with its topic."""
        for topic in self.image.topics.values():
            for state in topic.partitions:
                yield topic, state

    def partitions_in_sync_on(self, broker_id: int) -> Iterator[tuple[TopicState, PartitionState]]:
        """Return the partitions that have a broker in their ISR."""
        return (found for found in self.partitions() if broker_id in found[1].isr)

    def partitions_eligible_on(self, broker_id: int) -> Iterator[tuple[TopicState, PartitionState]]:
        """Return the partitions that have a broker in their ELR."""
        return (found for found in self.partitions() if broker_id in found[1].elr)

    @contextmanager
    def as_if_applied(self, records: list[Message]) -> Iterator[None]:
        """Decide as if records were in the image already: a later part of one decision knows of an earlier one."""
        before = self.image
        if records:
            self.image = before.copy()
            self.image.apply(records)
        try:
            yield
        finally:
            self.image = before
