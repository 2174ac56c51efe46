"""The lake: bronze holds the log's bytes, silver follows from bronze, gold from silver; by `lake verify`'s report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hailbus_demo.ledger.accounts import Accounts, LakeAccount, ProviderAccount, Sums
from hailbus_demo.ledger.lines.money import PROVIDER, moved_by
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.log import TOPIC_NAMES, LogAccount
from hailbus_demo.ledger.model import Findings, Judgement

BRONZE: Final = "bronze = log"
SILVER: Final = "silver = bronze"
GOLD: Final = "gold = recomputed"


def _told(report: Mapping[str, Any], name: str) -> Judgement:
    """Return what the report says of one of its lines; silence and an unknown verdict are `not_checked`."""
    lines = [line for line in report["lines"] if line["name"] == name]
    if len(lines) != 1:
        return Judgement(unchecked=f"`lake verify` says nothing of {name!r}")
    line = lines[0]
    found = Findings()
    for one in line["findings"]:
        found.add(
            str(one["message"]),
            topic=one["topic"],
            partition=one["partition"],
            offset=one["offset"],
            id=one["id"],
        )
    if line["verdict"] == "agrees" and not found.count:
        return found.judge(str(line["detail"]))
    if line["verdict"] == "disagrees":
        if not found.count:
            found.add(str(line["detail"]))
        return found.judge("")
    return Judgement(unchecked=str(line["detail"]) or "`lake verify` gives no reason", findings=tuple(found.kept))


def _line(name: str) -> Any:  # Any: a function of `Accounts`
    def judge(accounts: Accounts) -> Judgement:
        assert isinstance(accounts.lake, LakeAccount)
        try:
            return _told(accounts.lake.report, name)
        except (KeyError, TypeError, AttributeError) as error:
            return _unreadable(error)

    return judge


def _unreadable(error: Exception) -> Judgement:
    return Judgement(unchecked=f"the report of `lake verify` cannot be read: {type(error).__name__}: {error}")


def _bronze(accounts: Accounts) -> Judgement:
    log, lake = accounts.log, accounts.lake
    assert isinstance(log, LogAccount)
    assert isinstance(lake, LakeAccount)
    try:
        told = _told(lake.report, BRONZE)
        if told.unchecked is not None:
            return told
        found = Findings()
        found.extend(told.findings)
        records = _compare(found, log, lake.report)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _unreadable(error)
    return found.judge(f"{records:,} records have the checksum of the ledger's own reading")


def _compare(found: Findings, log: LogAccount, report: Mapping[str, Any]) -> int:
    """Compare the lake's counts and checksums with the ledger's own reading of the log."""
    parts = {(str(part["topic"]), int(part["partition"])): part for part in report["partitions"]}
    records = 0
    for place, end in sorted(log.ends.items()):
        topic, partition = place
        if topic not in TOPIC_NAMES:
            continue
        part, own = parts.get(place), log.partitions[place]
        if part is None:
            if own.records:
                what = f"{own.records:,} records are in the log, and the lake was not asked for them"
                found.add(what, topic=topic, partition=partition)
            continue
        if part["end"] is None or part["log_start"] is None:
            found.add(f"the lake was not compared: {part['detail']}", topic=topic, partition=partition)
            continue
        if int(part["end"]) != end:
            what = f"the lake was compared to the end {part['end']}, the log ends at {end}"
            found.add(what, topic=topic, partition=partition, offset=end)
            continue
        if int(part["checked_from"]) != own.start or int(part["log_start"]) != own.start:
            what = f"the lake was compared from {part['checked_from']} on, the log begins at {own.start}"
            found.add(what, topic=topic, partition=partition, offset=own.start)
            continue
        records += own.records
        ours = (own.records, f"{own.checksum:016x}")
        if own.gaps:  # of a compacted topic the lake may keep what the log has lost
            theirs = (int(part["log_records"]), str(part["log_checksum"]))
        else:
            theirs = (int(part["lake_records"]), str(part["lake_checksum"]))
        if ours != theirs:
            what = f"{ours[0]:,} records with checksum {ours[1]} in the log, {theirs[0]:,} with {theirs[1]} in the lake"
            found.add(what, topic=topic, partition=partition, offset=own.start)
    return records


def _money(accounts: Accounts) -> Judgement:
    """Compare what the lake sums up of all payments with what the provider moved."""
    lake, provider = accounts.lake, accounts.provider
    assert isinstance(lake, LakeAccount)
    assert isinstance(provider, ProviderAccount)
    found = Findings()
    try:
        said = lake.report["gold"]["gold.payments"]["money"]
        totals = {kind: int(said[f"{kind}_minor"]) for kind in Sums._fields}
    except (KeyError, TypeError, ValueError) as error:
        return _unreadable(error)
    moved = moved_by(provider)
    for kind, amount in moved._asdict().items():
        if totals[kind] != amount:
            found.add(f"{totals[kind]} cents were {kind} by gold.payments, {amount} by {PROVIDER}", topic="payments.v1")
    return found.judge(f"gold.payments has the provider's sums in cents: {moved}")


LINES: Final = (
    LineSpec(
        id="lake-bronze",
        name="the lake has the bytes of every record",
        between=("the log", "bronze.events"),
        needs=("lake", "log"),
        judge=_bronze,
    ),
    LineSpec(
        id="lake-silver",
        name="silver follows from bronze",
        between=("bronze.events", "silver"),
        needs=("lake",),
        judge=_line(SILVER),
    ),
    LineSpec(
        id="lake-gold",
        name="gold follows from silver",
        between=("silver", "gold, recomputed"),
        needs=("lake",),
        judge=_line(GOLD),
    ),
    LineSpec(
        id="lake-money",
        name="the lake has the money that the provider moved, to the cent",
        between=("gold.payments", PROVIDER),
        needs=("lake", "provider"),
        judge=_money,
    ),
)
