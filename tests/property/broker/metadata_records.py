"""Random metadata records that fit each other, as a controller could have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.metadata.image import MetadataImage, ResourceType
from hailbus_broker.protocol.definitions import (
    client_quota_record,
    register_broker_record,
    register_controller_record,
)
from hailbus_broker.protocol.definitions.access_control_entry_record import AccessControlEntryRecord
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.definitions.clear_elr_record import ClearElrRecord
from hailbus_broker.protocol.definitions.client_quota_record import ClientQuotaRecord
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.delegation_token_record import DelegationTokenRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.fence_broker_record import FenceBrokerRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.register_controller_record import RegisterControllerRecord
from hailbus_broker.protocol.definitions.remove_access_control_entry_record import RemoveAccessControlEntryRecord
from hailbus_broker.protocol.definitions.remove_delegation_token_record import RemoveDelegationTokenRecord
from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
from hailbus_broker.protocol.definitions.remove_user_scram_credential_record import RemoveUserScramCredentialRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.definitions.unfence_broker_record import UnfenceBrokerRecord
from hailbus_broker.protocol.definitions.unregister_broker_record import UnregisterBrokerRecord
from hailbus_broker.protocol.definitions.user_scram_credential_record import UserScramCredentialRecord
from hailbus_broker.protocol.definitions.zk_migration_state_record import ZkMigrationStateRecord

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hailbus_broker.protocol.schema import Message

NAMES = ["rides", "bikes", "cars"]
TEXTS = ["a", "b", "retention.ms", "ä"]


class RandomRecords:
    """Draws records that can follow each other; `image` is what they add up to."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.image = MetadataImage()
        self.draws: list[Callable[[], Message | None]] = [
            self.topic,
            self.partition,
            self.partition,
            self.partition_change,
            self.partition_change,
            self.removed_topic,
            self.cleared_elr,
            self.config,
            self.feature,
            self.registration,
            self.registration_change,
            self.fence,
            self.unregistration,
            self.controller,
            self.producer_ids,
            self.quota,
            self.credential,
            self.removed_credential,
            self.rule,
            self.removed_rule,
            self.token,
            self.removed_token,
            NoOpRecord,
            lambda: ZkMigrationStateRecord(zk_migration_state=self.rng.randrange(4)),
        ]

    def next(self) -> Message:
        while True:
            record = self.rng.choice(self.draws)()
            if record is not None:
                self.image.replay(record)
                return record

    def some(self) -> list[int]:
        return self.rng.sample(range(1, 6), self.rng.randint(0, 4))

    def ids(self) -> list[bytes]:
        return [self.rng.randbytes(16) for _ in range(self.rng.randint(0, 2))]

    def topic(self) -> Message | None:
        free = [name for name in NAMES if name not in self.image.topics]
        return TopicRecord(name=self.rng.choice(free), topic_id=self.rng.randbytes(16)) if free else None

    def partition(self) -> Message | None:
        topics = list(self.image.topics.values())
        if not topics:
            return None
        topic = self.rng.choice(topics)
        replicas = self.rng.sample(range(1, 6), self.rng.randint(1, 4))
        return PartitionRecord(
            partition_id=len(topic.partitions),
            topic_id=topic.topic_id,
            replicas=replicas,
            isr=self.some(),
            removing_replicas=self.some(),
            adding_replicas=self.some(),
            leader=self.rng.randint(-1, 5),
            leader_recovery_state=self.rng.randint(0, 1),
            leader_epoch=self.rng.randrange(9),
            partition_epoch=self.rng.randrange(9),
            directories=[self.rng.randbytes(16) for _ in replicas],
            eligible_leader_replicas=self.rng.choice([None, self.some()]),
            last_known_elr=self.rng.choice([None, self.some()]),
        )

    def partition_change(self) -> Message | None:
        found = [(topic, state) for topic in self.image.topics.values() for state in topic.partitions]
        if not found:
            return None
        topic, state = self.rng.choice(found)
        record = PartitionChangeRecord(partition_id=state.index, topic_id=topic.topic_id)
        rng = self.rng
        if rng.random() < 0.5:
            record.isr = self.some()
        if rng.random() < 0.5:
            record.leader = rng.randint(-1, 5)
        if rng.random() < 0.3:
            record.replicas = rng.sample(range(1, 6), rng.randint(1, 4))
            if rng.random() < 0.7:
                record.directories = [rng.randbytes(16) for _ in record.replicas]
        if rng.random() < 0.3:
            record.adding_replicas, record.removing_replicas = self.some(), self.some()
        if rng.random() < 0.3:
            record.leader_recovery_state = rng.randint(0, 1)
        if rng.random() < 0.3:
            record.eligible_leader_replicas, record.last_known_elr = self.some(), self.some()
        return record

    def removed_topic(self) -> Message | None:
        topics = list(self.image.topics.values())
        if not topics or self.rng.random() < 0.7:
            return None
        return RemoveTopicRecord(topic_id=self.rng.choice(topics).topic_id)

    def cleared_elr(self) -> Message:
        return ClearElrRecord(topic_name=self.rng.choice(["", *NAMES]))

    def config(self) -> Message:
        kind = self.rng.choice([ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP])
        value = self.rng.choice([None, *TEXTS])
        return ConfigRecord(
            resource_type=kind, resource_name=self.rng.choice(NAMES), name=self.rng.choice(TEXTS), value=value
        )

    def feature(self) -> Message:
        name = self.rng.choice(["metadata.version", "group.version"])
        return FeatureLevelRecord(name=name, feature_level=self.rng.randrange(3))

    def registration(self) -> Message:
        rng = self.rng
        return RegisterBrokerRecord(
            broker_id=rng.randint(1, 5),
            incarnation_id=rng.randbytes(16),
            broker_epoch=rng.randrange(100),
            end_points=[
                register_broker_record.BrokerEndpoint(name=name, host="h", port=rng.randrange(65536))
                for name in rng.sample(["INTERNAL", "CLIENT"], rng.randint(0, 2))
            ],
            features=[
                register_broker_record.BrokerFeature(name="group.version", max_supported_version=rng.randrange(3))
            ],
            rack=rng.choice([None, "a", "b"]),
            fenced=rng.random() < 0.5,
            in_controlled_shutdown=rng.random() < 0.2,
            log_dirs=self.ids(),
            cordoned_log_dirs=rng.choice([None, self.ids()]),
        )

    def registration_change(self) -> Message | None:
        brokers = list(self.image.brokers.values())
        if not brokers:
            return None
        broker = self.rng.choice(brokers)
        return BrokerRegistrationChangeRecord(
            broker_id=broker.node_id,
            broker_epoch=broker.broker_epoch,
            fenced=self.rng.randint(-1, 1),
            in_controlled_shutdown=self.rng.randint(0, 1),
            log_dirs=self.ids(),
            cordoned_log_dirs=self.rng.choice([None, self.ids()]),
        )

    def fence(self) -> Message | None:
        brokers = list(self.image.brokers.values())
        if not brokers:
            return None
        broker = self.rng.choice(brokers)
        if self.rng.random() < 0.5:
            return FenceBrokerRecord(id=broker.node_id, epoch=broker.broker_epoch)
        return UnfenceBrokerRecord(id=broker.node_id, epoch=broker.broker_epoch)

    def unregistration(self) -> Message | None:
        brokers = list(self.image.brokers.values())
        if not brokers or self.rng.random() < 0.7:
            return None
        broker = self.rng.choice(brokers)
        return UnregisterBrokerRecord(broker_id=broker.node_id, broker_epoch=broker.broker_epoch)

    def controller(self) -> Message:
        return RegisterControllerRecord(
            controller_id=self.rng.randint(1, 5),
            incarnation_id=self.rng.randbytes(16),
            zk_migration_ready=self.rng.random() < 0.5,
            end_points=[register_controller_record.ControllerEndpoint(name="CONTROLLER", host="h", port=1)],
            features=[register_controller_record.ControllerFeature(name="kraft.version", max_supported_version=1)],
        )

    def producer_ids(self) -> Message:
        return ProducerIdsRecord(
            broker_id=self.rng.randint(1, 5),
            broker_epoch=self.rng.randrange(100),
            next_producer_id=self.image.next_producer_id + 1_000,
        )

    def quota(self) -> Message:
        parts = [
            client_quota_record.EntityData(entity_type=kind, entity_name=self.rng.choice([None, "ann", "bob"]))
            for kind in self.rng.sample(["user", "client-id"], self.rng.randint(1, 2))
        ]
        return ClientQuotaRecord(
            entity=parts,
            key=self.rng.choice(["producer_byte_rate", "request_percentage"]),
            value=self.rng.randrange(1_000) / 8,
            remove=self.rng.random() < 0.3,
        )

    def credential(self) -> Message:
        return UserScramCredentialRecord(
            name=self.rng.choice(NAMES),
            mechanism=self.rng.randint(1, 2),
            salt=self.rng.randbytes(8),
            stored_key=self.rng.randbytes(8),
            server_key=self.rng.randbytes(8),
            iterations=self.rng.randrange(10_000),
        )

    def removed_credential(self) -> Message | None:
        if not self.image.security.scram:
            return None
        mechanism, name = self.rng.choice(list(self.image.security.scram))
        return RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)

    def rule(self) -> Message:
        return AccessControlEntryRecord(
            id=self.rng.randbytes(16),
            resource_type=2,
            resource_name=self.rng.choice(NAMES),
            pattern_type=3,
            principal="User:ann",
            host="*",
            operation=self.rng.randrange(10),
            permission_type=3,
        )

    def removed_rule(self) -> Message | None:
        acls = list(self.image.security.acls)
        return RemoveAccessControlEntryRecord(id=self.rng.choice(acls)) if acls else None

    def token(self) -> Message:
        return DelegationTokenRecord(
            owner="User:ann",
            requester="User:bob",
            renewers=self.rng.sample(NAMES, self.rng.randint(0, 2)),
            issue_timestamp=self.rng.randrange(1_000),
            max_timestamp=self.rng.randrange(1_000),
            expiration_timestamp=self.rng.randrange(1_000),
            token_id=self.rng.choice(TEXTS),
        )

    def removed_token(self) -> Message | None:
        tokens = list(self.image.security.tokens)
        return RemoveDelegationTokenRecord(token_id=self.rng.choice(tokens)) if tokens else None
