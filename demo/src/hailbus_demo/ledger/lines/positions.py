"""Positions of drivers are sent at most once: some may be lost, none may be invented or doubled."""

from __future__ import annotations

from collections import Counter
from typing import Final

from hailbus_demo.ledger.accounts import Accounts, BookAccount
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOK
from hailbus_demo.ledger.log import LogAccount
from hailbus_demo.ledger.model import Findings, Judgement


def _positions(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    left = Counter(book.positions)
    for position, row in zip(reader.positions, reader.position_rows, strict=True):
        if left[position] > 0:
            left[position] -= 1
        else:
            found.extend([reader.finding(f"a position that {BOOK} did not send, or not so often", row)])
    sent, arrived = len(book.positions), len(reader.positions)
    return found.judge(f"{arrived:,} positions of {sent:,} sent are in the log, none of them twice")


LINES: Final = (
    LineSpec(
        id="positions",
        name="every position in the log was sent",
        between=(BOOK, "driver-locations.v1 in the log"),
        needs=("book", "log"),
        judge=_positions,
    ),
)
