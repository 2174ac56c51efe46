"""`hailbus docs` and functions that make services."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hailbus.cli import app
from typer.testing import CliRunner

MODULE = """
from collections.abc import Callable
from fastapi import FastAPI
from hailbus import Bus, Context, Event, KafkaBus, Service, Topic
from pydantic_settings import BaseSettings, SettingsConfigDict

class OrderPlaced(Event, topic=Topic("orders.v1"), key="order_id", type="order.placed"):
    order_id: str

class OrderPaid(Event, topic=Topic("orders.v1"), key="order_id", type="order.paid"):
    order_id: str

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOP_")
    bootstrap_servers: str
    name: str = "till"

class Store: ...

def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    svc = Service(settings.name, bus=bus or KafkaBus(bootstrap_servers=settings.bootstrap_servers))
    svc.publishes(OrderPaid)
    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None: ...
    return FastAPI(lifespan=svc.lifespan)

def create_two() -> tuple[Service, Service]:
    first, second = Service("web"), Service("app")
    first.publishes(OrderPlaced)
    second.publishes(OrderPlaced)
    return first, second

def create_service(bus: Bus, store: Store, name: Callable[[], str], *, later: Store) -> Service:
    svc = Service("depot", bus=bus)
    @svc.on(OrderPaid)
    async def paid(event: OrderPaid, ctx: Context) -> None:
        later.keep(store, name())
    return svc

svc = Service("made.before")
svc.publishes(OrderPlaced)

def get_service() -> Service:
    return svc

def uses(store: Store) -> Service:
    return Service(f"till of {store.place}")

def iterates(events: list[type[Event]]) -> Service:
    Service("s").publishes(events)

def nothing(): ...

async def later() -> Service: ...

def unknown(store: "Nowhere") -> Service: ...
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "factory_shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_BOOTSTRAP_SERVERS", "none:9092")
    yield
    sys.modules.pop("factory_shop", None)


def operations(*names: str) -> set[str]:
    done = CliRunner().invoke(app, ["docs", *(f"factory_shop:{name}" for name in names)])
    assert done.exit_code == 0, (done.output, done.exception)
    return set(json.loads(done.stdout)["operations"])


def refusal(name: str) -> str:
    done = CliRunner().invoke(app, ["docs", f"factory_shop:{name}"])
    assert done.exit_code == 2, (done.output, done.exception)
    return " ".join(done.output.split())


def test_an_app_factory_tells_its_service_with_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operations("create_app") == {"till-sends-orders-v1", "till-receives-orders-v1"}
    monkeypatch.setenv("SHOP_NAME", "cafe")
    assert operations("create_app") == {"cafe-sends-orders-v1", "cafe-receives-orders-v1"}


def test_several_factories_and_services_make_one_document() -> None:
    assert operations("create_app", "create_two", "create_service", "get_service", "svc") == {
        "till-sends-orders-v1",
        "till-receives-orders-v1",
        "web-sends-orders-v1",
        "app-sends-orders-v1",
        "depot-receives-orders-v1",
        "made-before-sends-orders-v1",
    }


def test_what_a_factory_lacks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'factory_shop:uses' uses its parameter 'store', which is neither settings nor a bus" in refusal("uses")
    assert "'factory_shop:iterates' uses its parameter 'events'" in refusal("iterates")
    assert "'factory_shop:nothing' makes no hailbus.Service" in refusal("nothing")
    assert "'factory_shop:later' is a coroutine" in refusal("later")
    assert "the parameters of 'factory_shop:unknown' cannot be read: name 'Nowhere' is not defined" in refusal(
        "unknown"
    )
    monkeypatch.delenv("SHOP_BOOTSTRAP_SERVERS")
    assert "SHOP_BOOTSTRAP_SERVERS: Field required; set it in the environment" in refusal("create_app")
