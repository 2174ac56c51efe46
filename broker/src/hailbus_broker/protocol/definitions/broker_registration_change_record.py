"""BrokerRegistrationChangeRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, array, int8, int32, int64, uuid


class BrokerRegistrationChangeRecord(Message, versions="0-3", flexible="0+", api_key=17):
    """BrokerRegistrationChangeRecord, metadata, versions 0-3, flexible 0+."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")
    fenced: int = int8("0+", tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: list[Uuid] = array(uuid("0+"), "2+", tag=2)
    cordoned_log_dirs: list[Uuid] | None = array(uuid("0+"), "3+", default=None, nullable="3+", tag=3)
