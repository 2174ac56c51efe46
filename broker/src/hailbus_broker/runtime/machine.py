"""What a node has of the world around it: everything that a simulation replaces, but for the event loop."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hailbus_broker.runtime.clock import Clock, SystemClock
from hailbus_broker.runtime.descriptors import Descriptors
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.threads import ThreadPool, Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.log import Disk

RESERVED_DESCRIPTORS: Final = 8
"""More than there are threads that sync directories and write checkpoints at the same time."""


def _real_disk() -> Disk:
    return RealDisk(reserved_descriptors=RESERVED_DESCRIPTORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The ports of a node. Without arguments it is the machine that the process runs on.

    Sockets, timers and tasks are those of the running event loop.

    Attributes:
        clock: Where time comes from.
        disk: Where data lies.
        random: For ids and jitter.
        descriptors: How many files and connections there may be.
        start_threads: Makes a pool of at most so many threads, with a prefix for their names.
        can_send_files: Whether a file can be sent to a socket without reading it (sendfile).
    """

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=_real_disk)
    random: random.Random = field(default_factory=random.SystemRandom)
    descriptors: Descriptors = field(default_factory=Descriptors.of_process)
    start_threads: Callable[[int, str], Threads] = ThreadPool
    can_send_files: bool = True
