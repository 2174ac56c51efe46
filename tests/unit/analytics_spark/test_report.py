"""What a verification says: its lines, its problems, and the JSON of both."""

from typing import Any

import pytest
from analytics_spark.verify.report import (
    AGREES,
    Finding,
    Findings,
    GoldReport,
    Kind,
    LakeReport,
    LineReport,
    PartitionReport,
    SilverReport,
)

ACCOUNTS = ("one side", "the other")


def line(name: str, *kinds: Kind, times: int = 1) -> LineReport:
    findings = Findings()
    for number, kind in enumerate(kinds * times):
        findings.add(Finding(kind=kind, message=f"{kind} {number}"))
    return LineReport.of(name, ACCOUNTS, findings, agreed="all is equal")


def report(*lines: LineReport, **more: Any) -> LakeReport:
    given: dict[str, Any] = {
        "partitions": (),
        "silver": None,
        "gold": None,
        "tables": {},
        "allowances": (),
        "mode": "full",
        "seed": 7,
        "seconds": 1.23456,
        **more,
    }
    return LakeReport(lines=lines, **given)


@pytest.mark.parametrize(
    ("kinds", "verdict", "detail"),
    [
        ([], "agrees", "all is equal"),
        (["unread", "unverified"], "not_checked", "1 unread, 1 unverified"),
        (["unread", "missing"], "disagrees", "1 missing, 1 unread"),
        (["wrongly_typed"], "disagrees", "1 wrongly typed"),
    ],
)
def test_a_disagreement_outweighs_what_was_not_checked(kinds: list[Kind], verdict: str, detail: str) -> None:
    found = line("a = b", *kinds)
    assert (found.verdict, found.detail, found.findings_count) == (verdict, detail, len(kinds))
    assert [one.kind for one in found.findings] == kinds


def test_twenty_findings_are_kept_and_all_are_counted() -> None:
    findings = Findings()
    findings.add(Finding(kind="behind", message="many"), count=1_500)
    for number in range(30):
        findings.add(Finding(kind="altered", message=str(number)))
    found = LineReport.of("a = b", ACCOUNTS, findings, agreed="")
    assert (len(found.findings), found.findings_count, found.detail) == (20, 1_530, "30 altered, 1,500 behind")


def test_a_report_is_ok_when_every_line_agrees() -> None:
    assert report(line("a = b"), line("c = d")).ok
    assert not report(line("a = b"), line("c = d", "unread")).ok
    assert not report(line("a = b", "missing"), line("c = d")).ok
    assert report(line("a = b"), line("c = d")).line("c = d").name == "c = d"


def test_problems_are_the_findings_and_how_many_more_there_are() -> None:
    whole = report(line("a = b", "unread"), line("c = d"), line("e = f", "altered", times=22))
    assert whole.problems == (
        "a = b: not checked: unread 0",
        *(f"e = f: altered {number}" for number in range(20)),
        "e = f: 22 altered; the first 20 are listed",
    )
    assert report(line("a = b", "altered", times=20)).problems[-1] == "a = b: altered 19"
    assert report(line("a = b", "unread", times=21)).problems[-1] == (
        "a = b: not checked: 21 unread; the first 20 are listed"
    )


def test_a_partition_that_was_not_compared_counts_nothing() -> None:
    assert PartitionReport(topic="t", partition=1).to_dict() == {
        "topic": "t",
        "partition": 1,
        "topic_id": None,
        "log_start": None,
        "end": None,
        "verified_before": 0,
        "checked_from": 0,
        "log_records": 0,
        "lake_records": 0,
        "log_checksum": "0" * 16,
        "lake_checksum": "0" * 16,
        "rows": 0,
        "behind_records": 0,
        "hidden_offsets": 0,
        "verdict": AGREES,
        "detail": "",
    }


def test_the_json_says_all_of_it() -> None:
    parts = (
        PartitionReport(topic="t", partition=0, rows=3, log_checksum=255, lake_checksum=254),
        PartitionReport(topic="t", partition=1, rows=4),
    )
    silver = SilverReport(bronze=7, typed=4, quarantined=2, duplicates=1, unaccounted=0, sampled=7)
    whole = report(
        line("a = b", "missing"),
        partitions=parts,
        silver=silver,
        gold={"gold.demand": GoldReport(rows=5, recomputed=6)},
        tables={"bronze.events": 7},
        allowances=("some",),
    )
    assert whole.rows == 7
    document = whole.to_dict()
    assert document["partitions"] == [one.to_dict() for one in parts]
    assert (document["partitions"][0]["log_checksum"], document["partitions"][0]["lake_checksum"]) == (
        "00000000000000ff",
        "00000000000000fe",
    )
    assert {name: value for name, value in document.items() if name not in {"partitions", "lines"}} == {
        "ok": False,
        "problems": ["a = b: missing 0"],
        "rows": 7,
        "mode": "full",
        "seed": 7,
        "seconds": 1.23,
        "silver": {
            "bronze": 7,
            "typed": 4,
            "quarantined": 2,
            "duplicates": 1,
            "unaccounted": 0,
            "sampled": 7,
        },
        "gold": {"gold.demand": {"rows": 5, "recomputed": 6, "money": {}}},
        "tables": {"bronze.events": 7},
        "allowances": ["some"],
    }
    assert document["lines"] == [
        {
            "name": "a = b",
            "accounts": ACCOUNTS,
            "verdict": "disagrees",
            "detail": "1 missing",
            "findings_count": 1,
            "findings": (
                {
                    "kind": "missing",
                    "message": "missing 0",
                    "topic": None,
                    "partition": None,
                    "offset": None,
                    "id": None,
                    "table": None,
                    "column": None,
                },
            ),
        }
    ]
    bare = report(line("a = b")).to_dict()
    assert (bare["ok"], bare["silver"], bare["gold"], bare["problems"]) == (True, None, None, [])
    assert report(line("a = b"), gold={}).to_dict()["gold"] == {}
