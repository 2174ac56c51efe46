"""Events that note which of their fields are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from hailbus.event import Event

__all__ = ["observed"]

E = TypeVar("E", bound=Event)
ModelT = TypeVar("ModelT", bound=BaseModel)
Note = Callable[[str], None]


def observed(event: E, note: Note) -> E:
    """The same event, an instance of its class, which tells the path of every field that is read.

    Fields of nested models are told one by one (`pickup`, then `pickup.lat`), of models in lists with brackets
    (`stops[].name`). An event that is dumped or compared as a whole tells nothing: name its fields.
    """
    return _watched(event, note, "")


def _watched(model: ModelT, note: Note, prefix: str) -> ModelT:
    cls = type(model)
    fields = frozenset(cls.model_fields)

    class Watched(cls):  # type: ignore[valid-type,misc]  # the class is a value here
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name not in fields:
                return value
            return _told(value, note, f"{prefix}{name}")

    Watched.__name__, Watched.__qualname__ = cls.__name__, cls.__qualname__
    if issubclass(cls, Event):
        Watched.__event_info__ = cls.__event_info__  # it has no type= of its own
    found: ModelT = Watched.model_construct(**model.__dict__)
    return found


def _told(value: Any, note: Note, path: str) -> Any:  # Any: whatever a field holds
    note(path)
    if isinstance(value, BaseModel):
        return _watched(value, note, f"{path}.")
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], BaseModel):
        return type(value)(_watched(item, note, f"{path}[].") for item in value)
    return value
