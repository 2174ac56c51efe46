"""Errors of a cluster that is away, told from mistakes of ours."""

from hailbus import HailbusError


def is_of_the_bus(error: Exception) -> bool:
    """Return whether an error means that a broker is away, and is no mistake of ours.

    Some errors of the Kafka client pass the SDK's admin unchanged, for example that of a node that is not ready.
    """
    return isinstance(error, (HailbusError, OSError, TimeoutError)) or type(error).__module__.startswith("aiokafka")


__all__ = ["is_of_the_bus"]
