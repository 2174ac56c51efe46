"""Schema registry: a client of any registry with Confluent's interface, and schema ids on records.

The server is a distribution of its own, `hailbus-registry`.
"""

from hailbus.registry.client import RegisteredSchema, SchemaRegistry
from hailbus.registry.references import Reference
from hailbus.registry.schemas import Schemas, registered_form, subject_of
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
