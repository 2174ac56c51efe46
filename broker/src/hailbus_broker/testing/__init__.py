"""For tests: a broker in the test's own process, and a disk that fails on demand."""

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.broker import Fault, RunningBroker, ThreadedBroker, VirtualClock, running_broker
from hailbus_broker.testing.simulation.disk import SimulatedDisk

__all__ = [
    "ApiKey",
    "ErrorCode",
    "Fault",
    "RunningBroker",
    "SimulatedDisk",
    "ThreadedBroker",
    "VirtualClock",
    "running_broker",
]
