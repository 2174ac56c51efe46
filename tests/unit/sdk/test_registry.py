"""The schema registry in memory: what it decides, ids on records, and what happens while it is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hailbus import (
    AtLeastOnce,
    Batch,
    ConfigurationError,
    Context,
    DeadLetter,
    Event,
    ExactlyOnce,
    Outbox,
    RegistryRefusedError,
    RegistryUnreachableError,
    Service,
    Topic,
    bus_reader,
)
from hailbus.compatibility import Level, Policy
from hailbus.contract import contract_of
from hailbus.database import create_engine
from hailbus.registry import (
    Reference,
    SchemaRegistry,
    Schemas,
    header_of,
    prefix_of,
    registered_form,
    schema_id_of,
    subject_of,
)
from hailbus.registry.schemas import contract_from
from hailbus.testing import MemoryBus
from hailbus_registry.server import create_app
from hailbus_registry.state import RefusedError, RegistryState, Submission

ORDERS = Topic("orders.v1", partitions=1)


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int = 0


class Paid(Event, topic=Topic("payments.v1", partitions=1), key="order_id", type="order.paid"):
    order_id: str


def submission(**document: Any) -> Submission:
    return Submission(text=json.dumps(document))


def closed(*names: str, required: tuple[str, ...] = ()) -> Submission:
    return submission(
        type="object",
        properties={name: {"type": "string"} for name in names},
        required=list(required),
        additionalProperties=False,
    )


class Registry:
    """The state, with what it decides replayed at once."""

    def __init__(self, **settings: Any) -> None:
        self.state = RegistryState(**settings)
        self.log: dict[bytes, bytes | None] = {}

    def do(self, decision: Any) -> Any:
        for key, value in decision.records:
            self.log[key] = value  # as compaction leaves it
            self.state.replay(key, value)
        return decision.answer

    def compacted(self) -> RegistryState:
        fresh = RegistryState()
        for key, value in self.log.items():
            if value is not None:
                fresh.replay(key, value)
        return fresh


def refused(call: Any) -> int:
    with pytest.raises(RefusedError) as caught:
        call()
    return caught.value.code


# ------------------------------------------------------------------------------------------------ deciding


def test_one_schema_has_one_id_whatever_the_order_of_its_keys() -> None:
    registry = Registry()
    first = registry.do(registry.state.register("a", Submission(text='{"type":"object","title":"T"}')))
    again = registry.do(registry.state.register("b", Submission(text='{"title": "T", "type": "object"}')))
    assert (first.id, again.id, again.version) == (1, 1, 1)
    assert first.guid == again.guid
    assert registry.do(registry.state.register("a", submission(title="U"))).id == 2
    assert registry.state.places(1) == [("a", 1), ("b", 1)]


def test_an_id_is_not_given_twice_after_a_deletion_for_good() -> None:
    registry = Registry()
    registry.do(registry.state.register("a", submission(title="T")))
    registry.do(registry.state.register("a", submission(title="U")))
    registry.do(registry.state.delete_subject("a", permanent=False))
    registry.do(registry.state.delete_subject("a", permanent=True))
    assert registry.state.subjects(deleted=True) == []
    assert registry.compacted().register("a", submission(title="T")).answer.id == 3


def test_deleting_is_soft_first() -> None:
    registry = Registry()
    state = registry.state
    for title in ("T", "U"):
        registry.do(state.register("a", submission(title=title)))
    assert refused(lambda: state.delete_version("a", "1", permanent=True)) == 40407
    assert registry.do(state.delete_version("a", "1", permanent=False)) == 1
    assert refused(lambda: state.delete_version("a", "1", permanent=False)) == 40406
    assert refused(lambda: state.version("a", "1")) == 40402
    assert state.version("a", "1", deleted=True).id == 1
    assert state.by_id(1).text == '{"title": "T"}', "readers of old records still find it"
    assert registry.do(state.delete_version("a", "1", permanent=True)) == 1
    assert refused(lambda: state.by_id(1)) == 40403
    assert refused(lambda: state.delete_subject("a", permanent=True)) == 40405
    registry.do(state.delete_subject("a", permanent=False))
    assert refused(lambda: state.delete_subject("a", permanent=False)) == 40404
    assert refused(lambda: state.versions("a")) == 40401
    assert registry.compacted().subjects(deleted_only=True) == ["a"]


@pytest.mark.parametrize("number", ["0", "x", "-2", "4294967296", "1.0"])
def test_a_version_is_a_number_or_latest(number: str) -> None:
    registry = Registry()
    registry.do(registry.state.register("a", submission(title="T")))
    assert refused(lambda: registry.state.version("a", number)) == 42202
    assert (
        registry.state.version("a", "latest") == registry.state.version("a", "-1") == registry.state.version("a", "1")
    )


def test_references_are_followed_and_bind() -> None:
    registry = Registry()
    state = registry.state
    cents = {"type": "object", "properties": {"cents": {"type": "integer"}}, "additionalProperties": False}
    registry.do(state.register("money", submission(**cents)))
    order = {"type": "object", "properties": {"fare": {"$ref": "money.json"}}, "additionalProperties": False}
    refers = Submission(text=json.dumps(order), references=(Reference("money.json", "money", 1),))
    stored = registry.do(state.register("order", refers))
    assert state.referrers("money", 1) == [stored.id]
    assert refused(lambda: state.delete_subject("money", permanent=False)) == 42206
    dangling = Submission(text=json.dumps(order), references=(Reference("money.json", "money", 7),))
    assert refused(lambda: state.register("order", dangling)) == 42201
    inside = {**order, "properties": {"fare": {**cents, "properties": {"cents": {"type": "string"}}}}}
    (reason,) = state.incompatibilities("order", submission(**inside), state.versions("order"))
    assert reason == (
        "#/properties/fare/properties/cents: the new schema cannot read old data: "
        "integer is written, string is expected"
    )
    assert [r.name for r in registry.compacted().version("order", "1").references] == ["money.json"]


# what is registered in turn, level, whether the last is taken
HISTORIES: dict[str, tuple[list[Submission], Level, bool]] = {
    "backward: a new optional field": ([closed("a"), closed("a", "b")], Level.BACKWARD, True),
    "backward: a field less": ([closed("a", "b"), closed("a")], Level.BACKWARD, False),
    "forward: a new field": ([closed("a"), closed("a", "b")], Level.FORWARD, False),
    "forward: an optional field less": ([closed("a", "b"), closed("a")], Level.FORWARD, True),
    "full: neither way": ([closed("a"), closed("a", "b")], Level.FULL, False),
    "full: what is the same": ([closed("a"), closed("a")], Level.FULL, True),
    "none: anything": ([closed("a"), submission(type="integer")], Level.NONE, True),
    "backward sees the last only": (
        [closed("a", required=("a",)), closed("a"), closed("a", "b")],
        Level.BACKWARD,
        True,
    ),
    "backward, the last but one would break": (
        [submission(type="string"), submission(type=["string", "integer"]), submission(type="integer")],
        Level.BACKWARD,
        False,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_levels_guard_a_subject(name: str) -> None:
    history, level, is_taken = HISTORIES[name]
    registry = Registry(level=Level.NONE)
    for one in history[:-1]:
        registry.do(registry.state.register("s", one))
    registry.do(registry.state.set_config("s", {"compatibility": level.value}))
    if is_taken:
        registry.state.register("s", history[-1])
    else:
        assert refused(lambda: registry.state.register("s", history[-1])) == 40901


@pytest.mark.parametrize(("level", "is_taken"), [(Level.BACKWARD, True), (Level.BACKWARD_TRANSITIVE, False)])
def test_a_transitive_level_looks_at_all_versions(level: Level, is_taken: bool) -> None:
    registry = Registry(level=Level.NONE)
    for kind in ("string", "integer"):
        registry.do(registry.state.register("s", submission(type=kind)))
    registry.do(registry.state.set_config("s", {"compatibility": level.value}))
    new = submission(type="number")
    reasons = registry.state.incompatibilities("s", new, registry.state.versions("s"))
    assert (reasons == []) is is_taken


def test_an_open_model_may_write_anything_unless_the_policy_is_lenient() -> None:
    def opened(*names: str) -> Submission:
        return submission(type="object", properties={name: {"type": "string"} for name in names})

    registry = Registry()
    registry.do(registry.state.register("s", opened("a")))
    (reason,) = registry.state.incompatibilities("s", opened("a", "b"), registry.state.versions("s"))
    assert reason.startswith("#/properties/b: the new schema cannot read old data: the writer's model is open")
    registry.do(registry.state.set_config("s", {"compatibilityPolicy": "LENIENT"}))
    assert registry.state.config("s") == {"compatibilityLevel": "BACKWARD", "compatibilityPolicy": "LENIENT"}
    assert registry.state.incompatibilities("s", opened("a", "b"), registry.state.versions("s")) == []
    assert Policy.STRICT.value == registry.state.config(None)["compatibilityPolicy"]


def test_import_mode_takes_numbers_from_elsewhere() -> None:
    registry = Registry()
    state = registry.state
    assert refused(lambda: state.register("s", closed("a"), id=40)) == 42205
    registry.do(state.set_mode("s", "IMPORT", force=False))
    assert registry.do(state.register("s", closed("a"), id=40, version=7)).version == 7
    assert refused(lambda: state.register("s", closed("b"), id=40)) == 42205
    registry.do(state.set_mode("s", "READWRITE", force=False))
    assert refused(lambda: state.set_mode("s", "IMPORT", force=False)) == 42205
    assert registry.do(state.register("t", closed("z"))).id == 41
    assert refused(lambda: state.set_mode(None, "SOMETIMES", force=False)) == 42204
    registry.do(state.set_mode(None, "READONLY_OVERRIDE", force=False))
    assert refused(lambda: state.register("s", closed("a", "b"))) == 42205


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("{", "JSON", "no JSON"),
        ("3", "JSON", "an object or a boolean"),
        ('{"properties": {"a": {"type": "strin"}}}', "JSON", "#/properties/a/type"),
        ('"strung"', "AVRO", "no AVRO schema"),
        ("{", "AVRO", "no AVRO schema"),
        ("syntax = 'proto3';", "PROTOBUF", "serialized and in base64"),
        ("{}", "XML", "none of JSON, AVRO and PROTOBUF"),
    ],
)
def test_what_is_no_schema_is_refused_with_a_sentence(text: str, kind: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words.replace("/", "/")) as caught:
        Submission(text=text, type=kind)
    assert caught.value.code == 42201


def test_foreign_records_in_the_topic_are_passed_over() -> None:
    state = RegistryState()
    for key, value in (
        (None, b"x"),
        (b"{}", b"{}"),
        (
            b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
            b'{"subject":"a","version":1,"id":1,"schemaType":"PROTOBUF","schema":"syntax = \\"proto3\\";"}',
        ),
        (b'{"keytype":"CONTEXT","magic":0}', b"{}"),
        (b"\xff", None),
    ):
        state.replay(key, value)
    assert state.subjects(deleted=True) == []


# ------------------------------------------------------------------------------------------------ ids on records


class Switch(httpx.AsyncBaseTransport):
    """A way to a server that can be cut."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx.ASGITransport(app)
        self.is_cut = False
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        if self.is_cut:
            raise httpx.ConnectError("cut")
        return await self._inner.handle_async_request(request)


