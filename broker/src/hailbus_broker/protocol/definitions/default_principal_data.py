"""DefaultPrincipalData. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, boolean, string


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    """DefaultPrincipalData, data, versions 0, flexible 0+."""

    type: str = string("0+")
    name: str = string("0+")
    token_authenticated: bool = boolean("0+")
