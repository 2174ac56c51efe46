"""The controller's decisions as they are written and published, without a quorum."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.metadata_log import MetadataLog

if TYPE_CHECKING:
    from collections.abc import Callable


class Quorum:
    """A log that takes one record at a time."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(log_end_offset=0)

    def append(self, _: object) -> None:
        self.log.log_end_offset += 1


class Publisher:
    """Applies at once what it is given."""

    end_offset = 0
    image = SimpleNamespace(copy=lambda: None)

    def publish(self, _: object, __: int, done: Callable[[], object]) -> None:
        done()


def metadata_log() -> MetadataLog:
    """A log whose node is the active controller."""
    nothing: Any = None
    quorum: Any = Quorum()
    publisher: Any = Publisher()
    controller: Any = SimpleNamespace(image=SimpleNamespace(apply=lambda _: None))
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    made = MetadataLog(quorum, controller, publisher, nothing, clock=clock, threads=nothing, stop=nothing)
    made.is_active = True
    return made


def deciding(log: MetadataLog, name: str, *records: NoOpRecord) -> asyncio.Task[str]:
    return asyncio.get_running_loop().create_task(log.decide(lambda: Decision(list(records), name)))


@pytest.mark.parametrize("cancelled", ["the one that writes", "another one that waits"])
async def test_a_decision_that_nobody_waits_for_any_more_does_not_cancel_others(cancelled: str) -> None:
    log = metadata_log()
    writes = deciding(log, "writes", NoOpRecord())
    others = [deciding(log, name) for name in ("waits", "waits as well")]
    await asyncio.sleep(0)
    gone = writes if cancelled == "the one that writes" else others.pop()
    gone.cancel()
    await asyncio.wait([gone])
    late = deciding(log, "late")
    await asyncio.sleep(0)
    log.committed(1)
    left = {one for one in (writes, *others, late) if one is not gone}
    await asyncio.wait(left, timeout=5)
    assert all(one.done() and not one.cancelled() for one in left)
    assert late.result() == "late"


async def test_all_that_wait_hear_that_another_node_decides() -> None:
    log = metadata_log()
    waiting = [deciding(log, "writes", NoOpRecord()), deciding(log, "waits")]
    await asyncio.sleep(0)
    unread = log.write([])
    log.follows(2)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    for error in (*answers, unread.exception()):
        assert isinstance(error, ApiError)
        assert error.code is ErrorCode.NOT_CONTROLLER
