"""Regions of booking count as one consumer, which is as far as its slowest group."""

from hailbus_demo.ledger.gather import _slowest
from hailbus_demo.ledger.model import Consumer


def test_each_region_reads_as_a_group_of_its_own() -> None:
    whole = Consumer(group="booking", database="booking", topics=("surge.v1",))
    shared = Consumer(group="booking", database="booking", topics=("surge.v1",), regions=("manhattan", "outer"))
    assert whole.read_by == ("booking",)
    assert shared.read_by == ("booking-manhattan", "booking-outer")


def test_what_one_group_has_not_committed_nobody_has() -> None:
    first = {("surge.v1", 0): 7, ("surge.v1", 1): 3, ("surge.v1", 2): 1}
    second = {("surge.v1", 0): 5, ("surge.v1", 1): 9}
    assert _slowest([first, second]) == {("surge.v1", 0): 5, ("surge.v1", 1): 3}
    assert _slowest([first]) == first
