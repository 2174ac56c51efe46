"""Producer ids come from blocks that the controller gives out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime import producer_ids
from hailbus_broker.runtime.producer_ids import ProducerIds

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Controllers:
    """Give out blocks of ten, when they may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    async def allocate(self) -> tuple[int, int]:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return 100 * number, 10


def spawn(coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine, name=name)


async def take(ids: ProducerIds) -> int:
    await ids.reserve()
    return ids.take()


def test_the_next_block_is_asked_for_before_the_current_one_ends() -> None:
    async def run() -> None:
        controllers = Controllers()
        ids = ProducerIds(controllers.allocate, spawn)
        assert [await take(ids) for _ in range(9)] == list(range(100, 109))
        assert controllers.asked == 1
        controllers.may_answer.clear()
        assert await take(ids) == 109  # it does not wait for the next block
        await asyncio.sleep(0)
        assert controllers.asked == 2
        controllers.may_answer.set()
        assert [await take(ids) for _ in range(3)] == [200, 201, 202]
        assert controllers.asked == 2

    asyncio.run(run())


def test_all_who_wait_for_one_block_get_an_id_of_their_own() -> None:
    async def run() -> None:
        controllers = Controllers()
        ids = ProducerIds(controllers.allocate, spawn)
        found = await asyncio.gather(*(take(ids) for _ in range(25)))
        assert sorted(found) == [*range(100, 110), *range(200, 210), *range(300, 305)]

    asyncio.run(run())


def test_a_request_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "WAIT_S", 0.01)

    async def run() -> None:
        controllers = Controllers()
        controllers.may_answer.clear()
        ids = ProducerIds(controllers.allocate, spawn)
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                await ids.reserve()
            assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert controllers.asked == 1  # the second one has waited for the same block
        controllers.may_answer.set()
        assert await take(ids) == 100

    asyncio.run(run())


def test_a_refused_block_is_asked_for_again() -> None:
    async def run() -> None:
        controllers = Controllers()
        controllers.error = ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        ids = ProducerIds(controllers.allocate, spawn)
        with pytest.raises(ApiError):
            await ids.reserve()
        controllers.error = None
        assert await take(ids) == 200

    asyncio.run(run())
