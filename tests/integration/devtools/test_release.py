"""The wheels, as others get them: what is in them, and what an environment without or with one extra can do."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hailbus_devtools.extras import COMBINED, EXTRAS, try_extra, try_without_extras
from hailbus_devtools.release import (
    MEMBERS,
    QUICKSTART,
    Environment,
    ReleaseError,
    Wheel,
    build,
    follow_quickstart,
    lowest,
    problems_of,
)
from hailbus_devtools.tools import ROOT

from tests.support import free_port

MakeEnvironment = Callable[..., Environment]

# Modules of the core, which are importable without any extra.
CORE = ["service", "router", "registration", "testing", "codegen", "asyncapi", "needs", "contract", "reader", "codec"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    build(folder)
    return folder


@pytest.fixture
def environment(wheels: Path, tmp_path: Path) -> MakeEnvironment:
    def make(*requirements: str, folder: str = "environment") -> Environment:
        made = Environment(tmp_path / folder, wheels)
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


def test_every_extra_is_tried() -> None:
    project = tomllib.loads((ROOT / "sdk" / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS, *COMBINED} == set(project["optional-dependencies"])


def test_what_is_missing_is_said_with_the_command_that_installs_it(environment: MakeEnvironment) -> None:
    events = environment("hailbus")
    try_without_extras(events)
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


@pytest.mark.parametrize("extra", [*EXTRAS, *COMBINED])
def test_an_extra_is_enough_for_what_it_is_for(extra: str, environment: MakeEnvironment) -> None:
    made = environment(f"hailbus[{extra}]")
    try_extra(extra, made)


def test_an_extra_that_lacks_a_package_is_found(environment: MakeEnvironment) -> None:
    made = environment("hailbus[registry]")
    with pytest.raises(ReleaseError, match=r"with hailbus\[avro\] this fails"):
        try_extra("avro", made)
    made = environment("hailbus[kafka]", folder="other")
    with pytest.raises(ReleaseError, match=r"without hailbus\[\w+\] the error does not name it"):
        try_without_extras(made)


def test_the_lower_bounds_can_be_had_together() -> None:
    found = dict(line.split("==") for line in lowest(sys.executable).splitlines() if ";" not in line)
    assert found["pydantic"] == "2.11.0"
    assert found["aiokafka"] == "0.13.0"


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
