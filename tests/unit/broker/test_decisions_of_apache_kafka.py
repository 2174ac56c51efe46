"""What three nodes of Apache Kafka 4.3.1 decided, decided again: the same image gives the same changes.

The recorded log is that of a cluster with eligible leader replicas in which one broker was killed, two were stopped and
restarted, leaders were elected, four partitions were reassigned, and one broker was killed and unregistered.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.controller import Controller
from hailbus_broker.cluster.controller.partition_change import Election
from hailbus_broker.cluster.metadata.brokers import FENCE, UNFENCE
from hailbus_broker.cluster.metadata.image import LeaderRecovery, MetadataImage
from hailbus_broker.cluster.metadata.records import decode_record, encode_record
from hailbus_broker.cluster.metadata.transactions import TransactionReplay
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.unregister_broker_record import UnregisterBrokerRecord
from hailbus_broker.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.protocol.schema import Message

BATCHES = json.loads(Path(__file__).with_name("apache_kafka_metadata_log.json").read_text())
LOG = [decode_record(bytes.fromhex(value)) for batch in BATCHES for value in batch]

Key = tuple[Any, ...]  # of values of a record


def meaning(record: Message) -> Key:
    """A change of a partition as values that can be compared; the order of an ELR and of an ISR has no meaning."""
    assert isinstance(record, PartitionChangeRecord)
    again = decode_record(encode_record(record))
    assert isinstance(again, PartitionChangeRecord)
    for name in ("isr", "eligible_leader_replicas"):
        ids = getattr(again, name)
        setattr(again, name, None if ids is None else sorted(ids))
    return (bytes(again.topic_id), *(str(getattr(again, field.name)) for field in again.__fields__))


def meanings(records: Iterable[Message]) -> Counter[Key]:
    return Counter(meaning(record) for record in records if isinstance(record, PartitionChangeRecord))


class Replay:
    """The recorded log, with the image before each record."""

    def __init__(self) -> None:
        self.images: list[MetadataImage] = []
        self.kinds: list[str] = []
        image = MetadataImage()
        transactions = TransactionReplay()
        for offset, record in enumerate(LOG):
            self.images.append(image.copy())
            image.apply(transactions.take([(offset, record)]))
        self.explained: dict[int, str] = {}

    def controller(self, position: int) -> Controller:
        return Controller(
            self.images[position].copy(),
            BrokerConfig({}),
            node_id=1,
            directory_id=bytes(16),
            chance=random.Random(0),
        )

    def explain_before(self, position: int, why: str, *decide: Any) -> None:
        """Look for the changes of a decision right before its last record."""
        first = position
        while isinstance(LOG[first - 1], PartitionChangeRecord) and first - 1 not in self.explained:
            first -= 1
        for start in range(first, position + 1):
            for one in decide:
                if meanings(one(self.controller(start))) == meanings(LOG[start:position]):
                    self.explained |= dict.fromkeys(range(start, position + 1), why)
                    return
        raise AssertionError((why, position, LOG[position]))

    def explain_after(self, position: int, why: str, records: list[Message]) -> None:
        """Look for the changes of a decision right after its first record."""
        end = position + len(records)
        assert meanings(LOG[position + 1 : end]) == meanings(records[1:]), (why, position)
        self.explained |= dict.fromkeys(range(position, end), why)

    def explain_change(self, position: int, record: PartitionChangeRecord) -> None:
        """Look for a decision about a single partition."""
        controller = self.controller(position)
        topic = controller.image.topics_by_id[bytes(record.topic_id)]
        state = topic.partitions[record.partition_id]
        expected = meanings([record])
        isr = record.isr or ()
        asked = (*isr, *(one for one in state.isr if one not in isr))
        for why, wanted in (("ISR", tuple(isr)), ("end of a reassignment", asked)):
            for recovery in (state.recovery, LeaderRecovery.RECOVERED):
                change = controller.change(topic, state)
                change.isr, change.recovery = wanted, recovery
                if meanings(filter(None, [change.build()])) == expected:
                    self.explained[position] = why
                    return
        if meanings(filter(None, [controller.change(topic, state, election=Election.PREFERRED).build()])) == expected:
            self.explained[position] = "preferred"
            return
        target = [one for one in record.replicas or () if one not in (record.removing_replicas or ())]
        try:
            found = controller._reassign(topic.name, state.index, target, may_change_factor=True)
        except ApiError:
            return
        if meanings(found) == expected:
            self.explained[position] = "reassignment"


def test_the_same_image_gives_the_same_decisions() -> None:
    replay = Replay()
    for position, record in enumerate(LOG):
        before = replay.images[position]
        match record:
            case BrokerRegistrationChangeRecord():
                broker = before.brokers[record.broker_id]
                if record.fenced == FENCE and not broker.fenced:
                    replay.explain_before(position, "fence", lambda one, broker=broker: one._fence(broker, 0))
                elif record.fenced == UNFENCE:
                    replay.explain_after(position, "unfence", replay.controller(position)._unfence(broker))
                elif record.in_controlled_shutdown:
                    replay.explain_after(position, "shutdown", replay.controller(position)._begin_shutdown(broker))
            case RegisterBrokerRecord():
                existing = before.brokers.get(record.broker_id)
                if existing is not None and existing.incarnation_id != record.incarnation_id:
                    node_id = record.broker_id
                    replay.explain_before(
                        position,
                        "registration",
                        lambda one, node_id=node_id: one._without_incarnation(node_id, was_clean=False),
                        lambda one, node_id=node_id: one._without_incarnation(node_id, was_clean=True),
                    )
            case UnregisterBrokerRecord():
                # Apache Kafka leaves it in ELRs, where it can never be elected and keeps others from it.
                changes = replay.controller(position).unregister(record.broker_id).records[:-1]
                assert changes
                for change in changes:
                    assert isinstance(change, PartitionChangeRecord)
                    state = before.partition(bytes(change.topic_id), change.partition_id)
                    assert state is not None
                    assert record.broker_id in state.elr
                    assert change.isr is None
            case _:
                pass
    different = []
    for position, record in enumerate(LOG):
        if isinstance(record, PartitionChangeRecord) and position not in replay.explained:
            replay.explain_change(position, record)
            if position not in replay.explained:
                different.append(record)
    counts = Counter(replay.explained.values())
    for why in ("fence", "unfence", "shutdown", "registration", "ISR", "preferred", "reassignment"):
        assert counts[why] >= 3, counts
    # Apache Kafka leaves brokers in the ELR that are no replicas any more.
    assert [(one.replicas, one.isr, one.eligible_leader_replicas) for one in different] == [([1], [1], [2, 3])]
