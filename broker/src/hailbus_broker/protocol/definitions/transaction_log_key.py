"""TransactionLogKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class TransactionLogKey(Message, versions="0", flexible="none", api_key=0):
    """TransactionLogKey, coordinator-key, versions 0, flexible none."""

    transactional_id: str = string("0")
