"""Schema registry: a client, ids on records, and a server that keeps its state in a compacted topic."""

from hailbus.registry.client import RegisteredSchema, SchemaRegistry
from hailbus.registry.schemas import Schemas, registered_form, subject_of
from hailbus.registry.state import Reference
from hailbus.schema_id import SchemaId, header_of, payload_of, prefix_of, schema_id_of

__all__ = [
    "Reference",
    "RegisteredSchema",
    "SchemaId",
    "SchemaRegistry",
    "Schemas",
    "header_of",
    "payload_of",
    "prefix_of",
    "registered_form",
    "schema_id_of",
    "subject_of",
]
