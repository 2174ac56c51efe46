"""The published examples as events, for consumers' tests."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from hailbus import Event, event_info
from hailbus.codec import decode_value

E = TypeVar("E", bound=Event)


def example(cls: type[E]) -> E:
    """The published example of an event class."""
    info = event_info(cls)
    path = Path(__file__).parent / "examples" / info.type / f"v{info.version}.json"
    found = decode_value(cls, path.read_bytes())
    assert isinstance(found, cls)
    return found
