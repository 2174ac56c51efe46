"""The schema registry as a process, through Confluent's own client and through ours, on real brokers."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, cast

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hailbus import Context, Event, IncompatibleSchemaError, KafkaBus, RegistryRefusedError, Service, Topic
from hailbus.cli import app
from hailbus.registry import SchemaRegistry, Schemas
from typer.testing import CliRunner

from tests.support import free_port, wait_for


class Cluster(Protocol):
    bootstrap: str


class OwnCluster(Cluster, Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...


class Server:
    """`hailbus-registry serve` in a process of its own."""

    def __init__(self, bootstrap: str, topic: str, log: Path) -> None:
        command = [str(Path(sys.executable).with_name("hailbus-registry")), "serve", "--listen"]
        # Into a file: a pipe that nobody reads would hold up the server as soon as it is full.
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                [*command, f"127.0.0.1:{free_port()}", "--bootstrap-server", bootstrap, "--topic", topic],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening="), log.read_text()
        self.url = "http://" + line.strip().removeprefix("listening=")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate(timeout=30)
        return self._process.returncode


Serve = Callable[[], Server]


@pytest.fixture
def serve_on(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    topic = f"_schemas-{random.randrange(10**9)}"
    running: list[Server] = []

    def start(bootstrap: str) -> Server:
        running.append(Server(bootstrap, topic, tmp_path / "registry.log"))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def serve(cluster: Cluster, serve_on: Callable[[str], Server]) -> Serve:
    return functools.partial(serve_on, cluster.bootstrap)


def model(*names: str, **more: object) -> dict[str, object]:
    return {
        "title": "Placed",
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": ["id"],
        "additionalProperties": False,
        **more,
    }


def confluent(document: object) -> Schema:
    return Schema(json.dumps(document), "JSON")


def schema_of(schema: Schema) -> object:
    assert schema.schema_str is not None
    return json.loads(schema.schema_str)


def refusal(call: Callable[[], object]) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call()
    return caught.value.http_status_code, caught.value.error_code


def test_confluents_own_client_finds_what_it_knows(serve: Serve) -> None:
    url = serve().url
    client = SchemaRegistryClient({"url": url, "max.retries": 0})
    first, second = confluent(model("id")), confluent(model("id", "note"))
    assert client.register_schema("orders-value", first) == 1
    assert client.register_schema("orders-value", first) == 1
    assert client.register_schema("other-value", first) == 1
    assert client.test_compatibility("orders-value", second)
    assert client.register_schema("orders-value", second) == 2
    assert client.get_versions("orders-value") == [1, 2]
    assert client.get_subjects() == ["orders-value", "other-value"]
    latest = client.get_latest_version("orders-value")
    assert (latest.version, latest.schema_id, schema_of(latest.schema)) == (2, 2, model("id", "note"))
    assert client.lookup_schema("orders-value", first).version == 1
    fresh = SchemaRegistryClient({"url": url, "max.retries": 0})
    assert schema_of(fresh.get_schema(1)) == model("id")
    assert latest.guid is not None
    assert schema_of(fresh.get_schema_by_guid(latest.guid)) == model("id", "note")
    assert fresh.get_subjects_by_schema_id(1) == ["orders-value", "other-value"]
    assert [(v.subject, v.version) for v in fresh.get_schema_versions(1)] == [("orders-value", 1), ("other-value", 1)]

    narrower = confluent(model("id", required=["id", "note"]))
    assert not client.test_compatibility("orders-value", narrower)
    assert refusal(lambda: client.register_schema("orders-value", narrower)) == (409, 40901)
    assert refusal(lambda: client.get_version("orders-value", 9)) == (404, 40402)
    assert refusal(lambda: client.get_versions("nowhere")) == (404, 40401)
    assert refusal(lambda: client.get_schema(99)) == (404, 40403)
    assert refusal(lambda: client.register_schema("x", Schema('{"type": 3}', "JSON"))) == (422, 42201)
    assert refusal(lambda: client.register_schema("x", Schema('"strung"', "AVRO"))) == (422, 42201)
    assert refusal(lambda: client.register_schema("x", Schema('syntax = "proto3";', "PROTOBUF"))) == (422, 42201)
    assert refusal(lambda: client.set_compatibility(level="SOME")) == (422, 42203)

    # Its annotation says that the answer is a text; it is what the registry answers.
    answer = cast("object", client.set_compatibility("orders-value", "NONE"))
    assert answer == {"compatibility": "NONE"}
    assert client.get_compatibility("orders-value") == "NONE"
    assert client.get_compatibility() == "BACKWARD"
    assert client.register_schema("orders-value", narrower) == 3
    assert client.update_mode("orders-value", "READONLY") == "READONLY"
    assert refusal(lambda: client.register_schema("orders-value", confluent(model("id", "x")))) == (422, 42205)
    assert client.delete_mode("orders-value") == "READONLY"
    assert client.get_global_mode() == "READWRITE"
    assert client.get_contexts() == ["."]

    assert client.delete_version("orders-value", 3) == 3
    assert client.get_versions("orders-value") == [1, 2]
    assert refusal(lambda: client.delete_subject("other-value", permanent=True)) == (404, 40405)
    assert client.delete_subject("orders-value") == [1, 2]
    assert client.get_subjects() == ["other-value"]
    assert client.get_subjects(deleted=True) == ["orders-value", "other-value"]
    assert client.delete_subject("orders-value", permanent=True) == [1, 2, 3]


def test_two_servers_agree_and_a_restart_keeps_all(serve: Serve) -> None:
    servers = [serve(), serve()]
    clients = [SchemaRegistryClient({"url": server.url, "max.retries": 0}) for server in servers]
    clients[0].set_compatibility(level="NONE")

    def register(number: int) -> tuple[str, int]:
        name = f"field{number % 6}"  # each schema comes twice, by either server
        return name, clients[number % 2 if number < 6 else (number + 1) % 2].register_schema(
            f"subject{number % 3}", confluent(model("id", name))
        )

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(register, range(12)))
    by_name = dict(found)
    assert sorted(by_name.values()) == list(range(1, 7)), "each schema has one id, no two schemas the same"
    assert set(found) == set(by_name.items()), "both servers gave the same id"

    def all_of(url: str) -> object:
        with httpx.Client(base_url=url) as http:
            subjects = http.get("/subjects").json()
            return {s: [http.get(f"/subjects/{s}/versions/{v}").json() for v in (1, 2)] for s in subjects}

    before = all_of(servers[0].url)
    assert all_of(servers[1].url) == before
    for server in servers:
        server.kill()
    again = serve()
    assert all_of(again.url) == before
    assert httpx.get(f"{again.url}/config").json()["compatibilityLevel"] == "NONE"
    fresh = SchemaRegistryClient({"url": again.url, "max.retries": 0})
    assert fresh.register_schema("subject0", confluent(model("id", "later"))) == 7
    assert again.stop() == 0


@pytest.mark.slow_with("apache")  # the JVM takes seconds to start again
def test_while_the_cluster_is_away_reads_go_on_and_writes_are_refused(
    own_cluster: OwnCluster, serve_on: Callable[[str], Server]
) -> None:
    with httpx.Client(base_url=serve_on(own_cluster.bootstrap).url, timeout=60) as http:

        def post(name: str) -> httpx.Response:
            body = {"schema": json.dumps(model("id", name)), "schemaType": "JSON"}
            return http.post("/subjects/orders/versions", json=body)

        http.put("/config", json={"compatibility": "NONE"}).raise_for_status()
        assert post("a").json()["id"] == 1
        own_cluster.kill()
        try:
            assert http.get("/schemas/ids/1").status_code == 200
            refused = post("b")
            assert (refused.status_code, refused.json()["error_code"] in {50001, 50002}) == (500, True)
        finally:
            own_cluster.start()
        wait_for("a write to be taken again", lambda: post("c").status_code == 200)
        assert http.get("/subjects/orders/versions").json()[:1] == [1]


# ------------------------------------------------------------------------------------------------ records with ids


def events_on(topic: str) -> type[Event]:
    class Placed(Event, topic=Topic(topic, partitions=1), key="order_id", type="order.placed"):
        order_id: str
        amount: int = 0

    return Placed


@pytest.mark.parametrize("place", ["header", "prefix"])
async def test_a_confluent_deserializer_reads_what_hailbus_publishes_and_the_other_way_round(
    place: str, cluster: Cluster, serve: Serve, until: Callable[..., object]
) -> None:
    topic = f"orders-{random.randrange(10**9)}"
    placed = events_on(topic)
    bus = KafkaBus(bootstrap_servers=cluster.bootstrap)
    url = serve().url
    async with SchemaRegistry(url) as registry:
        schemas = Schemas(registry, place="header" if place == "header" else "prefix")
        svc = Service("till", bus=bus, schemas=schemas)
        pub = svc.publishes(placed)
        handled: list[Event] = []

        @svc.on(placed)
        async def on_placed(event: Event, ctx: Context) -> None:
            handled.append(event)

        async with svc.running():
            receipt = await pub.publish(placed(order_id="a", amount=3))
            assert receipt.partition == 0
            consumer = bus.consumer(client_id="test", group=None, topics=[topic], start="earliest")
            await consumer.start()
            polled = await consumer.poll(timeout_s=10.0, max_records=1)
            await consumer.stop()
            (record,) = (record for records in polled.values() for record in records)
            confluent_client = SchemaRegistryClient({"url": url, "max.retries": 0})
            context = SerializationContext(topic, MessageField.VALUE, list(record.headers))
            if place == "header":
                guid = dict(record.headers)["__value_schema_id"]
                found = await asyncio.to_thread(confluent_client.get_schema_by_guid, guid[1:].hex())
                assert found is not None
                assert (guid[:1], record.value) == (b"\x01", b'{"order_id":"a","amount":3}')
            else:
                assert record.value is not None
                assert record.value[:1] == b"\0"
            reading = JSONDeserializer(None, schema_registry_client=confluent_client)
            assert await asyncio.to_thread(reading, record.value, context) == {"order_id": "a", "amount": 3}

            # A producer with Confluent's serializer knows no ce_type: its event is found by the schema alone.
            written = await asyncio.to_thread(
                JSONSerializer(
                    None,
                    confluent_client,
                    conf={
                        "auto.register.schemas": False,
                        "use.latest.version": True,
                        "subject.name.strategy": lambda ctx, name: f"{topic}-order.placed.v1",
                    },
                ),
                {"order_id": "b", "amount": 4},
                SerializationContext(topic, MessageField.VALUE),
            )
            producer = bus.producer(client_id="foreign")
            await producer.start()
            await producer.send(topic, 0, [(b"b", written, [])])
            await producer.stop()
            waiting = until(lambda: len(handled) == 2)
            assert asyncio.iscoroutine(waiting)
            await waiting
    assert [event.model_dump() for event in handled] == [
        {"order_id": "a", "amount": 3},
        {"order_id": "b", "amount": 4},
    ]


async def test_our_client_registers_checks_and_goes_on_offline(serve: Serve, tmp_path: Path) -> None:
    servers = [serve(), serve()]
    urls = ",".join(server.url for server in servers)
    async with SchemaRegistry(urls, cache=tmp_path) as registry:
        found = await registry.register("orders", model("id"))
        assert (found.id, found.version) == (1, 1)
        assert await registry.incompatibilities("orders", model("id", "note")) == []
        assert "#/properties/id" in (await registry.incompatibilities("orders", model("x")))[0]
        with pytest.raises(IncompatibleSchemaError) as incompatible:
            await registry.register("orders", model("x"))
        assert (incompatible.value.subject, incompatible.value.code) == ("orders", 40901)
        with pytest.raises(RegistryRefusedError) as unknown:
            await registry.by_id(77)
        assert unknown.value.code == 40403
        servers[0].kill()  # the other one answers
        assert await registry.subjects() == ["orders"]
        assert (await registry.by_id(1)).schema == model("id")
        servers[1].kill()
    async with SchemaRegistry(urls, cache=tmp_path) as offline:
        assert (await offline.register("orders", model("id"))).id == 1
        assert (await offline.by_id(1)).schema == model("id")


def test_the_command_registers_a_catalogue_and_checks_against_it(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve().url
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAILBUS_REGISTRY_URL", url)
    run = CliRunner()
    source = """
