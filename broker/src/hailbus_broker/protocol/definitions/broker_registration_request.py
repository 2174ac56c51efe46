"""BrokerRegistrationRequest. Derived by `derive-protocol`: not edited by hand."""

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


class Listener(Struct):
    """Part of BrokerRegistrationRequest."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class Feature(Struct):
    """Part of BrokerRegistrationRequest."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class BrokerRegistrationRequest(Message, versions="0-4", flexible="0+", api_key=62):
    """BrokerRegistrationRequest, API key 62, versions 0-4, flexible 0+."""

    broker_id: int = int32("0+")
    cluster_id: str = string("0+")
    incarnation_id: Uuid = uuid("0+")
    listeners: list[Listener] = array(Listener, "0+")
    features: list[Feature] = array(Feature, "0+")
    rack: str | None = string("0+", nullable="0+")
    is_migrating_zk_broker: bool = boolean("1+", default=False)
    log_dirs: list[Uuid] = array(uuid("0+"), "2+")
    previous_broker_epoch: int = int64("3+", default=-1)
