"""Faults of the lake."""

from __future__ import annotations

from typing import Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults
from tests.integration.demo.recorded import RecordedRun

FAULTS: Final = Faults()


@FAULTS.declare("the lake", "a row of bronze is missing", "lake-bronze")
def _(run: RecordedRun) -> Finding:
    part = next(one for one in run.lake["partitions"] if one["log_records"])
    part["lake_records"] -= 1
    records = part["log_records"]
    return Finding(
        what=f"{records:,} records with checksum", topic=part["topic"], partition=part["partition"], offset=0
    )


@FAULTS.declare("the lake", "bytes of bronze are altered", "lake-bronze")
def _(run: RecordedRun) -> Finding:
    part = next(one for one in run.lake["partitions"] if one["log_records"])
    part["lake_checksum"] = "0123456789abcdef"
    return Finding(what="0123456789abcdef in the lake", topic=part["topic"], partition=part["partition"], offset=0)


@FAULTS.declare("the lake", "a topic was left out of the comparison", "lake-bronze")
def _(run: RecordedRun) -> Finding:
    run.lake["partitions"] = [one for one in run.lake["partitions"] if one["topic"] != "payments.v1"]
    return Finding(what="records are in the log, and the lake was not asked for them", topic="payments.v1")


def _told(run: RecordedRun, number: int) -> Finding:
    found = {"message": "a row is altered", "topic": "rides.v1", "partition": 1, "offset": 2, "id": NEW_ID}
    run.lake["lines"][number] |= {"verdict": "disagrees", "findings": [found]}
    return Finding(what="a row is altered", topic="rides.v1", partition=1, offset=2, id=NEW_ID)


@FAULTS.declare("the lake", "a row of silver is altered", "lake-silver")
def _(run: RecordedRun) -> Finding:
    return _told(run, 1)


@FAULTS.declare("the lake", "a row of gold is altered", "lake-gold")
def _(run: RecordedRun) -> Finding:
    return _told(run, 2)


@FAULTS.declare("the lake", "a charge is missing from the sums of all payments", "lake-money")
def _(run: RecordedRun) -> Finding:
    money = run.lake["gold"]["gold.payments"]["money"]
    captured = money["captured_minor"]
    money["captured_minor"] -= 1
    what = f"{captured - 1} cents were captured by gold.payments, {captured} by the payment provider's books"
    return Finding(what=what, topic="payments.v1")


@FAULTS.declare("the lake", "silver disagrees without saying where", "lake-silver")
def _(run: RecordedRun) -> Finding:
    run.lake["lines"][1] |= {"verdict": "disagrees", "detail": "one row is altered"}
    return Finding(what="one row is altered")
