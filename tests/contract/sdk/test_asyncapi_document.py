"""The AsyncAPI document against the official schema, and the catalogue's page in a browser without network."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import ride_events
from hailbus import Context, Event, Service, Topic
from hailbus.asyncapi import asyncapi, catalogue_page
from hailbus.needs import need_of
from hailbus_devtools.tools import chromium
from jsonschema import Draft7Validator
from playwright.sync_api import sync_playwright
from ride_events.rides import RideStarted

ORDERS = Topic("orders.v1", partitions=3, description="Orders", config={"max.message.bytes": "2000000"})


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    """An order, <b>placed</b>."""

    order_id: str
    amount: int = 0


class Sold(Event, topic=Topic("tills.v1"), type="till.sold"):
    what: list[str]


def shop() -> Service:
    svc = Service("shop")
    svc.publishes(Placed)

    @svc.on(Sold, group="stock")
    async def sold(event: Sold, ctx: Context) -> None: ...

    @svc.on(Placed)
    async def placed(event: Placed, ctx: Context) -> None: ...

    return svc


def complaints(document: dict[str, Any]) -> list[str]:
    official = json.loads(gzip.decompress((Path(__file__).parent / "asyncapi" / "3.0.0.json.gz").read_bytes()))
    found = Draft7Validator(official).iter_errors(json.loads(json.dumps(document)))
    return ["/".join(map(str, error.absolute_path)) for error in found]


def test_the_document_keeps_the_official_schema() -> None:
    document = asyncapi(
        [shop()], title="Shop", version="1.0.0", servers=["kafka:9092"], registry="http://registry:8081"
    )
    assert complaints(document) == []
    assert complaints(asyncapi([], title="Rides", version="1", catalogue=ride_events.CATALOGUE)) == []
    document["channels"]["orders-v1"]["bindings"]["kafka"]["partitions"] = 0
    assert complaints(document) != []


def test_bindings_operations_and_headers_say_what_kafka_needs() -> None:
    document = asyncapi(
        [shop()], title="Shop", version="1.0.0", servers=["kafka:9092"], registry="http://r", schema_ids="prefix"
    )
    assert document["servers"]["kafka0"]["bindings"]["kafka"] == {
        "bindingVersion": "0.5.0",
        "schemaRegistryUrl": "http://r",
        "schemaRegistryVendor": "confluent",
    }
    assert document["channels"]["orders-v1"]["bindings"]["kafka"] == {
        "topic": "orders.v1",
        "partitions": 3,
        "bindingVersion": "0.5.0",
        "topicConfiguration": {"cleanup.policy": ["delete"], "max.message.bytes": 2000000},
    }
    message = document["components"]["messages"]["order-placed-v1"]
    assert message["bindings"]["kafka"] == {
        "key": {"title": "Order Id", "type": "string"},
        "bindingVersion": "0.5.0",
        "schemaIdLocation": "payload",
        "schemaIdPayloadEncoding": "confluent",
        "schemaLookupStrategy": "TopicRecordNameStrategy",
    }
    headers = message["headers"]["allOf"][1]["properties"]
    assert headers == {"ce_type": {"const": "order.placed"}, "ce_dataschema": {"const": "hailbus:order.placed/v1"}}
    operations = document["operations"]
    assert {name: o["action"] for name, o in operations.items()} == {
        "shop-sends-orders-v1": "send",
        "shop-receives-orders-v1": "receive",
        "shop-stock-receives-tills-v1": "receive",
    }
    assert operations["shop-stock-receives-tills-v1"]["bindings"]["kafka"]["groupId"]["const"] == "stock"


def test_the_page_shows_who_publishes_and_consumes_what_without_any_network() -> None:
    need = need_of(Placed(order_id="a"), consumer="accounts", fields=["amount"])
    page = catalogue_page([shop()], title="A & B", needs=[need])
    assert not re.search(r"(?:src|href)=['\"](?!#)|@import|url\(|https?://", page), "nothing is loaded from anywhere"
    assert "&lt;b&gt;placed&lt;/b&gt;" in page
    assert "<td>shop</td><td>accounts, shop</td>" in page
    assert "<td>–</td><td>stock</td>" in page
    assert "<td><code>amount</code></td><td>integer</td><td></td><td>accounts</td>" in page


@pytest.mark.needs("chromium")
def test_a_browser_opens_the_page_and_an_event_by_its_link(tmp_path: Path) -> None:
    page_file = tmp_path / "events.html"
    page_file.write_text(catalogue_page([], title="Rides", catalogue=ride_events.CATALOGUE))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"file://{page_file}")
        assert page.locator("tbody tr:not(.topic)").first.is_visible()
        page.get_by_role("link", name="ride.started").click()
        opened = page.locator("#ride-started-v1")
        assert opened.evaluate("node => node.open")
        assert (RideStarted.__doc__ or "").strip() in opened.inner_text()
        described = page.locator("#surge-updated-v1")
        described.locator("summary").first.click()
        assert described.locator("p code").all_inner_texts()[:1] == ["valid_until"]
        assert "`" not in page.locator("main").inner_text()
        for width in (390, 1024, 1440):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=str(tmp_path / "events.png"), full_page=True)
        browser.close()
    assert errors == []
    assert [url for url in asked if not url.startswith("file://")] == []
