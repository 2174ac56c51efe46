"""A copy of an event that nobody can read, as a producer with a mistake may write it."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Final

from hailbus import Bus
from hailbus._transport import Received
from hailbus.reader import record_reader
from ride_events.rides import RIDES, RideRequested

from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.ledger.accounts import PoisonEvent

__all__ = ["POISONED", "PoisonBook", "damaged", "poison"]

POISONED: Final = "ride.requested"
"""What is copied: every group that reads rides.v1 wants this type."""


class PoisonBook:
    """The damaged copies that clicks wrote, kept in a file: the next run on the same log must know them.

    Args:
        path: One copy a line, as JSON. It need not exist.

    Raises:
        UsageError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.copies: list[PoisonEvent] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            self.copies += [PoisonEvent(**json.loads(line)) for line in lines]
        except FileNotFoundError:
            pass
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): start anew with --fresh") from error

    def note(self, copy: PoisonEvent) -> None:
        """Add a copy; it is on the disk when this returns."""
        self.copies.append(copy)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(copy._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())


async def poison(bus: Bus, *, since: datetime) -> PoisonEvent:
    """Write the newest request for a ride once more, with the same key and headers and a fare that is no number.

    Args:
        bus: Where rides.v1 is.
        since: The log's time from which on a request is looked for.

    Raises:
        RunFailedError: Nobody has requested a ride since then.
        DeliveryError: The record was not acknowledged.
    """
    newest = None
    async for record in record_reader(bus, [RIDES.name], start=since, until_end=True, client_id="demo-poison"):
        if _is_intact_request(record) and (newest is None or record.timestamp >= newest.timestamp):
            newest = record
    if newest is None or newest.value is None:
        raise RunFailedError("nobody has requested a ride for a while: wait for the next one")
    producer = bus.producer(client_id="demo-poison")
    await producer.start()
    try:
        (offset,) = await producer.send(
            RIDES.name, newest.partition, [(newest.key, damaged(newest.value), newest.headers)]
        )
    finally:
        await producer.stop()
    return PoisonEvent(
        topic=RIDES.name,
        partition=newest.partition,
        offset=offset,
        type=POISONED,
        id=dict(newest.headers)["ce_id"].decode(),
        value=newest.value.decode(),
    )


def _is_intact_request(record: Received) -> bool:
    if dict(record.headers).get("ce_type") != POISONED.encode():
        return False
    try:
        RideRequested.model_validate_json(record.value or b"")
    except ValueError:
        return False
    return True


def damaged(value: bytes) -> bytes:
    """Return the event with its fare in words, as `"19.99 USD"`."""
    event = json.loads(value)
    fare = event["fare"]
    fare["amount_minor"] = f"{fare['amount_minor'] / 100:.2f} {fare['currency']}"
    return json.dumps(event, separators=(",", ":")).encode()
