"""RegisterBrokerRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import (
    Message,
    Struct,
    Uuid,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class BrokerEndpoint(Struct):
    """Part of RegisterBrokerRecord."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class BrokerFeature(Struct):
    """Part of RegisterBrokerRecord."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RegisterBrokerRecord(Message, versions="0-4", flexible="0+", api_key=0):
    """RegisterBrokerRecord, metadata, versions 0-4, flexible 0+."""

    broker_id: int = int32("0+")
    is_migrating_zk_broker: bool = boolean("2+", default=False)
    incarnation_id: Uuid = uuid("0+")
    broker_epoch: int = int64("0+")
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint, "0+")
    features: list[BrokerFeature] = array(BrokerFeature, "0+")
    rack: str | None = string("0+", nullable="0+")
    fenced: bool = boolean("0+", default=True)
    in_controlled_shutdown: bool = boolean("1+", default=False)
    log_dirs: list[Uuid] = array(uuid("0+"), "3+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = array(uuid("0+"), "4+", default=None, nullable="4+", tag=1)
