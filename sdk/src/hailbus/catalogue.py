"""The catalogue: which class reads which type and version, and on which topics they live."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from hailbus.errors import (
    ConfigurationError,
    DuplicateEventTypeError,
    UnknownEventError,
    UnsupportedVersionError,
)
from hailbus.event import Event, Topic, event_info, is_event
from hailbus.upcasting import predecessors

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Catalogue"]


class Catalogue:
    """An immutable set of event classes, looked up by type and version. Older versions come along by their upcasters.

    Raises:
        DuplicateEventTypeError: Two classes claim one type and version.
        ConfigurationError: One topic name is declared in two different ways, or a class has no type.
    """

    __slots__ = ("_by_type", "_classes", "_topics", "has_plain_topics")

    def __init__(self, classes: tuple[type[Event], ...]) -> None:
        self._by_type: dict[str, dict[int, type[Event]]] = {}
        self._topics: dict[str, Topic] = {}
        classes = tuple(dict.fromkeys(found for cls in classes for found in (cls, *predecessors(cls))))
        for cls in classes:
            info = event_info(cls)
            versions = self._by_type.setdefault(info.type, {})
            if versions.get(info.version, cls) is not cls:
                raise DuplicateEventTypeError(
                    type=info.type, version=info.version, first=versions[info.version], second=cls
                )
            versions[info.version] = cls
            declared = self._topics.setdefault(info.topic.name, info.topic)
            if declared != info.topic:
                message = f"topic {info.topic.name!r} is declared twice with different settings; declare it once"
                raise ConfigurationError(message)
        self._classes: tuple[type[Event], ...] = classes
        self.has_plain_topics = any(topic.reads_plain for topic in self._topics.values())
        """Whether some topic has records without CloudEvents attributes."""

    @classmethod
    def of(cls, *members: type[Event] | ModuleType | Catalogue) -> Catalogue:
        """A catalogue of event classes, of all event classes defined in modules, and of other catalogues."""
        classes: list[type[Event]] = []
        for member in members:
            if isinstance(member, Catalogue):
                classes.extend(member)
            elif isinstance(member, ModuleType):
                # A module's own classes only: what it imports belongs to another owner.
                classes.extend(
                    value for value in vars(member).values() if is_event(value) and value.__module__ == member.__name__
                )
            else:
                classes.append(member)
        return cls(tuple(classes))

    def __iter__(self) -> Iterator[type[Event]]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __contains__(self, cls: object) -> bool:
        return cls in self._classes

    def __or__(self, other: Catalogue) -> Catalogue:
        return Catalogue.of(self, other)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Every topic that some event of this catalogue lives on, each once, by name."""
        return tuple(self._topics[name] for name in sorted(self._topics))

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, None when no event of this catalogue lives on it."""
        return self._topics.get(name)

    @property
    def types(self) -> tuple[str, ...]:
        """Every event type, sorted."""
        return tuple(sorted(self._by_type))

    def versions(self, type: str) -> tuple[int, ...]:
        """The known versions of a type, ascending; empty when the type is unknown."""
        return tuple(sorted(self._by_type.get(type, ())))

    def on_topic(self, topic: str) -> tuple[type[Event], ...]:
        """The event classes that live on a topic."""
        return tuple(cls for cls in self._classes if event_info(cls).topic.name == topic)

    def lookup(self, type: str, version: int = 1, *, topic: str | None = None) -> type[Event]:
        """The class for a type and version; `topic` is only for the error's text.

        Raises:
            UnknownEventError: No class has this type.
            UnsupportedVersionError: Some class has this type, but not this version.
        """
        versions = self._by_type.get(type)
        if versions is None:
            raise UnknownEventError(type=type, version=version, topic=topic)
        found = versions.get(version)
        if found is None:
            raise UnsupportedVersionError(type=type, version=version, known=tuple(versions), topic=topic)
        return found
