"""`hailbus.fastapi.serve`: ready when it says so, drained when it is told to stop."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from hailbus.fastapi import serve


async def address_of(capsys: pytest.CaptureFixture[str], serving: "asyncio.Task[None]") -> str:
    async with asyncio.timeout(10):
        while not serving.done():
            found = re.search(r"^listening=(127\.0\.0\.1:[1-9]\d*)$", capsys.readouterr().out, re.MULTILINE)
            if found:
                return f"http://{found[1]}"
            await asyncio.sleep(0.01)
    raise AssertionError(f"ended before it served: {serving.exception()!r}")


@pytest.mark.parametrize("how", ["event", "signal"])
async def test_it_says_its_address_finishes_what_runs_and_leaves_the_lifespan(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    entered, finish = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        order.append("started")
        yield
        order.append("drained")

    app = FastAPI(lifespan=lifespan)

    @app.get("/slow")
    async def slow() -> str:
        entered.set()
        await finish.wait()
        order.append("answered")
        return "done"

    def on_stop() -> None:
        order.append("stopping")
        finish.set()

    stop = asyncio.Event()
    serving = asyncio.create_task(serve(app, "127.0.0.1:0", on_stop=on_stop, stop=stop))
    url = await address_of(capsys, serving)
    async with httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.get("/slow"))
        await entered.wait()
        end: Callable[[], None] = stop.set if how == "event" else lambda: os.kill(os.getpid(), signal.SIGTERM)
        end()
        assert (await asking).json() == "done"
        await serving
    assert order == ["started", "stopping", "answered", "drained"]


async def test_told_to_stop_while_it_starts_it_does_not_wait_for_the_start() -> None:
    cancelled = False

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()  # as for a broker that is away
        except asyncio.CancelledError:
            cancelled = True
            raise
        yield

    stop = asyncio.Event()
    serving = asyncio.create_task(serve(FastAPI(lifespan=lifespan), "127.0.0.1:0", stop=stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(5):
        await serving
    assert cancelled


async def test_what_goes_wrong_at_the_start_comes_out_and_the_address_is_free_again() -> None:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if port:
            raise ZeroDivisionError
        yield

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            await serve(FastAPI(), f"127.0.0.1:{port}")
    with pytest.raises(ZeroDivisionError):
        await serve(FastAPI(lifespan=lifespan), f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        pass
