"""FeatureLevelRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, string


class FeatureLevelRecord(Message, versions="0", flexible="0+", api_key=12):
    """FeatureLevelRecord, metadata, versions 0, flexible 0+."""

    name: str = string("0+")
    feature_level: int = int16("0+")
