"""The part of the image that holds overrides of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.names import ResourceType
from hailbus_broker.protocol.definitions.config_record import ConfigRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hailbus_broker.protocol.schema import Message

_NOTHING: Final[Mapping[str, str]] = {}


class Configs:
    """Overrides by type and name of their resource. The overrides of a resource are never changed in place."""

    def __init__(self) -> None:
        self._values: Final[dict[tuple[int, str], Mapping[str, str]]] = {}

    def copy(self) -> Configs:
        """Return the same overrides; both change by themselves."""
        other = Configs()
        other._values.update(self._values)
        return other

    def get(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Return the overrides of a resource, as text."""
        return self._values.get((resource_type, name), _NOTHING)

    def names(self, resource_type: ResourceType) -> list[str]:
        """Return the names of the resources of a type that have overrides."""
        return sorted(name for kind, name in self._values if kind == resource_type)

    def all(self) -> list[tuple[int, str, Mapping[str, str]]]:
        """Return all overrides: type and name of the resource, and its values."""
        return [(kind, name, values) for (kind, name), values in sorted(self._values.items())]

    def change(self, record: ConfigRecord) -> None:
        """Apply a new value, or the end of an override."""
        key = (record.resource_type, record.resource_name)
        values = dict(self._values.get(key, _NOTHING))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._values[key] = values
        else:
            self._values.pop(key, None)

    def remove(self, resource_type: ResourceType, name: str) -> None:
        """Forget the overrides of a resource that is gone."""
        self._values.pop((resource_type, name), None)

    def to_records(self) -> Iterator[Message]:
        """Return the records that make the same overrides from nothing."""
        for kind, name, values in self.all():
            for key, value in sorted(values.items()):
                yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
