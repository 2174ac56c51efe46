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

Written by `uv run derive-states` from the tables that the code runs on: a step that a table does not have is an
assertion that fails. Tests walk every edge.

"""
CLASSIC_TEXT = """## A group of the classic protocol

A join of a new member, or of one with another subscription, a member that leaves or is silent: *PreparingRebalance*,
in which the members have until the longest of their rebalance timeouts to join again. All have joined:
*CompletingRebalance*, until the leader brings the assignments: *Stable*. Nobody is left: *Empty*; deleted, or its
last offset expired: *Dead*, which is forgotten. Only *Empty* and *Stable* are in the log; a restart in between costs
a rebalance.

"""
TRANSACTION_TEXT = """## A transactional id

Its producer gets an epoch: *Empty*. The first partition is added: *Ongoing*. What ends a transaction takes two
records and, between them, markers: *PrepareCommit* or *PrepareAbort*, from which on the outcome is fixed; a marker in
every partition; *CompleteCommit* or *CompleteAbort*. An abort also comes from the timeout, or from another producer
that takes the id. In transactions v2 an abort of nothing is an epoch's end as well.

"""
CONSUMER_TEXT = """## A group of the consumer protocol (KIP-848)

The group has no state of its own: *Empty* has no members, *Assigning* has no assignment for its newest epoch yet, in
*Stable* every member has what the newest assignment says, else it is *Reconciling*. A member is *Stable*, has
partitions to give up (*UnrevokedPartitions*), or waits for others to give them up (*UnreleasedPartitions*); since
every heartbeat compares with the newest assignment, each of the three may follow each.
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
