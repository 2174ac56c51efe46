"""Infrastructure that does not answer: who waits for it, since when, and which partitions are held meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TypeVar

from hailbus._consuming.failure import Kind, StageError, classify, outage_delay_s, reason_of
from hailbus._transport import TopicPartition
from hailbus.subscription import SubscriberStats

__all__ = ["Outages"]

log = logging.getLogger("hailbus.subscriber")
T = TypeVar("T")


class _Outage:
    """One resource that is away. One task probes it; the others wait for what the probe finds."""

    __slots__ = ("changed", "error", "partitions", "prober", "since_s", "tries", "waiting_count")

    def __init__(self, error: BaseException, since_s: float) -> None:
        self.error = error
        self.since_s = since_s
        self.tries = 0
        self.waiting_count = 0
        self.partitions: set[TopicPartition] = set()
        self.prober: asyncio.Task[object] | None = None
        self.changed = asyncio.Event()


class Outages:
    """The outages that one group member waits for.

    Args:
        group: For log lines and reasons.
        stats: Counts outages.
        rng: For the jitter of delays.
        hold: Called when a partition must not be read or handled.
        release: Called when it may again.
    """

    def __init__(
        self,
        group: str,
        *,
        stats: SubscriberStats,
        rng: random.Random,
        hold: Callable[[TopicPartition], None],
        release: Callable[[TopicPartition], None],
    ) -> None:
        self._group = group
        self._stats = stats
        self._rng = rng
        self._hold = hold
        self._release = release
        self._away: dict[str, _Outage] = {}
        self.waiting: set[asyncio.Task[object]] = set()
        """Tasks that wait for an outage or a delay to end: they run no handler and may be cancelled at once."""

    async def reach(
        self,
        resource: str,
        partitions: Collection[TopicPartition],
        step: Callable[[], Awaitable[T]],
        *,
        slow_after_s: float | None = None,
    ) -> T:
        """Do a step that needs something outside, as often as it takes.

        Args:
            resource: What it needs, as a noun: its name in log lines and health reasons.
            partitions: Held while it is away.
            step: May be repeated. Raises `StageError` for what happens outside of a handler.
            slow_after_s: Report the resource as away when one step takes longer than this.

        Raises:
            BaseException: What the step raised, unless it says that the infrastructure is away.
        """
        while True:
            try:
                with self._watched(resource, partitions, slow_after_s):
                    result = await step()
            except StageError as error:
                if classify(error.stage, error.error) is not Kind.INFRASTRUCTURE_AWAY:
                    self.over(resource)
                    raise
                await self.wait(resource, partitions, error.error)
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    self._hand_over(resource)
                else:
                    self.over(resource)  # the handler's own: the resource was reached
                raise
            else:
                if self._away:
                    self.over(resource)
                return result

    async def wait(self, resource: str, partitions: Collection[TopicPartition], error: BaseException) -> None:
        """Hold partitions until a resource is worth another try.

        Callers must call `over` when the next try succeeds; `reach` does.
        """
        task = asyncio.current_task()
        assert task is not None
        outage = self._began(resource, partitions, error)
        self.waiting.add(task)
        outage.waiting_count += 1
        is_cancelled = False
        try:
            if outage.prober is None or outage.prober is task:
                outage.prober = task
                delay_s = outage_delay_s(outage.tries, self._rng)
                outage.tries += 1
                await asyncio.sleep(delay_s)
            else:
                await outage.changed.wait()
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            outage.waiting_count -= 1
            self.waiting.discard(task)
            if is_cancelled:
                self._hand_over(resource)

    async def sleep(self, delay_s: float) -> None:
        """Wait outside of any handler and of any outage: the task may be cancelled at once meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self.waiting.add(task)
        try:
            await asyncio.sleep(delay_s)
        finally:
            self.waiting.discard(task)

    def _began(self, resource: str, partitions: Collection[TopicPartition], error: BaseException) -> _Outage:
        outage = self._away.get(resource)
        if outage is None:
            outage = self._away[resource] = _Outage(error, asyncio.get_running_loop().time())
            self._stats.outages += 1
            log.warning(
                "infrastructure_away: group %s waits for %s, %s is paused: %s",
                self._group,
                resource,
                names(partitions),
                reason_of(error),
            )
        outage.error = error
        for partition in partitions:
            if partition not in outage.partitions:
                outage.partitions.add(partition)
                self._hold(partition)
        return outage

    def _hand_over(self, resource: str) -> None:
        """This task was cancelled while it asked: let another one probe, unless another one does already."""
        outage = self._away.get(resource)
        if outage is None or outage.prober not in {None, asyncio.current_task()}:
            return
        outage.prober = None
        if outage.waiting_count:
            changed, outage.changed = outage.changed, asyncio.Event()
            changed.set()
        else:
            # Nobody is left to find out: the next record that needs the resource does.
            del self._away[resource]
            self._release_all(outage)

    def over(self, resource: str) -> None:
        """A resource was reached."""
        outage = self._away.pop(resource, None)
        if outage is None:
            return
        outage.changed.set()
        lasted_s = asyncio.get_running_loop().time() - outage.since_s
        log.info("infrastructure_back: group %s reaches %s after %.1f s", self._group, resource, lasted_s)
        self._release_all(outage)

    def _release_all(self, outage: _Outage) -> None:
        for partition in outage.partitions:
            if not any(partition in other.partitions for other in self._away.values()):
                self._release(partition)

    @contextlib.contextmanager
    def _watched(
        self, resource: str, partitions: Collection[TopicPartition], slow_after_s: float | None
    ) -> Iterator[None]:
        if slow_after_s is None:
            yield
            return
        error = TimeoutError(f"no answer for {slow_after_s:g} s")
        timer = asyncio.get_running_loop().call_later(slow_after_s, self._began, resource, partitions, error)
        try:
            yield
        finally:
            timer.cancel()

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions are gone; an outage that concerns no other partition is no longer watched."""
        for resource, outage in list(self._away.items()):
            outage.partitions.difference_update(partitions)
            if not outage.partitions:
                del self._away[resource]
                outage.changed.set()

    def is_held(self, partition: TopicPartition) -> bool:
        """Whether a partition waits for something."""
        return any(partition in outage.partitions for outage in self._away.values())

    def reasons(self, *, after_s: float) -> list[str]:
        """Why this member is unhealthy: the outages that last longer than `after_s`."""
        now_s = asyncio.get_running_loop().time()
        return [
            f"group {self._group} waits for {resource} since {now_s - outage.since_s:.0f} s, "
            f"{names(outage.partitions)} paused: {reason_of(outage.error)}"
            for resource, outage in sorted(self._away.items())
            if now_s - outage.since_s >= after_s
        ]


def names(partitions: Collection[TopicPartition]) -> str:
    """Partitions as one text."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "nothing"
