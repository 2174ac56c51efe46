"""The pytest plugin: fixtures `bus`, `virtual_time` and `needs`. Loaded by its entry point `hailbus`.

A coroutine test that uses `bus` or `virtual_time` runs in virtual time, and so do its async fixtures. The plugin runs
them itself, so neither pytest-asyncio nor anyio is needed, nor any configuration. Where pytest-asyncio claims the test
(its auto mode, or its marker), pytest-asyncio runs it on a virtual loop. A loop that a test shares with others
(`loop_scope` other than `function`) and tests marked for anyio keep real time.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from hailbus.event import Event, event_info
from hailbus.needs import Need, merged, need_of, read_need, write_need
from hailbus.testing.memory import MemoryBus
from hailbus.testing.observed import observed
from hailbus.testing.virtual import VirtualLoop

__all__ = ["NeedsRecorder", "VirtualTime", "bus", "needs", "virtual_time"]

E = TypeVar("E", bound=Event)
T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("hailbus")
    group.addoption("--record-needs", action="store_true", help="write what consumers need to the folder of needs")
    parser.addini("hailbus_needs", "folder of consumers' needs, seen from the root directory", default="needs")


class VirtualTime:
    """Runs the coroutines of one test on one virtual loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._context = contextvars.copy_context()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self._runner.run(main, context=self._context)

    def close(self) -> None:
        """Close the loop, if one was made."""
        self._runner.close()


@pytest.fixture
def virtual_time() -> Iterator[VirtualTime]:
    """Makes a coroutine test run in virtual time: sleeps, timeouts and retry delays pass at once, in order."""
    time = VirtualTime()
    yield time
    time.close()


@pytest.fixture
def bus(virtual_time: VirtualTime) -> MemoryBus:  # noqa: ARG001 asked for, so that the test runs in virtual time
    """A fresh cluster in memory; the test runs in virtual time."""
    return MemoryBus()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in virtual time, unless another plugin has made it its own."""
    time = pyfuncitem.funcargs.get("virtual_time")
    if not isinstance(time, VirtualTime) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if pyfuncitem.get_closest_marker("anyio") is not None:
        return None
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 as every plugin that runs coroutine tests does
    time.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Put pytest-asyncio's runner of one test on a virtual loop, and set up async fixtures that no plugin runs."""
    if fixturedef.scope != "function" or "virtual_time" not in request.fixturenames:
        return (yield)
    if fixturedef.argname == "_function_scoped_runner":  # pytest-asyncio's
        with patch("asyncio.events.new_event_loop", VirtualLoop):
            return (yield)
    func = fixturedef.func
    if not (inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func)) or _is_claimed(request.node):
        return (yield)
    time: VirtualTime = request.getfixturevalue("virtual_time")
    with patch.object(fixturedef, "func", _synchronous(func, time, request)):
        return (yield)


def _is_claimed(item: pytest.Item) -> bool:
    """Whether another plugin runs this test, and its async fixtures with it."""
    return any(item.get_closest_marker(name) is not None for name in ("asyncio", "anyio"))


def _synchronous(
    func: Callable[..., Any], time: VirtualTime, request: pytest.FixtureRequest
) -> Callable[..., Any]:  # Any: whatever the fixture takes and gives
    """The same fixture as a plain function."""

    @functools.wraps(func)
    def setup(**arguments: Any) -> Any:
        if inspect.iscoroutinefunction(func):
            return time.run(func(**arguments))
        generator: AsyncIterator[Any] = func(**arguments)

        async def begin() -> Any:
            return await anext(generator)

        async def end() -> None:
            async for _ in generator:
                message = f"the fixture {func.__name__} yields more than once"
                raise ValueError(message)

        value = time.run(begin())
        request.addfinalizer(lambda: time.run(end()))
        return value

    return setup


class NeedsRecorder:
    """Writes down, in a consumer's test, what the consumer needs of an event.

    ::

        def test_surge_counts_requests(needs):
            event = needs("surge", RideRequested(ride_id="r1", pickup=LatLng(...), ...))
            assert project(event) == ...        # every field that is read becomes part of the need

    A nested model counts as needed whole, unless some of its fields are read: then those are needed.

    The files are part of the repository: without `--record-needs` a test fails when it needs more than its file says.
    """

    def __init__(self, folder: Path, test: str, *, is_recording: bool) -> None:
        self._folder = folder
        self._test = test
        self._is_recording = is_recording
        self._watched: list[tuple[str, Event, set[str], frozenset[str] | None]] = []

    def __call__(self, consumer: str, event: E, *, fields: Collection[str] | None = None) -> E:
        """The event to hand to the consumer's code.

        Args:
            consumer: The consumer's name: its service or group.
            event: An example; it is kept with the need.
            fields: What the consumer may read, when that shall be fixed: then reading another field fails the test.
        """
        read: set[str] = set()
        allowed = frozenset(fields) if fields is not None else None

        def note(path: str) -> None:
            if allowed is not None and not any(_within(path, a) or _within(a, path) for a in allowed):
                message = f"{consumer} reads {path} of {event_info(event).type}, which it does not declare to need"
                raise AssertionError(message)
            read.add(path)

        self._watched.append((consumer, event, read, allowed))
        return observed(event, note)

    def finish(self) -> list[Path]:
        """Write or compare what was needed; the files.

        Raises:
            AssertionError: A need is not in its file.
        """
        done = []
        for consumer, event, read, allowed in self._watched:
            deepest = {path for path in read if not any(_within(other, path) for other in read - {path})}
            fields = allowed if allowed is not None else deepest
            assert fields, f"{consumer} read no field of {event_info(event).type}; name those it needs: fields=(...)"
            need = need_of(event, consumer=consumer, fields=fields, test=self._test)
            path = self._folder / need.path
            if self._is_recording:
                write_need(self._folder, merged(need, read_need(path)) if path.exists() else need)
            else:
                _compare(need, path)
            done.append(path)
        return done


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _compare(need: Need, path: Path) -> None:
    again = "run pytest --record-needs and commit the file"
    assert path.exists(), f"{need.consumer} needs {need.type} v{need.version}, and {path} does not say so; {again}"
    more = sorted(set(need.fields) - set(read_need(path).fields))
    assert not more, f"{need.consumer} needs {', '.join(more)} of {need.type}, and {path} does not say so; {again}"


@pytest.fixture
def needs(request: pytest.FixtureRequest) -> Iterator[NeedsRecorder]:
    """Writes down what a consumer needs of an event. See `NeedsRecorder`."""
    config = request.config
    folder = config.rootpath / str(config.getini("hailbus_needs"))
    test = request.node.nodeid.split("[")[0]
    recorder = NeedsRecorder(folder, test, is_recording=bool(config.getoption("--record-needs")))
    yield recorder
    recorder.finish()
