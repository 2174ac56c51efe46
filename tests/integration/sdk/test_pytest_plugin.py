"""The pytest plugin needs no configuration: with pytest-asyncio in either mode, with anyio, and without both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
import asyncio

import pytest
from hailbus import Context, Event, Service, Topic
from hailbus.testing import MemoryBus, VirtualLoop

ORDERS = Topic("orders.v1", partitions=3)


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


svc = Service("till")


@svc.on(OrderPlaced)
async def take(event: OrderPlaced, ctx: Context) -> None:
    if event.order_id == "bad":
        raise ValueError("no money")
"""
TESTS = """
@pytest.fixture
async def running(bus):
    async with bus.run(svc) as t:
        yield t
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)


@pytest.fixture
async def loop_of_fixtures():
    return asyncio.get_running_loop()


async def test_in_virtual_time(bus: MemoryBus):
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)
    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="bad"))
        await t.settle()
        assert t.dead_letters(OrderPlaced)[0].error == "ValueError"


async def test_async_fixtures_share_the_loop(running, loop_of_fixtures):
    assert loop_of_fixtures is asyncio.get_running_loop()
    await running.given(OrderPlaced(order_id="a"))
    await running.settle()


class TestInAClass:
    @pytest.mark.parametrize("hours", [1, 2])
    async def test_time_passes_at_once(self, hours, virtual_time):
        await asyncio.sleep(hours * 3600)


def test_that_is_not_a_coroutine(bus):
    assert bus.declared == {}
"""
REAL = """
async def test_in_real_time():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
"""
UNEXPECTED = """
async def test_with_an_unexpected_dead_letter(bus: MemoryBus):
    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="bad"))
        await t.settle()
"""
PASSED = 5


def run_pytest(folder: Path, tests: str, *options: str, ini: str = "[pytest]\n") -> str:
    (folder / "test_shop.py").write_text(SHOP + tests)
    (folder / "pytest.ini").write_text(ini)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("-p", "no:asyncio", "-p", "no:anyio"), id="alone"),
        pytest.param((), id="beside-pytest-asyncio-in-strict-mode"),
        pytest.param(("--asyncio-mode=auto",), id="beside-pytest-asyncio-in-auto-mode"),
    ],
)
def test_coroutine_tests_run_in_virtual_time(options: tuple[str, ...], tmp_path: Path) -> None:
    output = run_pytest(tmp_path, TESTS, *options)
    assert f"{PASSED} passed" in output, output


def test_tests_that_pytest_asyncio_is_told_to_run_are_virtual_too(tmp_path: Path) -> None:
    marked = TESTS.replace("@pytest.fixture\nasync", "@pytest_asyncio.fixture\nasync")
    output = run_pytest(
        tmp_path, f"import pytest_asyncio\npytestmark = pytest.mark.asyncio\n{marked}", "-k", "not that_is"
    )
    assert f"{PASSED - 1} passed" in output, output


def test_other_coroutine_tests_are_left_alone(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, REAL, "--asyncio-mode=auto")
    assert "async def functions are not natively supported" in run_pytest(tmp_path, REAL, "-p", "no:asyncio")


def test_unexpected_dead_letters_fail_a_test(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, UNEXPECTED)
    assert "1 failed" in output, output
    assert "unexpected dead letters" in output
    assert "ValueError: no money" in output
