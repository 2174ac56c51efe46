"""Imports of a process that serves are kept from the garbage collector, and handled events leave it nothing to do."""

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Context,
    Delivery,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Inbox,
    Service,
    Topic,
)
from hailbus.database import create_engine
from hailbus.testing import MemoryBus
from sqlalchemy.ext.asyncio import AsyncEngine

PROCESS = """
import gc
from hailbus.process import run_process
from pydantic_settings import BaseSettings, SettingsConfigDict

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TILL_")
    log_level: str = "error"

async def serve(settings):
    print(any(found is Settings for found in gc.get_objects()), gc.get_threshold())

run_process("till", Settings, serve, [])
"""
APP = """
import contextlib, gc, os, signal
from fastapi import FastAPI

class Imported: ...

@contextlib.asynccontextmanager
async def lifespan(_app):
    print(any(found is Imported for found in gc.get_objects()), gc.get_threshold())
    os.kill(os.getpid(), signal.SIGTERM)
    yield

app = FastAPI(lifespan=lifespan)
"""
COUNT = 60


class Poured(Event, topic=Topic("poured.v1", partitions=1), key="tap", type="beer.poured"):
    tap: str


Seen = Callable[[int], None]
Declare = Callable[[Service, AsyncEngine, Seen], None]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (PROCESS, ["till.py"]),
        (APP, ["-m", "hailbus._command", "run", "till:app", "--listen", "127.0.0.1:0"]),
    ],
    ids=["run_process", "hailbus run"],
)
def test_what_is_imported_is_not_collected_again(file: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "till.py").write_text(file)
    ended = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "False (10000, 10, 10)" in ended.stdout.splitlines(), ended.stdout + ended.stderr


def at_least_once(svc: Service, _engine: AsyncEngine, seen: Seen) -> None:
    @svc.on(Poured, delivery=AtLeastOnce())
    async def poured(_event: Poured, _ctx: Context) -> None:
        seen(1)


def tried_again(svc: Service, _engine: AsyncEngine, seen: Seen) -> None:
    @svc.on(Poured, delivery=AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1))))
    async def poured(_event: Poured, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError
        seen(1)


def dead_letters(svc: Service, _engine: AsyncEngine, seen: Seen) -> None:
    @svc.on(Poured, delivery=AtLeastOnce(retry=Backoff(attempts=1)))
    async def poured(_event: Poured, _ctx: Context) -> None:
        seen(1)
        raise ValueError


def effectively_once(svc: Service, engine: AsyncEngine, seen: Seen) -> None:
    @svc.on(Poured, delivery=EffectivelyOnce(inbox=Inbox(engine, "pub")))
    async def poured(_event: Poured, _ctx: Context) -> None:
        seen(1)


def exactly_once(svc: Service, _engine: AsyncEngine, seen: Seen) -> None:
    @svc.on(Poured, delivery=ExactlyOnce())
    async def poured(_event: Poured, _ctx: Context) -> None:
        seen(1)


def batches(svc: Service, engine: AsyncEngine, seen: Seen) -> None:
    @svc.on_batch(Poured, delivery=EffectivelyOnce(inbox=Inbox(engine, "pub")))
    async def poured(batch: Batch[Poured]) -> None:
        seen(len(batch))


def batches_in_their_own_transaction(svc: Service, engine: AsyncEngine, seen: Seen) -> None:
    @svc.on_batch(Poured, delivery=EffectivelyOnce(inbox=Inbox(engine, "pub"), own_transaction=True))
    async def poured(batch: Batch[Poured]) -> None:
        async with engine.begin() as tx:
            claim = await batch.claim(tx)
            await claim.store()
        seen(len(batch))


@pytest.fixture
def collected() -> Iterator[Callable[[], list[object]]]:
    """Ask what the garbage collector has to free: nothing else frees it from when the fixture is set up."""
    logging.disable()  # a line with a traceback would keep what the traceback refers to
    gc.collect()
    gc.disable()

    def ask() -> list[object]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            return list(gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    yield ask
    gc.enable()
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "declare",
    [
        at_least_once,
        tried_again,
        dead_letters,
        effectively_once,
        exactly_once,
        batches,
        batches_in_their_own_transaction,
    ],
)
async def test_a_handled_event_waits_for_no_collection(
    declare: Declare, collected: Callable[[], list[object]], tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite+aiosqlite:///{tmp_path / 'pub.db'}")
    svc = Service("pub")
    pub = svc.publishes(Poured)
    done, count = asyncio.Event(), 0

    def seen(number: int) -> None:
        nonlocal count
        count += number
        if count >= COUNT:
            done.set()

    declare(svc, engine, seen)
    async with svc.running(MemoryBus()):
        for number in range(COUNT):
            await pub.publish(Poured(tap=str(number % 7)))
        async with asyncio.timeout(60):
            await done.wait()
        left = collected()
        kept = [type(one).__name__ for one in left if isinstance(one, (Poured, Context, Delivery, Batch))]
        del left
    await engine.dispose()
    assert kept == []
