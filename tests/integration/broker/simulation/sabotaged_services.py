"""Services in a campaign with a fault planted in the SDK: `python -m … FAULT` prints the names of what was found."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from hailbus._transport.aiokafka_producer import AiokafkaProducer
from hailbus.inbox import Claims, Inbox
from hailbus.outbox import Outbox
from hailbus_broker.testing.campaign import PlannedClient, PlannedFault, Scenario, run_scenario
from hailbus_devtools.simulate.guests import Guests

SCENARIO = Scenario(
    seed=1,
    duration_s=9.0,
    clients=(
        PlannedClient(name="shop-service-1", kind="shop service", rate=5.0),
        PlannedClient(name="till-service-1", kind="till service"),
    ),
    faults=tuple(
        PlannedFault(at_s=at_s, kind="client kill", client="till-service-1", duration_s=0.1) for at_s in (3.5, 7.5)
    ),
)


async def claim_all(_inbox: Inbox, _tx: Any, deliveries: Any) -> set[str]:
    """Every event counts as one that was never applied."""
    return {event_id for _, event_id in Claims(deliveries).rows}


SEND, MARK = Outbox._send, Outbox._mark


async def send_some(outbox: Outbox, producer: Any, place: tuple[str, int], rows: Sequence[Any]) -> Any:
    """Leave out every fifth row."""
    return await SEND(outbox, producer, place, [row for row in rows if row.position % 5])


async def mark_all(outbox: Outbox, connection: Any, done: Sequence[Mapping[str, int]], refused: Any) -> None:
    """Mark the rows that were left out as published, too."""
    last = max((row["b_position"] for row in done), default=0)
    skipped = [{"b_position": number, "b_partition": 0, "b_offset": 0} for number in range(5, last + 6, 5)]
    await MARK(outbox, connection, [*done, *skipped], refused)


async def commit_no_offsets(_producer: AiokafkaProducer, _offsets: Any, _group: str) -> None:
    """Leave out of the transaction what it has consumed."""


FAULTS: Mapping[str, Sequence[tuple[type[Any], str, Callable[..., Any]]]] = {
    "forget the inbox": [(Inbox, "claim", claim_all)],
    "mark without sending": [(Outbox, "_send", send_some), (Outbox, "_mark", mark_all)],
    "leave offsets out": [(AiokafkaProducer, "send_offsets", commit_no_offsets)],
}

if __name__ == "__main__":
    logging.disable()
    with ExitStack() as stack:
        for owner, name, replacement in FAULTS[sys.argv[1]]:
            stack.enter_context(patch.object(owner, name, replacement))
        print(json.dumps(sorted(run_scenario(SCENARIO, make_guests=Guests).problems)))
