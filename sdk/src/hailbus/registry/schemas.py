"""Schema ids on what a service publishes, and events found by the schema ids of what it reads."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from hailbus._transport import (
    Bus,
    Consumer,
    Outgoing,
    Producer,
    Received,
    TopicPartition,
)
from hailbus._transport.wrapped import WrappedBus, WrappedConsumer
from hailbus.adopted import Adopted, original_of
from hailbus.catalogue import Catalogue
from hailbus.contract import Contract, contract_of
from hailbus.dead_letter import origin
from hailbus.envelope import CONTENT_TYPE, parse_dataschema
from hailbus.errors import (
    ConfigurationError,
    ContractError,
    DeliveryError,
    InvalidPayloadError,
    RegistryRefusedError,
    RegistryUnreachableError,
    UnknownSchemaError,
)
from hailbus.event import Event, Topic, event_info
from hailbus.plain import adopted, dataschema_of, defaults_of, with_attributes
from hailbus.registry.client import RegisteredSchema, SchemaRegistry
from hailbus.schema_id import HEADER, SchemaId, after_id, header_of, prefix_of, schema_id_of

__all__ = ["Schemas", "contract_from", "registered_form", "subject_of"]

log = logging.getLogger("hailbus.registry")
EXTENSION = "x-hailbus"
ASK_AGAIN_S = 1.0


def subject_of(contract: Contract) -> str:
    """The subject of an event: topic and record name, `rides.v1-ride.requested.v1`.

    The event's version is part of the name: a break is a new subject, and within one every schema is compatible.
    """
    return f"{contract.topic}-{contract.type}.v{contract.version}"


def registered_form(contract: Contract) -> dict[str, Any]:
    """The schema as it is registered: what writers write, and nothing else.

    Models are closed, so that a new field with a default is compatible by the registry's strict rules; `$id` is the
    event's `ce_dataschema`, and `x-hailbus` tells topic and key.
    """
    schema = copy.deepcopy(dict(contract.schema))

    def close(node: Any) -> None:  # Any: JSON
        if isinstance(node, dict):
            if isinstance(node.get("properties"), dict):
                node.setdefault("additionalProperties", False)
            for inner in node.values():
                close(inner)
        elif isinstance(node, list):
            for inner in node:
                close(inner)

    close(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"hailbus:{contract.type}/v{contract.version}",
        **schema,
        EXTENSION: {"topic": contract.topic, "key": contract.key},
    }


def contract_from(schema: Mapping[str, Any]) -> Contract | None:
    """The contract behind a schema that `registered_form` made, None for any other."""
    named = parse_dataschema(str(schema.get("$id", "")))
    more = schema.get(EXTENSION)
    if named is None or not isinstance(more, dict):
        return None

    def opened(node: Any) -> Any:  # Any: JSON
        if isinstance(node, dict):
            is_closed = isinstance(node.get("properties"), dict) and node.get("additionalProperties") is False
            return {k: opened(v) for k, v in node.items() if not (is_closed and k == "additionalProperties")}
        return [opened(inner) for inner in node] if isinstance(node, list) else node

    plain = {k: v for k, v in schema.items() if k not in {"$schema", "$id", EXTENSION}}
    return Contract(type=named[0], version=named[1], topic=more["topic"], key=more["key"], schema=opened(plain))


class Schemas:
    """What a service has to do with a schema registry: `Service(..., schemas=Schemas(registry))`.

    *Publishing*: at start every published event is registered, or looked up; its records then carry the id. What the
    registry does not take stops the start. *Reading*: a record that names its event (`ce_type`) is read without the
    registry, whichever way it carries an id. One that does not, as of a producer with Confluent's serializer, gets its
    event by its schema: from `$id`, or from a `title` that is the name of one of the topic's events. When its id is
    unknown it becomes a dead letter with `UnknownSchemaError`.

    While no registry answers and the cache does not have the schema, a start waits, and fails after `patience`. A
    record that needs the schema pauses its partition until a registry answers.

    Args:
        registry: The client. Give it a cache to start without the registry.
        place: `header` puts a GUID into `__value_schema_id` and leaves the value alone; `prefix` puts five bytes in
            front of the value, which every Confluent deserializer reads and nothing else does.
        format: How values are written. `avro` and `protobuf` need the extra of that name. Every format is read,
            whatever this says.
        register: Register schemas; else they must be there.
        patience: How long to wait for a registry.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        place: Literal["header", "prefix"] = "header",
        format: Literal["json", "avro", "protobuf"] = "json",
        register: bool = True,
        patience: timedelta = timedelta(seconds=30),
    ) -> None:
        if place not in {"header", "prefix"}:
            message = f"place={place!r} is neither 'header' nor 'prefix'"
            raise ConfigurationError(message)
        if format not in {"json", "avro", "protobuf"}:
            message = f"format={format!r} is not one of 'json', 'avro' and 'protobuf'"
            raise ConfigurationError(message)
        self._format = format
        self._found: dict[SchemaId, RegisteredSchema] = {}
        self._ask_again_s = 0.0
        self._readers: dict[tuple[SchemaId, tuple[int, ...]], Callable[[bytes], bytes]] = {}
        self._registry = registry
        self._place = place
        self._register = register
        self._patience_s = patience.total_seconds()

    async def stamping(self, bus: Bus, events: Iterable[type[Event]], catalogue: Catalogue) -> Bus:
        """The bus, whose producers put schema ids on these events, and whose consumers read every format.

        Raises:
            ConfigurationError: An event cannot be had in this format.
            RegistryUnreachableError: No registry answered in time.
            IncompatibleSchemaError, RegistryRefusedError: It does not take a schema, or does not have it.
        """
        stamps: dict[tuple[str, bytes], Stamp] = {}
        plain: dict[str, Topic] = {}
        for cls in events:
            info = event_info(cls)
            stamps[info.topic.name, info.dataschema.encode()] = await self._stamp(cls)
            if info.topic.reads_plain:
                plain[info.topic.name] = info.topic
        return _StampingBus(
            inner=bus,
            schemas=self,
            catalogue=catalogue,
            stamps=stamps,
            plain=plain,
            as_prefix=self._place == "prefix",
        )

    def reading(self, bus: Bus, catalogue: Catalogue) -> Bus:
        """The bus, whose consumers read every format."""
        return _StampingBus(inner=bus, schemas=self, catalogue=catalogue, stamps={}, plain={}, as_prefix=False)

    async def _stamp(self, cls: type[Event]) -> Stamp:
        subject = subject_of(contract_of(cls))
        if self._format == "json":
            found = await self._registered(subject, registered_form(contract_of(cls)), "JSON")
            return Stamp(mark=self._mark(found), convert=None, content_type=CONTENT_TYPE)
        if self._format == "avro":
            from hailbus.registry.avro import avro_schema, avro_writer

            found = await self._registered(subject, avro_schema(cls), "AVRO")
            return Stamp(mark=self._mark(found), convert=avro_writer(cls), content_type=b"application/avro")
        from hailbus.registry.protobuf import protobuf_schema, protobuf_writer, varints

        text = base64.b64encode(protobuf_schema(cls).SerializeToString(deterministic=True)).decode()
        found = await self._registered(subject, text, "PROTOBUF")
        mark = self._mark(found) + varints([0])
        return Stamp(mark=mark, convert=protobuf_writer(cls), content_type=b"application/protobuf")

    def _mark(self, found: RegisteredSchema) -> bytes:
        by_id, by_guid = SchemaId(id=found.id), SchemaId(guid=found.guid)
        self._found[by_id if self._place == "prefix" else by_guid] = found
        return prefix_of(found.id) if self._place == "prefix" else header_of(found.guid)[1]

    async def _registered(self, subject: str, schema: Mapping[str, Any] | str, kind: str) -> RegisteredSchema:
        async def ask() -> RegisteredSchema:
            if self._register:
                found = await self._registry.register(subject, schema, type=kind)
            else:
                found = await self._registry.lookup(subject, schema, type=kind)
            if self._place == "header" and not found.guid:  # an older registry tells it by id, or not at all
                found = await self._registry.by_id(found.id)
            return found

        found = await self._patiently(ask, f"the id of {subject}")
        if self._place == "header" and not found.guid:
            message = f"the registry gives no GUID for {subject}, which the header needs; use place='prefix'"
            raise ConfigurationError(message)
        return found

    async def identified(self, record: Received, catalogue: Catalogue) -> Received:
        """The record with a JSON value, and with headers that name its event where only its schema does so.

        Raises:
            UnknownSchemaError: Its schema is unknown, or no event's, or no registry answered in time.
            InvalidPayloadError: Its value is not what its schema says.
        """
        if any(name == "ce_type" for name, _ in record.headers):
            return record
        record = original_of(record)
        schema_id = schema_id_of(record.headers, record.value)
        if schema_id is None:
            return record
        try:
            registered = await self._patiently(lambda: self._by(schema_id), f"schema {schema_id}")
        except RegistryRefusedError as error:
            raise UnknownSchemaError(schema=str(schema_id), reason=error.text, topic=record.topic) from error
        except RegistryUnreachableError as error:
            reason = f"no registry answered within {self._patience_s:g} s"
            raise UnknownSchemaError(schema=str(schema_id), reason=reason, topic=record.topic) from error
        return self._translated(record, schema_id, registered, catalogue)

    async def translated(self, record: Received, catalogue: Catalogue) -> Received:
        """The record with a JSON value, where it has another; as it is while no registry answers.

        A record that cannot be translated now loses the headers that name its event, so that `identified` gets it.
        """
        if _is_json(record):
            return record
        schema_id = schema_id_of(record.headers, record.value)
        if schema_id is None:
            return record
        loop = asyncio.get_running_loop()
        try:
            if schema_id not in self._found and loop.time() < self._ask_again_s:
                raise RegistryUnreachableError(urls=self._registry.urls, reason="it did not answer just now")
            registered = await self._by(schema_id)
        except (RegistryRefusedError, RegistryUnreachableError) as error:
            if isinstance(error, RegistryUnreachableError):
                self._ask_again_s = loop.time() + ASK_AGAIN_S  # else each record of a read would wait for it
            return Adopted(record, [pair for pair in record.headers if not pair[0].startswith("ce_")], record.value)
        if registered.type == "JSON":
            return record
        try:
            return self._translated(record, schema_id, registered, catalogue)
        except ContractError as error:
            return Adopted(record, tuple(record.headers), record.value, error)

    def translated_now(self, record: Received, catalogue: Catalogue) -> Received:
        """As `translated`, by the schemas that are known already."""
        schema_id = None if _is_json(record) else schema_id_of(record.headers, record.value)
        registered = self._found.get(schema_id) if schema_id is not None else None
        if schema_id is None or registered is None or registered.type == "JSON":
            return record
        return self._translated(record, schema_id, registered, catalogue)

    def _translated(
        self, record: Received, schema_id: SchemaId, registered: RegisteredSchema, catalogue: Catalogue
    ) -> Received:
        is_named = any(name == "ce_type" for name, _ in record.headers)
        if registered.type == "JSON":
            if is_named:
                return record
            named = self._named_by(registered, registered.schema.get("title"), "$id", record, schema_id, catalogue)
            return with_attributes(record, defaults_of(record) | named, value=record.value)
        try:
            value, name = self._decoded(record, schema_id, registered)
        except (ConfigurationError, ContractError):
            raise
        except Exception as error:  # whatever the libraries raise for bytes that are not what the schema says
            reason = f"the value is not what {registered.type} schema {schema_id} says: {error!r}"
            raise InvalidPayloadError(type="", version=0, reason=reason, topic=record.topic) from error
        if is_named:
            headers = [pair for pair in record.headers if pair[0] != "content-type"]
            headers.insert(6, ("content-type", CONTENT_TYPE))
            return Adopted(record, headers, value)
        topic = catalogue.topic(origin(record)[0])
        if topic is not None and topic.reads_plain:
            found = adopted(_JsonRecord(record, value), topic)
            refusal = found.refusal if isinstance(found, Adopted) else None
            return Adopted(record, tuple(found.headers), value, refusal)
        named = self._named_by(registered, name, "dataschema", record, schema_id, catalogue)
        return with_attributes(record, defaults_of(record) | named, value=value)

    def _decoded(self, record: Received, schema_id: SchemaId, registered: RegisteredSchema) -> tuple[bytes, str]:
        """The value as JSON, and the name of its type in the schema."""
        in_header, payload = after_id(record.headers, record.value or b"")
        if registered.type == "AVRO":
            read = self._readers.get((schema_id, ()))
            if read is None:
                from hailbus.registry.avro import avro_reader

                read = self._readers[schema_id, ()] = avro_reader(json.loads(registered.text))
            return read(payload), str(registered.schema.get("name", ""))
        if registered.type != "PROTOBUF":
            reason = f"it is {registered.type}, which hailbus does not read"
            raise UnknownSchemaError(schema=str(schema_id), reason=reason, topic=record.topic)
        from hailbus.registry.protobuf import indexes_of, message_name, protobuf_reader

        if in_header:
            indexes, _ = indexes_of(in_header)
        else:
            indexes, payload = indexes_of(payload)
        key = (schema_id, tuple(indexes))
        read = self._readers.get(key)
        if read is None:
            read = self._readers[key] = protobuf_reader(registered.text, indexes)
        return read(payload), message_name(registered.text, indexes)

    @staticmethod
    def _named_by(
        registered: RegisteredSchema,
        name: Any,  # Any: JSON
        attribute: str,
        record: Received,
        schema_id: SchemaId,
        catalogue: Catalogue,
    ) -> dict[str, str]:
        """Type and version of the event behind a schema: as the schema says, or by the name of its type."""
        said = registered.schema.get(attribute)
        if registered.type == "AVRO":
            more = registered.schema.get("hailbus")
            said = more.get(attribute) if isinstance(more, dict) else None
        named = parse_dataschema(str(said or ""))
        topic = origin(record)[0]
        if named is None and registered.type == "PROTOBUF":
            from hailbus.registry.protobuf import package_of

            package = package_of(registered.text)
            for cls in catalogue.on_topic(topic):
                info = event_info(cls)
                if package == f"{info.type}.v{info.version}".replace("-", "_") and name == cls.__name__:
                    named = info.type, info.version
        if named is None:
            classes = [c for c in catalogue.on_topic(topic) if name in {c.__name__, event_info(c).type}]
            if len(classes) != 1:
                what = "title" if registered.type == "JSON" else "name"
                reason = f"its {what} {name!r} is the name of {len(classes)} events on this topic"
                raise UnknownSchemaError(schema=str(schema_id), reason=reason, topic=record.topic)
            named = event_info(classes[0]).type, event_info(classes[0]).version
        return {"type": named[0], "version": str(named[1])}

    async def _by(self, schema_id: SchemaId) -> RegisteredSchema:
        found = self._found.get(schema_id)
        if found is None:
            if schema_id.guid is not None:
                found = await self._registry.by_guid(schema_id.guid)
            else:
                assert schema_id.id is not None
                found = await self._registry.by_id(schema_id.id)
            self._found[schema_id] = found
        return found

    async def _patiently(self, ask: Any, what: str) -> RegisteredSchema:  # Any: mypy infers no lambda that awaits
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        delay_s = 0.1
        while True:
            try:
                found: RegisteredSchema = await ask()
            except RegistryUnreachableError as error:
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    raise
                log.warning("registry_awaited: %s waits for %.0f s more: %s", what, left_s, error.reason)
                await asyncio.sleep(min(delay_s, left_s))
                delay_s = min(delay_s * 2, 5.0)
            else:
                return found


