"""PartitionRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, array, int8, int32, uuid


class PartitionRecord(Message, versions="0-2", flexible="0+", api_key=3):
    """PartitionRecord, metadata, versions 0-2, flexible 0+."""

    partition_id: int = int32("0+", default=-1)
    topic_id: Uuid = uuid("0+")
    replicas: list[int] = array(int32("0+"), "0+")
    isr: list[int] = array(int32("0+"), "0+")
    removing_replicas: list[int] = array(int32("0+"), "0+")
    adding_replicas: list[int] = array(int32("0+"), "0+")
    leader: int = int32("0+", default=-1)
    leader_recovery_state: int = int8("0+", default=0, tag=0)
    leader_epoch: int = int32("0+", default=-1)
    partition_epoch: int = int32("0+", default=-1)
    directories: list[Uuid] = array(uuid("0+"), "1+")
    eligible_leader_replicas: list[int] | None = array(int32("0+"), "2+", default=None, nullable="2+", tag=1)
    last_known_elr: list[int] | None = array(int32("0+"), "2+", default=None, nullable="2+", tag=2)
