"""What campaigns must have reached with clients of other packages."""

from __future__ import annotations

from typing import Final

REQUIRED_OF_GUESTS: Final = (
    "aiokafka: commit during a fault",
    "aiokafka: offsets committed",
    "aiokafka: rebalance",
    "aiokafka: transaction aborted",
    "aiokafka: transaction aborted by a crash",
    "aiokafka: transaction committed",
    "aiokafka: transaction copied",
    "handler failed",
    "order published twice",
    "outbox transaction rolled back",
    "service killed between handler and commit",
    "service killed in a transaction of its store",
    "store away",
    "store commit of unknown outcome",
    "store commit refused",
)
