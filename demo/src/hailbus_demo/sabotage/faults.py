"""The faults that `--sabotage` knows by name, and when one of them cannot be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from hailbus_demo.errors import UsageError


class Target(Enum):
    """What a fault is done to."""

    LOG_FILES = auto()
    CLUSTER = auto()
    DATABASE = auto()
    LAKE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `does` completes the sentence "the saboteur …"; `line` is the id of a line that finds it."""

    name: str
    target: Target
    does: str
    line: str


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            name="lost-tail",
            target=Target.LOG_FILES,
            does="removes acknowledged records from the end of a partition of payments.v1",
            line="outbox-payment-log",
        ),
        Fault(
            name="lost-record",
            target=Target.LOG_FILES,
            does="removes one acknowledged record from the middle of a partition of rides.v1",
            line="outbox-log",
        ),
        Fault(
            name="invented",
            target=Target.CLUSTER,
            does="publishes a ride.requested that booking never decided",
            line="outbox-log",
        ),
        Fault(
            name="reordered",
            target=Target.LOG_FILES,
            does="exchanges two records of one ride in the log",
            line="order",
        ),
        Fault(
            name="altered",
            target=Target.LOG_FILES,
            does="changes the amount of a payment in the log",
            line="money-provider-log",
        ),
        Fault(
            name="double-apply",
            target=Target.DATABASE,
            does="applies a completed ride a second time in the recommender's database",
            line="recommender-journeys",
        ),
        Fault(
            name="lost-effect",
            target=Target.DATABASE,
            does="deletes what the recommender stored of a completed ride",
            line="recommender-journeys",
        ),
        Fault(
            name="idle-consumer",
            target=Target.DATABASE,
            does="claims events in the event logger's inbox without writing them to its file",
            line="journal-log",
        ),
        Fault(
            name="double-payment",
            target=Target.DATABASE,
            does="publishes a second charge of a ride, under a payment id of its own, through payment's outbox",
            line="money-provider-log",
        ),
        Fault(
            name="lake-row-missing",
            target=Target.LAKE,
            does="deletes one row of the lake's bronze table",
            line="lake-bronze",
        ),
    )
}
"""Name → fault, in the order in which `--sabotage list` prints them."""


def require_possible(name: str, *, in_house: bool, brokers: int, spark: bool, chaos: bool) -> Fault:
    """Return the fault of this name.

    Args:
        name: Of the fault.
        in_house: Whether the run has a broker of its own.
        brokers: How many of them.
        spark: Whether the run has a lake.
        chaos: Whether the run kills processes as well.

    Raises:
        UsageError: There is no such fault, or this run cannot have it.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"--sabotage {name} is no fault: choose one of {', '.join(FAULTS)}")
    if chaos:
        raise UsageError(
            "--sabotage does not go with --chaos: the ledger must balance after kills and must not balance after "
            "sabotage; leave one out"
        )
    if fault.target is Target.LOG_FILES and not in_house:
        raise UsageError(
            f"--sabotage {name} edits the files of the in-house broker, and --bootstrap names another cluster: leave "
            "out --bootstrap, or choose another fault"
        )
    if fault.target is Target.LOG_FILES and brokers > 1:
        raise UsageError(
            f"--sabotage {name} edits the files of one broker, and with --brokers {brokers} the others have copies: "
            "leave out --brokers, or choose another fault"
        )
    if fault.target is Target.LAKE and not spark:
        raise UsageError(f"--sabotage {name} needs the lake: leave out --no-spark, or choose another fault")
    return fault
