"""The ledger's line of pooled rides, and a driver who serves two of them."""

import json
from typing import Any

import pytest
from hailbus_demo.ledger.accounts import Accounts
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.log import LogAccount, LogReader, LogRecord
from hailbus_demo.ledger.model import Line


def usd(amount_minor: int) -> dict[str, Any]:
    return {"amount_minor": amount_minor, "currency": "USD"}


CELL = "882a100d25fffff"
HERE = {"lat": 40.7, "lng": -74.0}
REST: dict[str, dict[str, Any]] = {
    "ride.requested": {
        "rider_id": "r",
        "quote_id": "q",
        "pickup": HERE,
        "dropoff": HERE,
        "pickup_cell": CELL,
        "dropoff_cell": CELL,
        "multiplier": 1.0,
        "surge_version": None,
    },
    "ride.pooled": {"rider_id": "r"},
    "ride.matched": {"driver_position": HERE, "pickup_cell": CELL, "eta_s": 60},
    "ride.cancelled": {"rider_id": "r", "driver_id": "d1", "pickup_cell": CELL},
    "ride.repriced": {"dropoff": HERE, "dropoff_cell": CELL},
    "driver.went_online": {"position": HERE, "cell": CELL},
}
"""What else an event of a type must say."""


class Log:
    """Records of rides and drivers, numbered as they come."""

    def __init__(self) -> None:
        self.reader = LogReader()
        self.seqs: dict[str, int] = {}
        self.offsets = {"rides.v1": 0, "drivers.v1": 0}

    def tell(self, kind: str, key: str, **said: Any) -> None:
        seq = self.seqs[key] = self.seqs.get(key, 0) + 1
        is_ride = kind.startswith("ride.")
        topic = "rides.v1" if is_ride else "drivers.v1"
        offset = self.offsets[topic]
        self.offsets[topic] += 1
        body = {"ride_id" if is_ride else "driver_id": key, "seq": seq, **REST.get(kind, {}), **said}
        headers: list[tuple[str, bytes | None]] = [
            ("ce_id", f"00000000-0000-4000-8{len(topic):03}-{offset:012}".encode()),
            ("ce_source", b"/booking"),
            ("ce_type", kind.encode()),
            ("ce_time", b"2014-05-02T17:00:00.125000Z"),
            ("ce_subject", key.encode()),
            ("ce_dataschema", f"hailbus:{kind}/v1".encode()),
        ]
        value = json.dumps(body).encode()
        self.reader.feed(LogRecord(topic, 0, offset, 1_000, key.encode(), value, headers))

    def line(self, name: str, *, so_far: bool = False) -> Line:
        accounts = Accounts(log=LogAccount(starts={}, ends={}, reader=self.reader), so_far=so_far)
        drawn = next(spec for spec in LINES if spec.id == name).draw(accounts)
        assert drawn is not None
        return drawn


def pooled(log: Log, *, fare: int = 800, b_with: str = "a") -> None:
    for ride_id, other, order in (("a", "b", 1), ("b", b_with, 2)):
        log.tell("ride.requested", ride_id, fare=usd(1_000))
        said = {"fare": usd(fare), "single_fare": usd(1_000)}
        log.tell("ride.pooled", ride_id, partner_ride_id=other, pickup_order=order, **said)


def matched(log: Log, *, b_driver: str = "d1") -> None:
    log.tell("driver.went_online", "d1")
    log.tell("ride.matched", "a", driver_id="d1")
    log.tell("ride.matched", "b", driver_id=b_driver)
    log.tell("driver.became_busy", "d1", ride_id="a")


def test_a_pool_of_two_with_one_driver_agrees() -> None:
    log = Log()
    pooled(log)
    matched(log)
    for name in ("rides-pooled", "drivers-rides"):
        assert log.line(name).verdict == "agrees", log.line(name).detail
    log.tell("ride.cancelled", "a", by="rider", reason="late", stage="matched")
    log.tell("ride.repriced", "b", reason="pool_ended", fare=usd(1_000))
    log.tell("driver.became_busy", "d1", ride_id="b")
    for name in ("rides-pooled", "drivers-rides"):
        assert log.line(name).verdict == "agrees", log.line(name).detail
    assert log.line("rides-pooled").detail == "2 rides were pooled, 1 of them turned back into single ones"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fare": 801}, "ride a is pooled at 801, which is not 80 % of 1000"),
        ({"b_with": "c"}, "ride a is pooled with ride b, which is not pooled with it"),
    ],
)
def test_what_is_wrong_with_a_pool_is_found(change: dict[str, Any], said: str) -> None:
    log = Log()
    pooled(log, **change)
    assert log.line("rides-pooled").verdict == "disagrees"
    assert said in log.line("rides-pooled").detail


def test_two_drivers_of_one_pool_are_found() -> None:
    log = Log()
    pooled(log)
    matched(log, b_driver="d2")
    assert "ride a is with driver d1, ride b of the same pool with d2" in log.line("rides-pooled").detail


def test_a_driver_with_two_rides_that_are_not_pooled_is_found() -> None:
    log = Log()
    pooled(log, b_with="c")
    matched(log)
    assert log.line("drivers-rides").verdict == "disagrees"


def test_who_is_left_alone_at_another_fare_is_found() -> None:
    log = Log()
    pooled(log)
    log.tell("ride.repriced", "b", reason="pool_ended", fare=usd(900))
    assert "ride b is pooled no more and costs 900, it cost 1000 before" in log.line("rides-pooled").detail


def test_during_the_run_the_partner_may_be_on_its_way() -> None:
    log = Log()
    log.tell("ride.requested", "a", fare=usd(1_000))
    said = {"fare": usd(800), "single_fare": usd(1_000)}
    log.tell("ride.pooled", "a", partner_ride_id="b", pickup_order=1, **said)
    assert log.line("rides-pooled", so_far=True).verdict == "agrees"
    assert log.line("rides-pooled").verdict == "disagrees"
