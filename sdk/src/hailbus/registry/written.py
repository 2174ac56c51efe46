"""What JSON, Avro and Protobuf values of an event share."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic.fields import FieldInfo

__all__ = ["written_name"]


def written_name(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    """The name of a field in the JSON value, which the other formats share."""
    return (field.serialization_alias or name) if model.model_config.get("serialize_by_alias") else name
