"""Write `docs/broker/state-machines.md` from the tables that the coordinators run on."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from hailbus_broker.coordinators.group.classic import TRANSITIONS as CLASSIC
from hailbus_broker.coordinators.transaction.state import TRANSITIONS as TRANSACTION

S = TypeVar("S")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "broker" / "state-machines.md"
HEAD = """# State machines of the broker

Written by `uv run derive-states` from the transition tables that the code runs on. A transition that is not in its
table fails an assertion. Tests walk every edge.

"""
CLASSIC_TEXT = """## A group of the classic protocol

| State | Meaning |
|---|---|
| *Empty* | the group has no members; it may have committed offsets |
| *PreparingRebalance* | members have to join again, until the longest of their rebalance timeouts expires |
| *CompletingRebalance* | all members have joined; the leader has to send the assignments |
| *Stable* | every member has its assignment |
| *Dead* | the group was deleted, or its last offset expired |

A rebalance begins when a member joins, leaves, fails, or changes its subscription. The log holds only *Empty* and
*Stable*: a restart of the broker during a rebalance starts another one.

"""
TRANSACTION_TEXT = """## A transactional id

| State | Meaning |
|---|---|
| *Empty* | the producer has an epoch and no transaction |
| *Ongoing* | the transaction has at least one partition |
| *PrepareCommit*, *PrepareAbort* | the outcome is decided; the broker writes a marker to every partition |
| *CompleteCommit*, *CompleteAbort* | all markers are written |

The broker aborts a transaction when its timeout expires, or when another producer takes the id. In transactions v2, an
abort without a transaction also ends the producer's epoch.

"""
CONSUMER_TEXT = """## A group of the consumer protocol (KIP-848)

The broker derives the state of such a group from its members:

| State of the group | Meaning |
|---|---|
| *Empty* | it has no members |
| *Assigning* | its newest epoch has no assignment yet |
| *Reconciling* | some members do not have their newest assignment yet |
| *Stable* | every member has its newest assignment |

| State of a member | Meaning |
|---|---|
| *Stable* | it has its newest assignment |
| *UnrevokedPartitions* | it has partitions that it must give up |
| *UnreleasedPartitions* | it waits for partitions that other members must give up |

Every heartbeat compares a member with the newest assignment, so each state of a member may follow each other one.
"""


def _diagram(table: Mapping[S, frozenset[S]], start: str, names: Mapping[S, str]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines += [
        f"    {names[state]} --> {name}"
        for state, following in table.items()
        for name in sorted(names[after] for after in following)
    ]
    return "\n".join([*lines, "```", "", ""])


def page() -> str:
    """Return the text of the page."""
    classic = _diagram(CLASSIC, "Empty", {state: state.value for state in CLASSIC})
    transaction = _diagram(TRANSACTION, "Empty", {state: state.label for state in TRANSACTION})
    return HEAD + CLASSIC_TEXT + classic + TRANSACTION_TEXT + transaction + CONSUMER_TEXT


def main() -> None:
    """Write the page; with `--check` only say whether it is up to date."""
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE.name} is out of date: run `uv run derive-states`")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
