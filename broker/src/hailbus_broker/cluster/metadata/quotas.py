"""The part of the image that holds client quotas. Nothing enforces them yet; a snapshot keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from hailbus_broker.protocol.definitions.client_quota_record import ClientQuotaRecord, EntityData

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hailbus_broker.protocol.schema import Message

QuotaEntity: TypeAlias = "tuple[tuple[str, str | None], ...]"
"""Type and name of each part of an entity, sorted by type; a name of None stands for the default."""


class ClientQuotas:
    """Quotas by entity. The quotas of an entity are never changed in place."""

    def __init__(self) -> None:
        self.by_entity: Final[dict[QuotaEntity, Mapping[str, float]]] = {}

    def copy(self) -> ClientQuotas:
        """Return the same quotas; both change by themselves."""
        other = ClientQuotas()
        other.by_entity.update(self.by_entity)
        return other

    def change(self, record: ClientQuotaRecord) -> None:
        """Apply a new quota, or the end of one."""
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        values = dict(self.by_entity.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self.by_entity[entity] = values
        else:
            self.by_entity.pop(entity, None)

    def to_records(self) -> Iterator[Message]:
        """Return the records that make the same quotas from nothing."""
        for entity, values in sorted(
            self.by_entity.items(), key=lambda item: [(kind, name or "") for kind, name in item[0]]
        ):
            for key, value in sorted(values.items()):
                parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
                yield ClientQuotaRecord(entity=parts, key=key, value=value, remove=False)