from hailbus import *
class Placed(Event, topic=Topic("orders.v1"), key="order_id", type="order.placed"):
    order_id: str
    amount: {kind}
"""
    (tmp_path / "reg_one.py").write_text(source.format(kind="int"))
    (tmp_path / "reg_two.py").write_text(source.format(kind="int\n    note: str = ''"))
    (tmp_path / "reg_three.py").write_text(source.format(kind="str"))
    try:
        first = run.invoke(app, ["registry", "register", "reg_one"])
        assert (first.exit_code, first.output) == (0, "ok: orders.v1-order.placed.v1: id 1\n")
        assert run.invoke(app, ["registry", "register", "reg_two"]).exit_code == 0
        refused = run.invoke(app, ["registry", "register", "reg_three", "--dry-run"])
        assert refused.exit_code == 1
        assert "#/properties/amount" in refused.output
        shown = run.invoke(app, ["registry", "ls", "--json"])
        assert json.loads(shown.output) == {"subject": "orders.v1-order.placed.v1", "versions": [1, 2]}
        schema = json.loads(run.invoke(app, ["registry", "show", "orders.v1-order.placed.v1"]).output)
        assert schema["$id"] == "hailbus:order.placed/v1"

        assert run.invoke(app, ["check", "reg_two", "--against", url]).exit_code == 0
        broken = run.invoke(app, ["check", "reg_three", "--against", url, "--json"])
        assert broken.exit_code == 1
        finding = json.loads(broken.stdout.splitlines()[0])
        assert (finding["breaking"], finding["path"], finding["pointer"]) == (True, "amount", "#/properties/amount")
        down = run.invoke(app, ["check", "reg_one", "--against", "http://127.0.0.1:9"])
        assert down.exit_code == 2
        assert "no schema registry answers at http://127.0.0.1:9" in down.output
    finally:
        for name in ("reg_one", "reg_two", "reg_three"):
            sys.modules.pop(name, None)


def test_the_guides_example_runs(cluster: Cluster, serve: Serve, tmp_path: Path) -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "sdk" / "registry.md").read_text()
    example = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)[0]
    program = example.replace("127.0.0.1:9092", cluster.bootstrap).replace("http://127.0.0.1:8081", serve().url)
    (tmp_path / "till.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "till.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3 True\n"), done.stderr
