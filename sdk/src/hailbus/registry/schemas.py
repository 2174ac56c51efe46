"""Schema ids on what a service publishes, and events found by the schema ids of what it reads."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from hailbus._transport import Admin, Bus, Consumer, Outgoing, Producer, RebalanceListener, Received, Start
from hailbus.catalogue import Catalogue
from hailbus.contract import Contract, contract_of
from hailbus.envelope import parse_dataschema, time_text
from hailbus.errors import (
    ConfigurationError,
    DeliveryError,
    RegistryRefusedError,
    RegistryUnreachableError,
    UnknownSchemaError,
)
from hailbus.event import Event, event_info
from hailbus.partitioner import Partitioner
from hailbus.registry.client import RegisteredSchema, SchemaRegistry
from hailbus.schema_id import HEADER, SchemaId, header_of, prefix_of, schema_id_of

__all__ = ["Schemas", "contract_from", "registered_form", "subject_of"]

log = logging.getLogger("hailbus.registry")
EXTENSION = "x-hailbus"


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
        register: Register schemas; else they must be there.
        patience: How long to wait for a registry.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        place: Literal["header", "prefix"] = "header",
        register: bool = True,
        patience: timedelta = timedelta(seconds=30),
    ) -> None:
        if place not in {"header", "prefix"}:
            message = f"place={place!r} is neither 'header' nor 'prefix'"
            raise ConfigurationError(message)
        self._registry = registry
        self._place = place
        self._register = register
        self._patience_s = patience.total_seconds()

    async def stamping(self, bus: Bus, events: Iterable[type[Event]]) -> Bus:
        """The bus, whose producers put schema ids on these events.

        Raises:
            RegistryUnreachableError: No registry answered in time.
            IncompatibleSchemaError, RegistryRefusedError: It does not take a schema, or does not have it.
        """
        stamps: dict[tuple[str, bytes], RegisteredSchema] = {}
        for cls in events:
            contract = contract_of(cls)
            info = event_info(cls)
            stamps[info.topic.name, info.dataschema.encode()] = await self._registered(contract)
        return _StampingBus(inner=bus, stamps=stamps, as_prefix=self._place == "prefix")

    async def _registered(self, contract: Contract) -> RegisteredSchema:
        subject, schema = subject_of(contract), registered_form(contract)

        async def ask() -> RegisteredSchema:
            if self._register:
                found = await self._registry.register(subject, schema)
            else:
                found = await self._registry.lookup(subject, schema)
            if self._place == "header" and not found.guid:  # an older registry tells it by id, or not at all
                found = await self._registry.by_id(found.id)
            return found

        found = await self._patiently(ask, f"the id of {subject}")
        if self._place == "header" and not found.guid:
            message = f"the registry gives no GUID for {subject}, which the header needs; use place='prefix'"
            raise ConfigurationError(message)
        return found

    async def identified(self, record: Received, catalogue: Catalogue) -> Received:
        """The record, with headers that name its event if it does so by its schema only.

        Raises:
            UnknownSchemaError: Its schema is unknown, or no event's, or no registry answered in time.
        """
        if any(name == "ce_type" for name, _ in record.headers):
            return record
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
        if registered.type != "JSON":
            reason = f"it is {registered.type}, and events are JSON"
            raise UnknownSchemaError(schema=str(schema_id), reason=reason, topic=record.topic)
        named = parse_dataschema(str(registered.schema.get("$id", "")))
        if named is None:
            title = registered.schema.get("title")
            classes = [c for c in catalogue.on_topic(record.topic) if title in {c.__name__, event_info(c).type}]
            if len(classes) != 1:
                reason = f"its title {title!r} is the name of {len(classes)} events on this topic"
                raise UnknownSchemaError(schema=str(schema_id), reason=reason, topic=record.topic)
            named = event_info(classes[0]).type, event_info(classes[0]).version
        moment = datetime.fromtimestamp(record.timestamp / 1000, tz=UTC)
        added = {
            "ce_specversion": "1.0",
            "ce_id": f"{record.topic}-{record.partition}-{record.offset}",
            "ce_source": f"/kafka/{record.topic}",
            "ce_type": named[0],
            "ce_time": time_text(moment),
            "ce_dataschema": f"hailbus:{named[0]}/v{named[1]}",
        }
        return _Identified(record, (*record.headers, *((name, text.encode()) for name, text in added.items())))

    async def _by(self, schema_id: SchemaId) -> RegisteredSchema:
        if schema_id.guid is not None:
            return await self._registry.by_guid(schema_id.guid)
        assert schema_id.id is not None
        return await self._registry.by_id(schema_id.id)

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


@dataclass(frozen=True, slots=True)
class _Identified:
    """A record with more headers."""

    original: Received
    headers: Sequence[tuple[str, bytes]]

    @property
    def topic(self) -> str:
        return self.original.topic

    @property
    def partition(self) -> int:
        return self.original.partition

    @property
    def offset(self) -> int:
        return self.original.offset

    @property
    def timestamp(self) -> int:
        return self.original.timestamp

    @property
    def timestamp_type(self) -> int:
        return self.original.timestamp_type

    @property
    def key(self) -> bytes | None:
        return self.original.key

    @property
    def value(self) -> bytes | None:
        return self.original.value


Stamps = Mapping[tuple[str, bytes], RegisteredSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StampingBus:
    """A bus whose producers put schema ids on the records of some events. Dead letters stay as they are."""

    inner: Bus
    stamps: Stamps
    as_prefix: bool

    @property
    def address(self) -> str:
        return self.inner.address

    @property
    def partitioner(self) -> Partitioner:
        return self.inner.partitioner

    @property
    def rebalance_timeout(self) -> timedelta | None:
        return self.inner.rebalance_timeout

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> Producer:
        made = self.inner.producer(client_id=client_id, transactional_id=transactional_id)
        return _StampingProducer(made, self.stamps, as_prefix=self.as_prefix)

    def consumer(
        self,
        *,
        client_id: str,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None = None,
        read_committed: bool = True,
    ) -> Consumer:
        return self.inner.consumer(
            client_id=client_id,
            group=group,
            topics=topics,
            start=start,
            listener=listener,
            read_committed=read_committed,
        )

    def admin(self, *, client_id: str) -> Admin:
        return self.inner.admin(client_id=client_id)


class _StampingProducer:
    """See `Producer`."""

    def __init__(self, inner: Producer, stamps: Stamps, *, as_prefix: bool) -> None:
        self._inner = inner
        self._stamps = {
            place: prefix_of(found.id) if as_prefix else header_of(found.guid)[1] for place, found in stamps.items()
        }
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
        return await self._inner.send_each(topic, partition, [self._stamped(topic, record) for record in records])

    def _stamped(self, topic: str, record: Outgoing) -> Outgoing:
        key, value, headers = record
        if value is None:
            return record
        stamp: bytes | None = None
        for name, found in headers:
            if name == HEADER:
                return record  # it has one already
            if name == "ce_dataschema":
                stamp = self._stamps.get((topic, found))
        if stamp is None:
            return record
        return (key, stamp + value, headers) if self._as_prefix else (key, value, [*headers, (HEADER, stamp)])
