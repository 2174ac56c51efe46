"""The examples that newcomers copy run as written; one that cannot says so in its first line."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import httpx
import pytest
from opentelemetry import trace
from sqlalchemy import Engine

ROOT = Path(__file__).resolve().parents[3]


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def test_readme_example_runs(cluster: Cluster, tmp_path: Path) -> None:
    (example,) = blocks("sdk/README.md", "python")
    program = tmp_path / "hello.py"
    program.write_text(example.replace("127.0.0.1:9092", cluster.bootstrap))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"r1 by ada, rides\.v1-\d@0\n", done.stdout)


async def test_a_kafka_client_works_as_the_broker_says(cluster: Cluster) -> None:
    example, *_ = blocks("broker/README.md", "python")
    names: dict[str, object] = {}
    code = compile(
        example.replace("127.0.0.1:9092", cluster.bootstrap), "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    await eval(code, names)  # noqa: S307 our own page
    await names["producer"].stop()  # type: ignore[attr-defined]  # of aiokafka


@pytest.mark.parametrize("guide", ["quickstart", "state-machines"])
def test_module_and_test_of_a_guide_run(guide: str, tmp_path: Path) -> None:
    shop, test, *_ = blocks(f"docs/sdk/{guide}.md", "python")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_diagram_of_the_state_machine_is_the_code(tmp_path: Path) -> None:
    shop, *_ = blocks("docs/sdk/state-machines.md", "python")
    (diagram,) = blocks("docs/sdk/state-machines.md", "mermaid")
    (tmp_path / "shop.py").write_text(f"{shop}\nprint(checkout.mermaid(), end='')\n")
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == diagram


def test_http_service_runs(cluster: Cluster, tmp_path: Path) -> None:
    (example,) = blocks("docs/sdk/http-services.md", "python")
    (tmp_path / "bike.py").write_text(example)
    environment = {**os.environ, "BIKE_BOOTSTRAP_SERVERS": cluster.bootstrap, "BIKE_LISTEN": "127.0.0.1:0"}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "bike.py")], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as bike:
        try:
            assert bike.stdout is not None
            line = bike.stdout.readline().decode()
            assert line.startswith("listening=127.0.0.1:"), bike.stderr and bike.stderr.read()
            url = f"http://{line.strip().removeprefix('listening=')}"
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert httpx.post(f"{url}/bikes/b1/hire").json() == {"bike_id": "b1"}
            again = httpx.post(f"{url}/bikes/b1/hire")
            assert (again.status_code, again.json()["type"]) == (409, "/problems/bike-taken")
            assert httpx.get(f"{url}/problems/bike-taken").json()["advice"] == "Choose another bike."
        finally:
            bike.terminate()
        assert bike.wait(timeout=30) == 0


# What a guide's examples take for granted: the shop of the quickstart, and what the text around them names.
SHOP = """
from collections.abc import AsyncIterator
from datetime import timedelta

from hailbus import *
from hailbus.database import create_engine
from hailbus.testing import MemoryBus
from hailbus.testing.plugin import NeedsRecorder

ORDERS = Topic("orders.v1", partitions=3)

class OrderPlacedV1(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int

class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed", version=2):
    order_id: str
    amount_cents: int

class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str

def total_cents(orders: list[OrderPlaced]) -> int:
    return sum(order.amount_cents for order in orders)

svc = Service("till")
paid: Publisher[OrderPaid] = svc.publishes(OrderPaid)
"""
BEFORE = {
    "docs/testing": "from pathlib import Path\nimport pytest",
    "coming-from": """
import collections
import faust
from ride_events import CATALOGUE
from ride_events.rides import RideCompleted, RideRequested

app = faust.App("surge", broker="kafka://127.0.0.1:9092")
counts = collections.Counter()
""",
    "consuming": """
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

sessions = async_sessionmaker(create_engine("sqlite:///till.db"))
fake_session = object
""",
    "failures": """
from fastapi import FastAPI

app, bus = FastAPI(), MemoryBus()
""",
    "outbox-inbox": """
class OrderChanged(Event, topic=Topic("changes.v1"), key="order_id", type="order.changed"):
    order_id: str
    seq: int

engine = create_engine("sqlite:///till.db")
inbox, lot = Inbox(engine, consumer="till"), ParkingLot(engine)
""",
    "testing": """
@svc.on(OrderPlaced)
async def take_money(event: OrderPlaced, ctx: Context) -> None:
    await paid.publish(OrderPaid(order_id=event.order_id), cause=ctx)
""",
}
RUN_ABOVE = {
    "broker/README": [0],
    "docs/broker/in-tests": [0, 1],
    "docs/tutorial/adding-a-service": [0, 1, 2],
    "http-services": [0],
    "quickstart": [0, 1, 2],
    "registry": [0],
    "sdk/README": [0],
    "state-machines": [0, 1],
}
"""Those that are programs or tests, and run as such: above, or beside the tests of registry, broker and docs."""
PAGES = ("*.md", "docs/**/*.md", "*/README.md", "services/*/README.md")
GUIDES = {
    str(path.relative_to(ROOT).with_suffix("")).removeprefix("docs/sdk/"): path
    for pattern in PAGES
    for path in sorted(ROOT.glob(pattern))
}
EXAMPLES = [
    pytest.param(name, block, id=f"{name}-{index}")
    for name, guide in GUIDES.items()
    for index, block in enumerate(blocks(str(guide.relative_to(ROOT)), "python"))
    if index not in RUN_ABOVE.get(name, []) and "not run here" not in block.partition("\n")[0]
]


@pytest.mark.parametrize(("guide", "example"), EXAMPLES)
async def test_example_of_a_guide_runs(
    guide: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A provider can be set once in a process, and would count for all tests after this one.
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: None)
    names: dict[str, object] = {"__name__": f"example_of_{re.sub(r'[^a-z]', '_', guide.lower())}"}
    try:
        for part in (SHOP, BEFORE.get(guide, ""), example):
            # Examples await at their top level, as in a notebook.
            code = compile(part, f"{guide}.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)  # noqa: S307 our own pages
            if running is not None:
                await running
    finally:
        for engine in [value for value in names.values() if isinstance(value, Engine)]:
            engine.dispose()  # a program keeps its engine until it ends


def test_guides_exist_where_the_readme_says() -> None:
    for link in re.findall(r"\]\((\.\./docs/sdk/[^)]+)\)", (ROOT / "sdk/README.md").read_text()):
        assert (ROOT / "sdk" / link).resolve().is_file(), link
