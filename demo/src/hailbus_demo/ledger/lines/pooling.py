"""Pooled rides: each has its partner, one driver serves both, and the fare is the lower one while the pool lasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from hailbus_demo.ledger.accounts import Accounts
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.log import LogAccount, LogReader, Step
from hailbus_demo.ledger.model import Findings, Judgement

POOLED_PERCENT: Final = 80
"""What a pooled ride costs of its own fare by the published rules, rounded half up to cents."""


class Pool(NamedTuple):
    """A pool as the events of one of its rides tell it.

    Attributes:
        told: The `ride.pooled`.
        ended: The `ride.repriced` that turned the ride back into a single one, if one did.
        driver: Who was matched with the ride while it was pooled.
    """

    told: Step
    ended: Step | None
    driver: str | None

    @property
    def partner(self) -> str:
        """Return the other ride."""
        return str(self.told.data["partner_ride_id"])

    @property
    def fare(self) -> int:
        """Return the pooled fare in cents."""
        return int(self.told.data["fare"]["amount_minor"])


def pools_of(steps: Sequence[Step]) -> list[Pool]:
    """Return the pools that a ride was in, in order: after the end of one it may be in another."""
    pools: list[Pool] = []
    for step in {step.seq: step for step in sorted(steps, key=lambda step: step.seq)}.values():
        if step.type == "ride.pooled":
            pools.append(Pool(step, None, None))
        elif pools and pools[-1].ended is None:
            if step.type == "ride.matched":
                pools[-1] = pools[-1]._replace(driver=str(step.data["driver_id"]))
            elif step.type == "ride.repriced" and step.data["reason"] == "pool_ended":
                pools[-1] = pools[-1]._replace(ended=step)
    return pools


def pooled_fare(steps: Sequence[Step]) -> int | None:
    """Return the fare of a ride that is pooled by its last event, None for any other."""
    pools = pools_of(steps)
    return pools[-1].fare if pools and pools[-1].ended is None else None


def are_partners(reader: LogReader, one: str, other: str) -> bool:
    """Whether two rides were pooled with each other."""
    return all(
        any(pool.partner == second for pool in pools_of(reader.rides.get(first, ())))
        for first, second in ((one, other), (other, one))
    )


def _pooled(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    count = ended = 0
    pools = {ride_id: pools_of(steps) for ride_id, steps in reader.rides.items()}
    for ride_id, theirs in pools.items():
        fares = {step.seq: step.data["fare"]["amount_minor"] for step in reader.rides[ride_id] if "fare" in step.data}
        for pool in theirs:
            count, ended = count + 1, ended + (pool.ended is not None)
            row, single = pool.told.row, int(pool.told.data["single_fare"]["amount_minor"])
            before = max((seq for seq in fares if seq < pool.told.seq), default=None)
            if before is not None and fares[before] != single:
                found.extend([reader.finding(f"ride {ride_id} cost {fares[before]}, pooled out of {single}", row)])
            if pool.fare != (single * POOLED_PERCENT + 50) // 100:
                what = f"ride {ride_id} is pooled at {pool.fare}, which is not {POOLED_PERCENT} % of {single}"
                found.extend([reader.finding(what, row)])
            if pool.ended is not None and (after := pool.ended.data["fare"]["amount_minor"]) != single:
                what = f"ride {ride_id} is pooled no more and costs {after}, it cost {single} before"
                found.extend([reader.finding(what, pool.ended.row)])
            _judge_pair(found, reader, ride_id, pool, pools.get(pool.partner, []), so_far=accounts.so_far)
    return found.judge(f"{count:,} rides were pooled, {ended:,} of them turned back into single ones")


def _judge_pair(
    found: Findings, reader: LogReader, ride_id: str, pool: Pool, partners: Sequence[Pool], *, so_far: bool
) -> None:
    """Judge whether the partner tells of the same pool and the same driver. During the run it may not yet."""
    theirs = next((one for one in partners if one.partner == ride_id), None)
    if theirs is None:
        if not so_far:
            what = f"ride {ride_id} is pooled with ride {pool.partner}, which is not pooled with it"
            found.extend([reader.finding(what, pool.told.row)])
        return
    if pool.told.data["pickup_order"] == theirs.told.data["pickup_order"]:
        what = f"rides {ride_id} and {pool.partner} are both picked up at place {pool.told.data['pickup_order']}"
        found.extend([reader.finding(what, pool.told.row)])
    if pool.driver != theirs.driver and not (so_far and None in (pool.driver, theirs.driver)):
        what = f"ride {ride_id} is with driver {pool.driver}, ride {pool.partner} of the same pool with {theirs.driver}"
        found.extend([reader.finding(what, pool.told.row)])


LINES: Final = (
    LineSpec(
        id="rides-pooled",
        name="pooled rides share a driver, at the pooled fare",
        between=("rides.v1 in the log", "the published rules of pooling"),
        needs=("log",),
        judge=_pooled,
    ),
)
