"""The wheels, as others get them: what is in them, and what an environment without or with one extra can do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hailbus_devtools.release import MEMBERS, QUICKSTART, Environment, Wheel, build, follow_quickstart, problems_of
from hailbus_devtools.tools import ROOT

from tests.support import free_port

MakeEnvironment = Callable[..., Environment]

# Modules that each extra makes importable; those of the core are importable without any.
CORE = ["service", "router", "registration", "testing", "codegen", "asyncapi", "needs", "contract", "reader", "codec"]
EXTRAS = {
    "kafka": ["_transport.kafka", "environment", "admin"],
    "librdkafka": [],
    "sql": ["inbox", "outbox", "parking", "database", "idempotency", "state_machine"],
    "postgres": ["inbox", "outbox", "database"],
    "fastapi": ["fastapi", "health", "metrics"],
    "cli": ["cli"],
    "registry": ["registry"],
    "otel": ["tracing"],
    "standard": ["cli", "fastapi", "health", "metrics", "_transport.kafka"],
    "service": ["settings", "process", "cli", "fastapi"],
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    build(folder)
    return folder


@pytest.fixture
def environment(wheels: Path, tmp_path: Path) -> MakeEnvironment:
    def make(*requirements: str) -> Environment:
        made = Environment(tmp_path / "environment", wheels)
        made.install(*requirements)
        return made

    return make


def test_each_wheel_has_licence_readme_types_and_bounds(wheels: Path) -> None:
    found = [Wheel.read(path) for path in wheels.glob("*.whl")]
    assert sorted(wheel.name for wheel in found) == sorted(MEMBERS)
    assert [problem for wheel in found for problem in problems_of(wheel)] == []
    for member in MEMBERS.values():
        assert (ROOT / member / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_events_need_pydantic_and_nothing_else(environment: MakeEnvironment) -> None:
    events = environment("hailbus")
    wanted = {"annotated-types", "hailbus", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection"}
    assert set(events.installed()) <= wanted
    done = events.python(
        "from hailbus import Catalogue, Event, Publisher, Router, Service, Topic\n"
        "class OrderPlaced(Event, topic=Topic('orders.v1'), key='order_id', type='order.placed'):\n"
        "    order_id: str\n"
        f"import {', '.join('hailbus.' + name for name in CORE)}\n"
        "print(OrderPlaced(order_id='a').order_id)"
    )
    assert (done.stdout, done.returncode) == ("a\n", 0), done.stderr


def test_what_is_missing_is_said_with_the_command_that_installs_it(environment: MakeEnvironment) -> None:
    events = environment("hailbus")
    for extra, modules in EXTRAS.items():
        for module in modules:
            if extra in {"postgres", "standard"} or module in {"environment", "admin", "cli", "fastapi", "health"}:
                continue  # brought by another extra, or needs it later than at its import
            done = events.python(f"import hailbus.{module}")
            last = done.stderr.strip().splitlines()[-1]
            assert last.endswith(f"is not installed; install it: pip install 'hailbus[{extra}]'"), (module, last)
    done = events.run(["hailbus", "--help"])
    assert (done.returncode, done.stderr) == (
        2,
        "hailbus: typer is not installed; install it: pip install 'hailbus[cli]'\n",
    )
    done = events.run(
        [str(events.bin / "python"), "-c", "import asyncio, hailbus; asyncio.run(hailbus.Service('s').start())"],
        HAILBUS_BOOTSTRAP_SERVERS="127.0.0.1:9092",
    )
    assert done.stderr.endswith("aiokafka is not installed; install it: pip install 'hailbus[kafka]'\n")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_enough_for_what_it_is_for(extra: str, environment: MakeEnvironment) -> None:
    made = environment(f"hailbus[{extra}]")
    imports = [f"import hailbus.{module}" for module in (*CORE, *EXTRAS[extra])]
    done = made.python("\n".join(imports))
    assert done.returncode == 0, done.stderr
    if extra in {"cli", "standard", "service"}:
        done = made.run(["hailbus", "--help"])
        assert done.returncode == 0, done.stderr
    if extra == "postgres":
        done = made.python(
            "from hailbus.database import create_engine; create_engine('postgresql://ada@127.0.0.1/till')"
        )
        assert done.returncode == 0, done.stderr


def test_the_pytest_plugin_needs_nothing_but_pytest(environment: MakeEnvironment) -> None:
    made = environment("hailbus", "pytest")
    (made.work / "test_it.py").write_text("def test_bus(bus):\n    assert bus.address\n")
    done = made.run(["pytest", "-q", "-p", "no:cacheprovider"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_registry_is_a_distribution_of_its_own(environment: MakeEnvironment) -> None:
    made = environment("hailbus-registry")
    done = made.run(["hailbus-registry", "serve", "--help"])
    assert done.returncode == 0, done.stderr
    assert "--listen" in done.stdout


def test_the_quickstart_works_word_by_word(wheels: Path, tmp_path: Path) -> None:
    page = QUICKSTART.read_text()
    for port in ("9092", "8000"):  # may be taken on this machine: the one thing that is not as on the page
        page = page.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    (tmp_path / "quickstart.md").write_text(page)
    made = Environment(tmp_path / "environment", wheels)
    printed = follow_quickstart(made, page=tmp_path / "quickstart.md")
    assert "1 passed" in printed
    for order in ("a", "b"):
        assert f'order.placed {{"order_id": "{order}"' in printed
        assert f'order.paid {{"order_id": "{order}"}}' in printed
    assert (made.work / "order-history" / "src" / "order_history" / "main.py").is_file()
