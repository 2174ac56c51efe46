"""What a node does beside the quorum, on a node that has just lost the leadership."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.controller_role import ControllerRole

if TYPE_CHECKING:
    from collections.abc import Callable


class Quorum:
    """A metadata log that has not heard yet that another node leads."""

    is_active = True
    next_offset = 7

    def __init__(self) -> None:
        self.refused = 0

    def write(self, _records: object) -> None:
        self.refused += 1
        raise ApiError(ErrorCode.NOT_CONTROLLER)


def test_a_decision_by_the_clock_is_dropped_when_another_node_leads() -> None:
    """It is no failure that an operator has to look at."""
    works: list[Callable[[], None]] = []
    metadata = Quorum()
    core: Any = SimpleNamespace(  # all that is used of a node
        every=lambda _interval_ms, work: works.append(work),
        roles=SimpleNamespace(is_standalone=True),
        metadata=metadata,
        controller=SimpleNamespace(
            deadline_ms=lambda: 0, tick=lambda **when: [when], image=SimpleNamespace(brokers={})
        ),
        clock=SimpleNamespace(now_ms=lambda: 1),
        failure=None,
    )
    ControllerRole(core).start()
    (tick,) = works
    tick()
    assert metadata.refused == 1
