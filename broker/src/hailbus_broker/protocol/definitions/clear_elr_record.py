"""ClearElrRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ClearElrRecord(Message, versions="0", flexible="0+", api_key=28):
    """ClearElrRecord, metadata, versions 0, flexible 0+."""

    topic_name: str = string("0+")
