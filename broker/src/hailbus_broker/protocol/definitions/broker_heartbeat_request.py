"""BrokerHeartbeatRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, array, boolean, int32, int64, uuid


class BrokerHeartbeatRequest(Message, versions="0-2", flexible="0+", api_key=63):
    """BrokerHeartbeatRequest, API key 63, versions 0-2, flexible 0+."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    current_metadata_offset: int = int64("0+")
    want_fence: bool = boolean("0+")
    want_shut_down: bool = boolean("0+")
    offline_log_dirs: list[Uuid] = array(uuid("0+"), "1+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = array(uuid("0+"), "2+", default=None, nullable="2+", tag=1)