def _is_json(record: Received) -> bool:
    """Whether a record names its event and says that its value is JSON: nothing to look up."""
    is_named = is_json = False
    for name, value in record.headers:
        if name == "ce_type":
            is_named = True
        elif name == "content-type":
            is_json = value is not None and value.startswith(b"application/json")
    return is_named and is_json


@dataclass(frozen=True, slots=True)
class _JsonRecord:
    """A record whose value has been translated, for those who look for its attributes."""

    record: Received
    value: bytes | None

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp(self) -> int:
        return self.record.timestamp

    @property
    def timestamp_type(self) -> int:
        return self.record.timestamp_type

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        return self.record.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What happens to the records of an event on their way out.

    Attributes:
        mark: What names the schema, in the header or in front of the value.
        convert: From JSON to the format; None for JSON.
        content_type: Of the value.
    """

    mark: bytes
    convert: Callable[[bytes], bytes] | None
    content_type: bytes


Stamps = Mapping[tuple[str, bytes], Stamp]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StampingBus(WrappedBus):
    """A bus whose producers put schema ids on the records of some events. Dead letters stay as they are."""

    schemas: Schemas
    catalogue: Catalogue
    stamps: Stamps
    plain: Mapping[str, Topic]
    as_prefix: bool

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> Producer:
        made = self.inner.producer(client_id=client_id, transactional_id=transactional_id)
        return _StampingProducer(made, self.stamps, self.plain, as_prefix=self.as_prefix)

    def consumer_over(self, inner: Consumer, topics: Sequence[str]) -> Consumer:  # noqa: ARG002 the same for all
        return _TranslatingConsumer(inner, self.schemas, self.catalogue)


class _StampingProducer:
    """See `Producer`."""

    def __init__(self, inner: Producer, stamps: Stamps, plain: Mapping[str, Topic], *, as_prefix: bool) -> None:
        self._inner = inner
        self._stamps = stamps
        self._plain = plain
        self._as_prefix = as_prefix
        self.start = inner.start
        self.stop = inner.stop
        self.known_partition_count = inner.known_partition_count
        self.partition_count = inner.partition_count
        self.begin = inner.begin
        self.send_offsets = inner.send_offsets
        self.commit = inner.commit
        self.abort = inner.abort

    @property
    def unreachable_since_s(self) -> float | None:
        return self._inner.unreachable_since_s

    @property
    def retried_count(self) -> int:
        return self._inner.retried_count

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        return await self._inner.send(topic, partition, [self._stamped(topic, record) for record in records])

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        outcomes: list[int | DeliveryError | None] = []
        stamped: list[Outgoing] = []
        for record in records:
            try:
                stamped.append(self._stamped(topic, record))
                outcomes.append(None)
            except DeliveryError as error:  # of this record alone; the others are sent
                outcomes.append(error)
        sent = iter(await self._inner.send_each(topic, partition, stamped) if stamped else ())
        return [next(sent) if outcome is None else outcome for outcome in outcomes]

    def _stamped(self, topic: str, record: Outgoing) -> Outgoing:
        key, value, headers = record
        if value is None:
            return record
        schema: bytes | None = None
        for name, found in headers:
            if name == HEADER:
                return record  # it has one already
            if name == "ce_dataschema":
                schema = found
        if schema is None and topic in self._plain:
            schema = dataschema_of(self._plain[topic], value, headers)
        stamp = self._stamps.get((topic, schema)) if schema is not None else None
        if stamp is None:
            return record
        if stamp.convert is not None:
            try:
                value = stamp.convert(value)
            except Exception as error:
                message = f"the event cannot be written as {stamp.content_type.decode()}: {error}"
                raise DeliveryError(message, topic=topic) from error
            headers = [(n, stamp.content_type if n == "content-type" else found) for n, found in headers]
        return (key, stamp.mark + value, headers) if self._as_prefix else (key, value, [*headers, (HEADER, stamp.mark)])


class _TranslatingConsumer(WrappedConsumer):
    """See `Consumer`. Its records have JSON values, whatever they have in the log."""

    def __init__(self, inner: Consumer, schemas: Schemas, catalogue: Catalogue) -> None:
        super().__init__(inner)
        self._schemas = schemas
        self._catalogue = catalogue

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        polled = await self._inner.poll(timeout_s=timeout_s, max_records=max_records)
        return {
            partition: [await self._schemas.translated(record, self._catalogue) for record in records]
            for partition, records in polled.items()
        }
