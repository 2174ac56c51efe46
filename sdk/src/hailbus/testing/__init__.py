"""For tests of services: a bus in memory, virtual time, and a harness that feeds and watches services."""

from hailbus.testing.harness import Found, FoundDeadLetter, FoundDeadLetters, Harness
from hailbus.testing.memory import MemoryBus, MemoryRecord
from hailbus.testing.virtual import VirtualClock, VirtualLoop, run_virtual

__all__ = [
    "Found",
    "FoundDeadLetter",
    "FoundDeadLetters",
    "Harness",
    "MemoryBus",
    "MemoryRecord",
    "VirtualClock",
    "VirtualLoop",
    "run_virtual",
]
