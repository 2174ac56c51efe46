"""A service that only a restart can repair ends its process, with the reason and exit code 1."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from hailbus import Context, Event, Service, ServiceFailedError, SubscriberSettings, Topic
from hailbus.fastapi import serve
from hailbus.testing import MemoryBus

ORDERS = Topic("orders.v1", partitions=1)
UNKNOWN = [
    ("ce_id", b"1"),
    ("ce_source", b"/x"),
    ("ce_type", b"order.lost"),
    ("ce_dataschema", b"hailbus:order.lost/v1"),
]

pytestmark = pytest.mark.timeout(60)


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


def till(bus: MemoryBus) -> Service:
    """A service that stops reading at the first event that it does not know."""
    svc = Service("till", bus=bus, subscribing=SubscriberSettings(unknown_event="fail"))

    @svc.on(OrderPaid)
    async def paid(event: OrderPaid, ctx: Context) -> None: ...

    return svc


def memory_bus(*, unknown: bool) -> MemoryBus:
    bus = MemoryBus()
    bus.create(ORDERS)
    if unknown:
        bus.append("orders.v1", 0, [(b"k", b"{}", UNKNOWN)])
    return bus


async def test_a_group_that_reads_no_more_ends_run() -> None:
    svc = till(memory_bus(unknown=True))
    with pytest.raises(ServiceFailedError) as failed:
        await svc.run()
    (reason,) = failed.value.reasons
    assert reason.startswith("group till reads no more: ")
    assert "order.lost" in reason
    assert not svc.is_running


async def test_a_group_that_reads_no_more_ends_an_application_that_is_served() -> None:
    svc = till(memory_bus(unknown=True))
    app = FastAPI(lifespan=svc.lifespan)
    with pytest.raises(ServiceFailedError, match=r"group till reads no more: .*order\.lost"):
        await serve(app, "127.0.0.1:0")
    assert not svc.is_running


async def test_what_fails_by_its_own_word_is_drained_and_ends() -> None:
    svc = till(memory_bus(unknown=False))
    running = asyncio.create_task(svc.run())
    await svc.started()
    svc.fail("the writer has ended")
    assert svc.failures == ["the writer has ended"]
    with pytest.raises(ServiceFailedError, match="only a restart helps: the writer has ended"):
        await running
    assert not svc.is_running


async def test_what_fails_while_everything_stops_is_no_failure_of_the_process() -> None:
    svc = till(memory_bus(unknown=False))
    running = asyncio.create_task(svc.run())
    await svc.started()
    svc.request_stop()
    svc.fail("the writer has ended")
    await running


async def test_without_a_runner_the_probe_says_it() -> None:
    svc = till(memory_bus(unknown=False))
    app = FastAPI()
    app.include_router(svc.health())
    async with svc.running(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://till") as http:
        svc.fail("the writer has ended")
        answer = await http.get("/livez")
        assert (answer.status_code, answer.json()) == (503, {"status": "failed", "reasons": ["the writer has ended"]})
    async with svc.running():
        assert svc.failures == []


PROGRAM = """
import asyncio, threading
from hailbus import Service
from hailbus.process import run_process
from hailbus.testing import MemoryBus
from pydantic_settings import BaseSettings, SettingsConfigDict

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TILL_")

async def serve(settings):
    threading.Thread(target=threading.Event().wait).start()  # hangs, as a thread in a disk's call does
    svc = Service("till", bus=MemoryBus())
    asyncio.get_running_loop().call_later(0.05, svc.fail, "the writer has ended")
    await svc.run()

run_process("till", Settings, serve)
"""


def test_the_process_ends_with_1_though_a_thread_hangs(tmp_path: Path) -> None:
    program = tmp_path / "till.py"
    program.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.splitlines()[-1] == "till: stopped, because only a restart helps: the writer has ended"
    assert "Traceback" not in ended.stderr
