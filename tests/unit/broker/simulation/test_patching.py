"""Clocks, randomness and ways out of the standard library: each process of a world has its own."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from hailbus_broker.testing.simulation import EscapedError, World
from hailbus_broker.testing.simulation.patching import patched

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def default_clock(
    clock: Callable[[], float] = time.time, *, other: Callable[[], float] = monotonic
) -> tuple[float, float]:
    return clock(), other()


class Stopwatch:
    @staticmethod
    def read(clock: Callable[[], float] = time.monotonic) -> float:
        return clock()


def test_all_clocks_show_virtual_time() -> None:
    async def main(world: World) -> None:
        await world.sleep(3600)
        expected = START + dt.timedelta(hours=1)
        assert dt.datetime.now(dt.UTC) == expected
        assert dt.datetime.now().replace(tzinfo=dt.UTC) == expected  # noqa: DTZ005 - what programs call
        assert dt.date.today() == expected.date()  # noqa: DTZ011 - what programs call
        assert dt.datetime.now(dt.timezone(dt.timedelta(hours=2))) == expected
        assert time.time() == time.time_ns() / 1e9 == expected.timestamp()
        assert time.gmtime()[:6] == time.localtime()[:6] == expected.timetuple()[:6]
        assert time.monotonic() == monotonic() == time.perf_counter() == Stopwatch.read() == 3600
        assert time.clock_gettime(time.CLOCK_REALTIME) == expected.timestamp()
        assert time.clock_gettime_ns(time.CLOCK_MONOTONIC) == 3600 * 10**9
        assert time.strftime("%H:%M") == "01:00"
        assert time.ctime() == time.asctime() == "Thu Jan  1 01:00:00 2026"
        assert time.monotonic_ns() == time.perf_counter_ns() == 3600 * 10**9
        assert default_clock() == (expected.timestamp(), 3600)
        assert asyncio.get_running_loop().time() == 3600

    World(1).run(main)


def test_the_wall_clock_of_a_host_jumps_and_drifts_and_the_monotonic_one_does_not() -> None:
    async def main(world: World) -> None:
        process = world.process("broker")
        await world.sleep(10)
        process.host.clock.jump(-3600)
        assert process.call(time.time) == time.time() - 3600
        process.host.clock.drift(2.0)
        await world.sleep(10)
        assert process.call(time.time) == time.time() - 3600 + 10
        assert process.call(time.monotonic) == time.monotonic() == 20

    World(1).run(main)


def draw() -> list[object]:
    generator = random.Random()
    numbers = [1, 2, 3, 4, 5, 6, 7, 8]
    random.shuffle(numbers)
    return [
        *(numbers, random.random(), random.randint(0, 10**9), random.choice(range(10**9)), random.gauss(0, 1)),
        *(os.urandom(8), secrets.token_hex(8), uuid.uuid4(), uuid.uuid1(), random.SystemRandom().random()),
        *(generator.random(), random.sample(range(100), 3), random.getrandbits(64), random.uniform(0, 1)),
    ]


def test_randomness_comes_from_the_seed_and_the_process() -> None:
    async def main(world: World) -> tuple[list[object], list[object]]:
        return world.process("first").call(draw), world.process("second").call(draw)

    first, second = World(1).run(main)
    assert (first, second) == World(1).run(main)
    other, _ = World(2).run(main)
    for mine, of_another_process, of_another_seed in zip(first, second, other, strict=True):
        assert mine != of_another_process
        assert mine != of_another_seed


def test_identifiers_by_time_grow() -> None:
    async def main(world: World) -> list[uuid.UUID]:
        process = world.process("first")
        found = [process.call(uuid.uuid1) for _ in range(3)]
        await world.sleep(1)
        return [*found, process.call(uuid.uuid1)]

    found = World(1).run(main)
    assert [made.version for made in found] == [1, 1, 1, 1]
    assert sorted(made.time for made in found) == [made.time for made in found]
    assert len(set(found)) == 4


def in_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(print)


@pytest.mark.parametrize(
    "escape",
    [
        lambda: time.sleep(0),
        lambda: threading.Thread(target=print).start(),
        in_a_pool,
        lambda: socket.socket(socket.AF_INET),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: socket.socketpair(socket.AF_UNIX),
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: socket.gethostbyname("localhost"),
        lambda: subprocess.run([sys.executable, "-V"], check=False),
        lambda: os.system("true"),  # noqa: S605 - it is refused
        lambda: os.sendfile(1, 2, 0, 3),
    ],
)
def test_ways_out_of_the_world_are_refused(escape: Callable[[], Any]) -> None:
    async def main(_world: World) -> None:
        with pytest.raises(EscapedError, match="in main would leave the simulation"):
            escape()

    World(1).run(main)


def test_a_process_knows_its_simulated_host() -> None:
    async def main(world: World) -> tuple[str, bool]:
        process = world.process("broker")
        return process.call(socket.gethostname), process.call(os.getpid) == process.pid

    assert World(1).run(main) == ("broker", True)


def test_everything_is_put_back_at_the_end_also_after_an_error() -> None:
    watched: list[tuple[Any, str]] = [
        *((time, name) for name in ("time", "monotonic", "sleep", "gmtime", "perf_counter_ns")),
        *((random, name) for name in ("random", "shuffle", "_urandom")),
        *((os, "urandom"), (os, "getpid"), (uuid, "uuid1"), (random.Random, "seed"), (threading.Thread, "start")),
        *((socket.socket, "__init__"), (socket, "gethostname"), (sys.modules[__name__], "monotonic")),
    ]
    before = [getattr(owner, name) for owner, name in watched]
    defaults = default_clock.__defaults__, default_clock.__kwdefaults__
    now = vars(dt.datetime)["now"]

    async def main(_world: World) -> None:
        assert [getattr(owner, name) for owner, name in watched] != before
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        World(1).run(main)
    assert [getattr(owner, name) for owner, name in watched] == before
    assert (default_clock.__defaults__, default_clock.__kwdefaults__) == defaults
    assert vars(dt.datetime)["now"] is now
    assert abs(dt.datetime.now(dt.UTC).timestamp() - time.time()) < 60


def test_code_outside_of_the_world_keeps_the_machine() -> None:
    with patched():
        assert time.time() > 1_700_000_000
        assert time.monotonic() != time.monotonic() + 1
        assert len(os.urandom(4)) == 4
        assert dt.datetime.now(dt.UTC).year >= 2024
        with patched():
            assert random.random() < 1
        assert time.time.__module__ == patched.__module__
