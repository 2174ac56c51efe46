"""What payment reads of other services' events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hailbus import Context, Event
from hailbus.testing import MemoryBus
from hailbus.testing.plugin import NeedsRecorder
from payment.adapters.streams.saga import Authorised, PaymentState, Policy, Saga
from payment.domain.payment import Payment
from ride_events.rides import RideCancelled, RideCompleted, RidePooled, RideRepriced, RideRequested, RideUnmatched

from tests.contract.examples import example

SEQUENCE = "seq"
"""Where hailbus finds the number of an event."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Deciding(Saga):
    """The saga without its database: what it makes of an event is returned, not written."""

    def __init__(self) -> None:
        self._policy = Policy()

    async def _after(self, before: PaymentState | None, payment: Payment, facts: Any, turn: Any) -> PaymentState:
        return Authorised(payment=payment, at=turn.ctx.envelope.time)


async def test_rides(bus: MemoryBus, needs: NeedsRecorder) -> None:
    saga = Deciding()

    async def decided(
        decide: Callable[..., Awaitable[PaymentState]], kind: type[Event], *state: PaymentState
    ) -> Payment:
        event = example(kind)
        async with bus.run() as t:
            (record,) = await t.given(event)
        watched = needs("payment-saga", event)
        assert getattr(watched, SEQUENCE) == getattr(event, SEQUENCE)
        after = await decide(*state, watched, SimpleNamespace(ctx=Context(record)))
        return after.payment

    requested = await decided(saga._requested, RideRequested)
    authorised = Authorised(payment=requested, at=EPOCH)
    assert (await decided(saga._repriced, RideRepriced, authorised)).ending is None
    assert (await decided(saga._repriced, RidePooled, authorised)).fare_minor == example(RidePooled).fare.amount_minor
    assert (await decided(saga._completed, RideCompleted, authorised)).ending is not None
    assert (await decided(saga._cancelled, RideCancelled, authorised)).ending is not None
    assert (await decided(saga._unmatched, RideUnmatched, authorised)).ending is not None
