"""Payment beside a schema registry: its records name their schemas, and it needs a registry once only."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import payment.main
import pytest
from hailbus import Service
from hailbus.registry import SchemaRegistry, header_of
from hailbus.testing import MemoryBus
from hailbus_registry.server import create_app
from ride_events import CATALOGUE
from ride_events.payments import PaymentAuthorised

from tests.integration.payment.conftest import StartCity, requested

pytestmark = pytest.mark.timeout(180)


class Away(httpx.AsyncBaseTransport):
    """A network behind which no registry is."""

    def __init__(self) -> None:
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        raise httpx.ConnectError("refused", request=request)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"schema_registry_url": "http://registry", "schema_cache": tmp_path / "schemas"}


Reach = Callable[[httpx.AsyncBaseTransport], None]


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    """Have payment reach its registry through a transport."""

    def choose(transport: httpx.AsyncBaseTransport) -> None:
        monkeypatch.setattr(payment.main, "SchemaRegistry", partial(SchemaRegistry, transport=transport))

    return choose


async def test_records_name_the_schema_that_the_registry_has_and_a_start_needs_it_once(
    start: StartCity, settings: dict[str, Any], reach: Reach
) -> None:
    registry = create_app(MemoryBus())
    network = httpx.ASGITransport(registry)
    reach(network)
    async with registry.router.lifespan_context(registry):
        async with start(**settings) as city:
            await city.rides.publish(requested("one"))
            ((kind, first),) = await city.told("one", 1)
        client = SchemaRegistry("http://registry", transport=network)
        known = await client.version("payments.v1-payment.authorised.v1")
        await client.close()
    assert kind == "authorised"
    assert dict(first.headers)["__value_schema_id"] == header_of(known.guid)[1]
    assert known.schema["$id"] == "hailbus:payment.authorised/v1"

    away = Away()
    reach(away)
    async with start(**settings) as city:
        await city.rides.publish(requested("two"))
        ((_, second),) = await city.told("two", 1)
        assert city.letters() == []
    assert away.asked > 0
    assert dict(second.headers)["__value_schema_id"] == dict(first.headers)["__value_schema_id"]
    PaymentAuthorised.model_validate(json.loads(second.value))


async def test_without_a_registry_records_name_no_schema(start: StartCity) -> None:
    async with start() as city:
        await city.rides.publish(requested("one"))
        ((_, record),) = await city.told("one", 1)
    assert "__value_schema_id" not in dict(record.headers)


async def test_a_service_that_knows_no_registry_reads_what_payment_wrote(
    start: StartCity, bus: MemoryBus, settings: dict[str, Any], reach: Reach
) -> None:
    registry = create_app(MemoryBus())
    reach(httpx.ASGITransport(registry))
    read: list[str] = []
    books = Service("books", bus=bus, catalogue=CATALOGUE)

    @books.on(PaymentAuthorised)
    async def keep(event: PaymentAuthorised) -> None:
        read.append(event.ride_id)
        books.request_stop()

    async with registry.router.lifespan_context(registry), start(**settings) as city:
        await city.rides.publish(requested("one"))
        await books.run()
    assert read == ["one"]
