"""The active controller: its parts in one, and what it does by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.configs import ConfigDecisions
from hailbus_broker.cluster.controller.directories import DirectoryDecisions
from hailbus_broker.cluster.controller.elections import ElectionDecisions
from hailbus_broker.cluster.controller.features import FeatureDecisions
from hailbus_broker.cluster.controller.heartbeats import HeartbeatDecisions
from hailbus_broker.cluster.controller.isr import IsrDecisions
from hailbus_broker.cluster.controller.producer_ids import ProducerIdDecisions
from hailbus_broker.cluster.controller.reassignment import ReassignmentDecisions
from hailbus_broker.cluster.controller.registration import RegistrationDecisions
from hailbus_broker.cluster.controller.topics import TopicDecisions
from hailbus_broker.cluster.features import ELR_VERSION, METADATA_VERSION
from hailbus_broker.cluster.metadata.records import METADATA_LEVEL
from hailbus_broker.protocol.definitions.abort_transaction_record import AbortTransactionRecord
from hailbus_broker.protocol.definitions.begin_transaction_record import BeginTransactionRecord
from hailbus_broker.protocol.definitions.end_transaction_record import EndTransactionRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.protocol.schema import Message, Uuid
    from hailbus_broker.records import Offset


class Controller(
    TopicDecisions,
    ConfigDecisions,
    FeatureDecisions,
    RegistrationDecisions,
    HeartbeatDecisions,
    IsrDecisions,
    ElectionDecisions,
    ReassignmentDecisions,
    DirectoryDecisions,
    ProducerIdDecisions,
):
    """The cluster's decisions, for the node that leads `__cluster_metadata`.

    Args:
        image: What the decisions are about, those included that are not committed yet; the writer of the records
            replays them into it.
        config: The broker's settings.
        node_id: Of this node.
        directory_id: Of its log directory.
        chance: For topic ids and placement.
    """

    def __init__(
        self, image: MetadataImage, config: BrokerConfig, *, node_id: int, directory_id: Uuid, chance: random.Random
    ) -> None:
        super().__init__(image, config, node_id=node_id, directory_id=directory_id, rng=chance)
        self._due_ms: Final[dict[str, int]] = {}

    def on(self, image: MetadataImage) -> Controller:
        """Return a controller that decides on another image; for decisions that need no sessions."""
        return Controller(image, self._config, node_id=self._node_id, directory_id=self._directory_id, chance=self._rng)

    def activate(
        self,
        *,
        next_offset: Offset,
        now_ms: int,
        has_open_transaction: bool,
        bootstrap: Mapping[str, int] | None = None,
    ) -> list[Message]:
        """Decide what a new leader of the metadata log writes before anything else.

        Args:
            next_offset: Of the first record that this decision would append.
            now_ms: On the clock of the sessions, which begin now.
            has_open_transaction: Whether an earlier controller began a metadata transaction and did not end it.
            bootstrap: Levels of features to finalise, if the log has no records yet.
        """
        self.sessions.reset(self.image.brokers, next_offset=next_offset, now_ms=now_ms)
        self._due_ms.clear()
        for name, (interval_ms, _) in self._periodic().items():
            self._due_ms[name] = now_ms + interval_ms
        records: list[Message] = []
        if has_open_transaction:
            records.append(AbortTransactionRecord(reason="A new controller has been elected."))
        if bootstrap is not None:
            records.append(BeginTransactionRecord(name="Bootstrap records"))
            records += [
                FeatureLevelRecord(name=name, feature_level=level)
                for name, level in sorted(bootstrap.items(), key=lambda item: (item[0] != METADATA_VERSION, item[0]))
            ]
            if bootstrap.get(ELR_VERSION):
                records += self.minimum_of_elr()
            records.append(EndTransactionRecord())
        elif self.image.features and METADATA_VERSION not in self.image.features:
            # The log of an earlier version of this broker: Apache Kafka opens no log without a level.
            records.append(FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_LEVEL))
        return records

    def deadline_ms(self) -> int | None:
        """Return when `tick` has something to do; None while nothing is due by the clock."""
        times = list(self._due_ms.values())
        session = self.sessions.deadline_ms(self.image.brokers)
        if session is not None:
            times.append(session)
        return min(times, default=None)

    def tick(self, *, next_offset: Offset, now_ms: int) -> list[Message]:
        """Decide what is due: one broker to fence, or else the periodic work.

        Call it again when its records were applied: `deadline_ms` says when.

        Args:
            next_offset: Of the first record that this decision would append.
            now_ms: On the clock of the sessions.
        """
        records = self.fence_silent(next_offset=next_offset, now_ms=now_ms)
        if records:
            return records
        for name, (interval_ms, decide) in self._periodic().items():
            if now_ms >= self._due_ms.get(name, now_ms + 1):
                found, is_unfinished = decide()
                self._due_ms[name] = now_ms if is_unfinished else now_ms + interval_ms
                if found:
                    return found
        return []

    def _periodic(self) -> dict[str, tuple[int, Callable[[], tuple[list[Message], bool]]]]:
        """Return interval and decision of the work that is done by the clock."""
        config = self._config
        work: dict[str, tuple[int, Callable[[], tuple[list[Message], bool]]]] = {}
        if config["auto.leader.rebalance.enable"]:
            work["balance"] = config["leader.imbalance.check.interval.seconds"] * 1_000, self.balance_leaders
        work["unclean"] = config["unclean.leader.election.interval.ms"], self.elect_unclean
        if config["metadata.max.idle.interval.ms"]:
            work["idle"] = config["metadata.max.idle.interval.ms"], _no_op
        return work


def _no_op() -> tuple[list[Message], bool]:
    """Return a record without meaning: it moves the high watermark, so replicas see that they are not behind."""
    return [NoOpRecord()], False