@asynccontextmanager
async def registry_on(bus: MemoryBus, cache: Path | None = None) -> AsyncIterator[tuple[SchemaRegistry, Switch]]:
    app = create_app(bus)
    async with app.router.lifespan_context(app):
        way = Switch(app)
        async with SchemaRegistry("http://registry", cache=cache, transport=way) as registry:
            yield registry, way


def service(schemas: Schemas | None, handled: list[Event]) -> Service:
    svc = Service("till", schemas=schemas)
    svc.publishes(Placed)

    @svc.on(Placed, delivery=AtLeastOnce(then=DeadLetter()))
    async def on_placed(event: Placed, ctx: Context) -> None:
        handled.append(event)

    return svc


@pytest.mark.parametrize("place", ["header", "prefix"])
async def test_published_records_carry_the_id_and_every_reader_passes_over_it(place: Any) -> None:
    bus = MemoryBus()
    handled: list[Event] = []
    async with registry_on(bus) as (registry, way):
        svc = Service("till", schemas=Schemas(registry, place=place))
        pub = svc.publishes(Placed)
        async with bus.run(svc, service(None, handled)) as t:  # the reader knows no registry
            await pub.publish(Placed(order_id="a", amount=1))
            await pub.publish(Placed(order_id="b", amount=2))
            await t.settle()
        (one, _) = bus.records(ORDERS)
        registered = await registry.version(subject_of(contract_of(Placed)))
        assert registered.schema == registered_form(contract_of(Placed))
        if place == "header":
            assert one.headers[-1] == header_of(registered.guid)
            assert one.value == b'{"order_id":"a","amount":1}'
        else:
            assert one.value == prefix_of(registered.id) + b'{"order_id":"a","amount":1}'
            assert "__value_schema_id" not in dict(one.headers)
        assert sum(line.startswith("POST") for line in way.asked) == 1, "asked once, not per event"
        read = [d.event async for d in bus_reader(bus, Placed, start="earliest", until_end=True)]
    assert handled == read == [Placed(order_id="a", amount=1), Placed(order_id="b", amount=2)]


