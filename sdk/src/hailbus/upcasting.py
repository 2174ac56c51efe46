"""Upcasters: old versions of an event become the newest before anyone sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hailbus.errors import ConfigurationError
from hailbus.event import Event, event_info

__all__ = ["newest", "predecessors", "upcast", "upcasted"]

OldT = TypeVar("OldT", bound=Event)
NewT = TypeVar("NewT", bound=Event)


def upcast(old: type[OldT], new: type[NewT]) -> Callable[[Callable[[OldT], NewT]], Callable[[OldT], NewT]]:
    """Register the way from an older version of a type to a newer one.

    ::

        @upcast(RideRequestedV1, RideRequested)
        def _v1_to_v2(old: RideRequestedV1) -> RideRequested: ...

    A handler of `RideRequested` then also receives the old records, as `RideRequested`. The old class is named nowhere
    else. Steps form a chain: version 1 to 2, 2 to 3.

    Raises:
        ConfigurationError: The classes are of different types, or not of rising versions, or there is a way already.
    """
    from_, to = event_info(old), event_info(new)
    if from_.type != to.type or from_.version >= to.version:
        message = (
            f"an upcaster goes from a lower to a higher version of one type, not from {from_.type} v{from_.version} "
            f"to {to.type} v{to.version}"
        )
        raise ConfigurationError(message)
    if old.__dict__.get("__event_upcast__") is not None:
        message = f"{old.__qualname__} has an upcaster already"
        raise ConfigurationError(message)

    def register(function: Callable[[OldT], NewT]) -> Callable[[OldT], NewT]:
        old.__event_upcast__ = (new, function)
        new.__event_predecessors__ = (*new.__dict__.get("__event_predecessors__", ()), old)
        return function

    return register


def newest(cls: type[Event]) -> type[Event]:
    """The class at the end of the chain of upcasters; itself when there is none."""
    step = cls.__dict__.get("__event_upcast__")
    return cls if step is None else newest(step[0])


def predecessors(cls: type[Event]) -> tuple[type[Event], ...]:
    """Every older class from which a chain of upcasters leads here."""
    found: list[type[Event]] = []
    for old in cls.__dict__.get("__event_predecessors__", ()):
        found += [old, *predecessors(old)]
    return tuple(found)


def upcasted(event: Event) -> Event:
    """The event in its newest version.

    An upcaster that raises is a defect of the published language: its error is raised unchanged.
    """
    step = type(event).__dict__.get("__event_upcast__")
    while step is not None:
        event = step[1](event)
        step = type(event).__dict__.get("__event_upcast__")
    return event
