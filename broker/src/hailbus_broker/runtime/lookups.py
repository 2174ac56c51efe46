"""Questions to a log that may have to wait for the disk, asked from the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hailbus_broker.log import DiskReadNeededError, Lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.runtime.threads import Threads

T = TypeVar("T")


async def answer(threads: Threads, question: Callable[[Reads], T]) -> T:
    """Ask until there is an answer; a thread reads what is not in memory.

    Args:
        threads: Where the disk is read.
        question: Reads before it changes anything, as it is asked again after each read.
    """
    lookup = Lookup()
    while True:
        try:
            return question(lookup)
        except DiskReadNeededError:
            lookup.add(await threads.run(lookup.take()))