def test_ids_are_found_in_header_and_prefix_and_nowhere_else() -> None:
    guid = "0718b9c8-55de-1ed8-9d37-6ebd83b24fda"
    assert prefix_of(258) == b"\x00\x00\x00\x01\x02"
    assert str(schema_id_of([header_of(guid)], prefix_of(1) + b"{}")) == f"GUID {guid}"
    assert str(schema_id_of([("x", b"\xff")], prefix_of(258) + b"{}")) == "id 258"
    assert schema_id_of([], b"{}") is None
    assert schema_id_of([], None) is None
    assert schema_id_of([("__value_schema_id", b"\x01short")], b"{}") is None


def test_a_registered_schema_tells_its_contract() -> None:
    contract = contract_of(Placed)
    form = registered_form(contract)
    assert form["additionalProperties"] is False
    assert contract_from(form) == contract
    assert contract_from({"title": "Other"}) is None


async def test_a_foreign_record_is_found_by_the_title_of_its_schema() -> None:
    bus = MemoryBus()
    handled: list[Event] = []
    async with registry_on(bus) as (registry, _):
        theirs = await registry.register("orders.v1-value", {"title": "Placed", "type": "object"})
        svc = service(Schemas(registry), handled)
        async with bus.run(svc) as t:
            bus.append(ORDERS.name, 0, [(b"a", prefix_of(theirs.id) + b'{"order_id":"a"}', [])])
            bus.append(ORDERS.name, 0, [(b"b", b'{"order_id":"b"}', [header_of(theirs.guid)])])
            await t.settle()
            t.dead_letters(ORDERS, group="till").none()
    assert handled == [Placed(order_id="a"), Placed(order_id="b")]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "Schema 77 not found"),
        ({"title": "Nobody"}, "its title 'Nobody' is the name of 0 events on this topic"),
    ],
)
async def test_an_unknown_schema_becomes_a_dead_letter_with_its_raw_bytes(schema: Any, words: str) -> None:
    bus = MemoryBus()
    handled: list[Event] = []
    async with registry_on(bus) as (registry, _):
        number = (await registry.register("x", schema)).id if schema else 77
        async with bus.run(service(Schemas(registry), handled)) as t:
            bus.append(ORDERS.name, 0, [(b"a", prefix_of(number) + b'{"order_id":"a"}', [])])
            await t.given(Placed(order_id="b"))
            await t.settle()
            (letter,) = t.dead_letters(ORDERS, group="till")
            assert t.committed(ORDERS) == t.end(ORDERS)
    headers = dict(letter.headers)
    assert headers["kafka_dlt-exception-fqcn"] == b"hailbus.errors.UnknownSchemaError"
    assert words in headers["kafka_dlt-exception-message"].decode()
    assert letter.value == prefix_of(number) + b'{"order_id":"a"}'
    assert handled == [Placed(order_id="b")]


