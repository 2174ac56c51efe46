"""The pytest plugin: fixtures `bus` and `needs`. Loaded by its entry point `hailbus`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hailbus.event import Event, event_info
from hailbus.needs import Need, merged, need_of, read_need, write_need
from hailbus.testing.memory import MemoryBus
from hailbus.testing.observed import observed

__all__ = ["NeedsRecorder", "bus", "needs"]

E = TypeVar("E", bound=Event)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("hailbus")
    group.addoption("--record-needs", action="store_true", help="write what consumers need to the folder of needs")
    parser.addini("hailbus_needs", "folder of consumers' needs, seen from the root directory", default="needs")


@pytest.fixture
def bus() -> MemoryBus:
    """A fresh cluster in memory."""
    return MemoryBus()


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
