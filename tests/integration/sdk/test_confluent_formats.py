"""Avro and Protobuf through Confluent's own serializers, and ours, over a registry in a process of its own."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hailbus import Context, Event, KafkaBus, Service, Topic
from hailbus.registry import SchemaRegistry, Schemas
from hailbus.registry.avro import avro_schema
from hailbus.registry.protobuf import protobuf_schema
from hailbus.testing import MemoryBus
from pydantic import BaseModel, Field

from tests.support import free_port

ORDERS = Topic("orders.v1", partitions=1)
Place = Literal["header", "prefix"]
WRITERS = {"header": header_schema_id_serializer, "prefix": prefix_schema_id_serializer}


class Cluster(Protocol):
    bootstrap: str


class Address(BaseModel):
    street: str


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int
    ship_to: Address
    tags: list[str] = Field(default_factory=list)
    note: str | None = None


PLACED = OrderPlaced(order_id="a", amount=2**40, ship_to=Address(street="x"), tags=["t"])


@pytest.fixture
def bus() -> MemoryBus:
    """In real time: the registry is a process of its own."""
    return MemoryBus()


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [str(Path(sys.executable).with_name("hailbus-registry")), "serve", "--listen"]
    topic = f"_schemas-{uuid4().hex}"
    errors = tmp_path_factory.mktemp("registry") / "registry.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [
                *command,
                f"127.0.0.1:{free_port()}",
                "--bootstrap-server",
                cluster.bootstrap,
                "--topic",
                topic,
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening="), errors.read_text()
    yield "http://" + line.strip().removeprefix("listening=")
    process.terminate()
    process.communicate(timeout=30)


@pytest.fixture
def url(server: str) -> Iterator[str]:
    """A registry that other tests of this file use, too, and that is empty."""
    yield server
    client = SchemaRegistryClient({"url": server})
    for subject in client.get_subjects():
        client.delete_subject(subject)
        client.delete_subject(subject, permanent=True)
    assert client.get_subjects(deleted=True) == []


def message_class() -> Any:
    file: FileDescriptorProto = protobuf_schema(OrderPlaced)
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.OrderPlaced"))


def context(headers: list[Any]) -> SerializationContext:  # Any: pairs, which its annotation has wider
    return SerializationContext("orders.v1", MessageField.VALUE, headers)


@pytest.mark.parametrize("place", ["header", "prefix"])
@pytest.mark.parametrize("format_", ["avro", "protobuf"])
async def test_confluent_reads_what_hailbus_writes(bus: MemoryBus, url: str, format_: Any, place: Place) -> None:
    async with SchemaRegistry(url) as registry:
        svc = Service("shop", schemas=Schemas(registry, format=format_, place=place))
        orders = svc.publishes(OrderPlaced)
        async with bus.run(svc):
            await orders.publish(PLACED)
    (record,) = bus.records(ORDERS)
    client = SchemaRegistryClient({"url": url})
    ctx = context(list(record.headers))
    if format_ == "avro":
        found = AvroDeserializer(client)(record.value, ctx)
        assert found == {"order_id": "a", "amount": 2**40, "ship_to": {"street": "x"}, "tags": ["t"], "note": None}
    else:
        message = ProtobufDeserializer(message_class(), {"use.deprecated.format": False}, client)(record.value, ctx)
        assert (message.order_id, message.amount, message.ship_to.street) == ("a", 2**40, "x")
        assert (list(message.tags), message.HasField("note")) == (["t"], False)


@pytest.mark.parametrize("place", ["header", "prefix"])
@pytest.mark.parametrize("format_", ["avro", "protobuf"])
async def test_hailbus_reads_what_confluent_writes(bus: MemoryBus, url: str, format_: Any, place: Place) -> None:
    client = SchemaRegistryClient({"url": url})
    headers: list[tuple[str, bytes]] = []
    options = {"schema.id.serializer": WRITERS[place]}
    if format_ == "avro":
        foreign = {k: v for k, v in avro_schema(OrderPlaced).items() if k != "hailbus"}

        value = AvroSerializer(client, json.dumps(foreign), conf=options)(PLACED.model_dump(), context(headers))
    else:
        made = message_class()
        value = ProtobufSerializer(made, client, options)(
            made(order_id="a", amount=2**40, ship_to={"street": "x"}, tags=["t"]), context(headers)
        )
    assert value is not None
    seen: list[Event] = []
    ids: list[str] = []
    async with SchemaRegistry(url) as registry:
        svc = Service("till", schemas=Schemas(registry))

        @svc.on(OrderPlaced)
        async def take(event: OrderPlaced, ctx: Context) -> None:
            seen.append(event)
            ids.append(ctx.envelope.id)

        async with bus.run(svc) as t:
            await t.given_record(ORDERS, value, key=b"a", headers=headers)
            await t.settle()
    assert seen == [PLACED]
    assert ids == ["orders.v1-0-0"]


def test_the_registry_keeps_to_its_level_in_every_format(url: str) -> None:

    client = SchemaRegistryClient({"url": url, "max.retries": 0})

    def avro(*fields: dict[str, Any]) -> Any:  # Any: its class is untyped
        return AvroSerializer(client, json.dumps({"type": "record", "name": "R", "fields": list(fields)}))

    a, b = {"name": "a", "type": "string"}, {"name": "b", "type": "int"}
    avro(a)({"a": "x"}, context([]))
    avro(a, {**b, "default": 0})({"a": "x", "b": 1}, context([]))
    with pytest.raises(SchemaRegistryError, match="has no default"):
        avro(a, {**b, "name": "c"})({"a": "x", "c": 1}, context([]))
    assert client.get_latest_version("orders.v1-value").schema.schema_type == "AVRO"


EVENTS = """
from hailbus import Event, Topic
from pydantic import BaseModel, Field

class Address(BaseModel):
    street: str

class OrderPlaced(Event, topic=Topic({topic!r}, partitions=1), key="order_id", type="order.placed"):
    order_id: str
    amount: int
    ship_to: Address
    tags: list[str] = Field(default_factory=list)
    note: str | None = None
"""


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
async def test_tail_prints_values_by_their_schemas(
    kind: Literal["avro", "protobuf"],
    url: str,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"tailed_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(EVENTS.format(topic=name))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    async with SchemaRegistry(url) as registry:
        svc = Service("tailed", schemas=Schemas(registry, format=kind, place="prefix"))
        orders = svc.publishes(module.OrderPlaced)
        async with svc.running(KafkaBus(bootstrap_servers=cluster.bootstrap)):
            await orders.publish(module.OrderPlaced(**PLACED.model_dump()))

    def tail(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("hailbus")), "tail", name, "-b", cluster.bootstrap]
        return subprocess.run(
            [*command, "--start", "earliest", "--until-end", "--json", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    done = await asyncio.to_thread(tail, "--registry", url)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["type"], printed["data"]) == ("order.placed", PLACED.model_dump(mode="json"))

    without = await asyncio.to_thread(tail)
    assert (without.returncode, without.stdout) == (0, ""), "its bytes are not JSON"
    assert without.stderr.startswith(f"record_passed_over: {name}-0@0: the value of 'order.placed' version 1 ")