async def test_while_the_registry_is_away_one_key_waits_and_the_others_go_on() -> None:
    bus = MemoryBus()
    handled: list[Event] = []
    async with registry_on(bus) as (registry, way):
        theirs = await registry.register("x", {"title": "Placed"})
        fresh = SchemaRegistry("http://registry", transport=way)  # it has not asked for this id before
        svc = service(Schemas(fresh, patience=timedelta(seconds=20)), handled)
        async with bus.run(svc) as t:
            way.is_cut = True
            bus.append(ORDERS.name, 0, [(b"a", prefix_of(theirs.id) + b'{"order_id":"a"}', [])])
            await t.given(Placed(order_id="b"))
            while handled != [Placed(order_id="b")]:
                await t.services[0].flush()
                await asyncio.sleep(0.01)
            assert t.committed(ORDERS) != t.end(ORDERS), "the waiting one is not passed"
            way.is_cut = False
            await t.settle()
    assert handled == [Placed(order_id="b"), Placed(order_id="a")]


async def test_while_no_registry_answers_the_partition_waits_and_a_start_fails() -> None:
    bus = MemoryBus()
    handled: list[Event] = []
    async with registry_on(bus) as (registry, way):
        schemas = Schemas(registry, patience=timedelta(milliseconds=50))
        svc = service(schemas, handled)
        async with bus.run(svc) as t:
            way.is_cut = True
            bus.append(ORDERS.name, 0, [(b"a", prefix_of(9) + b"{}", [])])
            (subscriber,) = svc.subscribers
            async with asyncio.timeout(20):
                while not subscriber.stats.outages:  # noqa: ASYNC110 the counter is the condition
                    await asyncio.sleep(0.01)
            assert t.committed(ORDERS) != t.end(ORDERS), "the record is not passed"
            assert len(t.dead_letters(ORDERS, group="till")) == 0
            way.is_cut = False
            await t.settle()
            (letter,) = t.dead_letters(ORDERS, group="till")  # the registry has no such schema
        assert dict(letter.headers)["hailbus-failed-by"] == b"decoder"
        way.is_cut = True
        fresh = SchemaRegistry("http://registry,http://other", transport=way)
        with pytest.raises(RegistryUnreachableError) as caught:
            async with service(Schemas(fresh, patience=timedelta(0)), []).running(bus):
                pass
        assert caught.value.urls == ("http://registry", "http://other")


