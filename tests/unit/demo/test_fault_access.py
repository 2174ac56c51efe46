"""Who gets access to the faults of a run, and which runs offer any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hailbus.testing import MemoryBus
from hailbus_demo.options import Outage, RideOptions
from hailbus_demo.run import RunOptions
from hailbus_demo.sabotage.faults import FAULTS
from hailbus_demo.services import Ports, service_specs
from hailbus_demo.supervise.state import DataDir
from hailbus_demo.tray.server import Access

PORTS = Ports(broker=1, booking=2, recommender=3, dashboard=4, payment=5, payment_provider=6, registry=7)


def environments(faults: Access | None) -> dict[str, dict[str, str]]:
    first, others = service_specs(
        DataDir(Path("data")),
        bootstrap="127.0.0.1:1",
        bus=MemoryBus(),
        ports=PORTS,
        silent_after_s=30,
        faults=faults,
    )
    return {spec.name: dict(spec.env) for spec in (*first, *others)}


def test_only_the_dashboard_gets_the_token() -> None:
    found = environments(Access(url="http://127.0.0.1:7", token="of-this-run"))
    assert found["dashboard"]["DASHBOARD_FAULTS_URL"] == "http://127.0.0.1:7"
    assert [name for name, env in found.items() if "of-this-run" in env.values()] == ["dashboard"]


def test_without_faults_the_dashboard_hears_of_none() -> None:
    assert not any(key.startswith("DASHBOARD_FAULTS") for key in environments(None)["dashboard"])


@pytest.mark.parametrize(
    ("flags", "is_disturbed"),
    [
        ({}, False),
        ({"chaos": True}, True),
        ({"outage": Outage.REFUSE}, True),
        ({"sabotage": FAULTS["lost-tail"]}, True),
    ],
)
def test_a_run_with_faults_of_its_own_offers_none(flags: dict[str, Any], is_disturbed: bool) -> None:
    options = RunOptions(
        rides=RideOptions.__new__(RideOptions),
        data_dir=Path("data"),
        fresh=False,
        port=None,
        brokers=1,
        bootstrap=None,
        spark=False,
        browser=False,
        exit_when_done=True,
        summary=None,
        catch_up_s=1.0,
        **({"chaos": False} | flags),
    )
    assert options.is_disturbed is is_disturbed