async def test_a_service_starts_from_the_cache_while_the_registry_is_away(tmp_path: Path) -> None:
    bus = MemoryBus()
    async with registry_on(bus, tmp_path) as (registry, way):
        async with service(Schemas(registry), []).running(bus):
            pass
        way.is_cut = True
        offline = SchemaRegistry("http://registry", cache=tmp_path, transport=way)
        async with service(Schemas(offline, patience=timedelta(0)), []).running(bus):
            pass


async def test_without_registering_a_schema_must_be_there() -> None:
    bus = MemoryBus()
    async with registry_on(bus) as (registry, _):
        with pytest.raises(RegistryRefusedError) as caught:
            async with service(Schemas(registry, register=False), []).running(bus):
                pass
        assert caught.value.code == 40401
        await registry.register(subject_of(contract_of(Placed)), registered_form(contract_of(Placed)))
        async with service(Schemas(registry, register=False), []).running(bus):
            pass


async def test_a_store_that_does_not_answer_is_said_so() -> None:
    bus = MemoryBus()
    app = create_app(bus, timeout_s=0.2)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client,
    ):
        bus.go_down()
        body = {"schema": "{}", "schemaType": "JSON"}
        answer = await client.post("/subjects/a/versions", json=body)
        assert (answer.status_code, answer.json()["error_code"] in {50001, 50002}) == (500, True)
        bus.come_up()
        assert (await client.post("/subjects/a/versions", json=body)).json()["id"] == 1
        bad = await client.post("/subjects/a/versions", content=b"nonsense")
        assert (bad.status_code, bad.json()["error_code"]) == (422, 42201)
        extra = await client.post("/subjects/a/versions", json={**body, "ruleSet": {"x": 1}})
        assert "ruleSet" in extra.json()["message"]


def test_urls_and_places_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="is not like"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(ConfigurationError, match="neither 'header' nor 'prefix'"):
        Schemas(SchemaRegistry("http://x"), place="footer")  # type: ignore[arg-type]  # what the check is for


async def test_outbox_transactions_and_batches_carry_the_id_too(tmp_path: Path) -> None:
    bus = MemoryBus()
    seen: list[Event] = []
    async with registry_on(bus) as (registry, _):
        engine = create_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        svc = Service("shop", schemas=Schemas(registry, place="prefix"))
        pub = svc.publishes(Placed | Paid)
        svc.relays(Outbox(engine))

        @svc.on(Placed, delivery=ExactlyOnce(), group="exact")
        async def pay(event: Placed, ctx: Context) -> None:
            await pub.publish(Paid(order_id=event.order_id), cause=ctx)

        @svc.on_batch(Paid, group="batches")
        async def paid(batch: Batch[Paid]) -> None:
            seen.extend(batch.events)

        async with bus.run(svc) as t:
            async with engine.begin() as tx:
                await pub.publish(Placed(order_id="a"), tx=tx)
            await t.settle()
        number = (await registry.version(subject_of(contract_of(Placed)))).id
        assert bus.records(ORDERS)[0].value == prefix_of(number) + b'{"order_id":"a","amount":0}'
        number = (await registry.version(subject_of(contract_of(Paid)))).id
        assert bus.records("payments.v1")[0].value == prefix_of(number) + b'{"order_id":"a"}'
        await engine.dispose()
    assert seen == [Paid(order_id="a")]
