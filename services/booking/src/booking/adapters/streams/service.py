"""Booking on the bus: what it publishes, and what it hears as group `booking`."""

import contextlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from hailbus import (
    Backoff,
    Batch,
    Bus,
    Catalogue,
    Context,
    Delivery,
    Done,
    EffectivelyOnce,
    Inbox,
    ParkingLot,
    ParkKey,
    Publisher,
    Reject,
    Service,
    Verdict,
)
from hailbus.clock import ServiceClock
from ride_events import CATALOGUE, Money, drivers, quotes, rides, timers
from ride_events.drivers import DriverLocationReported
from ride_events.payments import (
    PaymentAuthorised,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    PaymentReleased,
)
from ride_events.pricing import SURGE, SurgeUpdated
from ride_events.timers import RideOverdue, TimerElapsed

from booking.adapters.storage.writer import UnavailableError, Writer
from booking.app.apply_payment import ApplyPayment
from booking.app.apply_surge import ApplySurge
from booking.app.drivers import HearPosition
from booking.app.elapse import Elapse
from booking.app.ports import OVERDUE_IN, Command, Multiplier, TimerKind
from booking.domain.fare import MULTIPLIER_RANGE
from booking.domain.payment import PaymentNews
from booking.domain.place import Place
from booking.domain.region import Realm

PaymentFact = PaymentAuthorised | PaymentCaptured | PaymentFailed | PaymentReleased | PaymentRefunded
Consumed = SurgeUpdated | TimerElapsed | RideOverdue | PaymentFact
GROUP = "booking"
"""What the inbox calls this consumer, and the consumer group where one process serves everywhere."""
SOURCE = "/booking"
"""Of all regions: ids of quotes and rides differ, and the number of a driver's events continues between regions."""
# While the database is away, wait for it: nothing is wrong with the event.
PATIENTLY = Backoff(
    first=timedelta(milliseconds=200), max=timedelta(seconds=10), attempts=1_000, on=(UnavailableError,)
)
SOON: Final = timedelta(milliseconds=20)
"""How long the first event of a batch waits for more."""
FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(2100, 1, 1, tzinfo=UTC)
CURRENCY: Final = "USD"
"""Of all fares. Money in another one is no payment of a ride of booking's."""
_OVERDUE_BY: Final[Mapping[str, TimerKind]] = {state: kind for kind, state in OVERDUE_IN.items()}
_SUBJECT = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z", re.ASCII)


def build_service(
    bus: Bus,
    clock: ServiceClock,
    writer: Callable[[], Writer],
    *,
    inbox: Inbox,
    lot: ParkingLot,
    realm: Realm | None = None,
) -> tuple[Service, Publisher[DriverLocationReported]]:
    """Return the service and the publisher of positions; the facts go out through the outbox.

    Args:
        bus: Where events come from and go to.
        clock: The time of the service.
        writer: Returns what applies events; it is called when the first event comes.
        inbox: In the writer's database.
        lot: There, too; holds events of a payment that come before their turn.
        realm: The region of this process; events about another region's rides, quotes and cells are passed over.
    """
    service = Service(group_of(realm), source=SOURCE, bus=bus, catalogue=CATALOGUE, clock=clock.now)
    service.publishes(Catalogue.of(quotes, rides, drivers, timers))
    positions: Publisher[DriverLocationReported] = service.publishes(DriverLocationReported)

    # The writer commits events together with requests: it claims them in its own transaction.
    once = EffectivelyOnce(inbox=inbox, retry=PATIENTLY, own_transaction=True)
    in_order = EffectivelyOnce(
        inbox=inbox, retry=PATIENTLY, then=ParkKey(lot=lot), sequence="seq", own_transaction=True
    )

    @service.on_batch(SurgeUpdated | TimerElapsed | RideOverdue, delivery=once, max_items=500, max_wait=SOON)
    async def apply(batch: Batch[SurgeUpdated | TimerElapsed | RideOverdue]) -> None:
        await consume(batch)

    @service.on_batch(PaymentFact, delivery=in_order, max_items=500, max_wait=SOON)
    async def apply_payments(batch: Batch[PaymentFact]) -> None:
        await consume(batch)

    async def consume(batch: Batch[SurgeUpdated | TimerElapsed | RideOverdue] | Batch[PaymentFact]) -> None:
        def is_ours(ctx: Context) -> bool:
            return realm is None or is_of(realm, ctx.topic, ctx.key)

        items: list[Delivery[Consumed]] = [item for item in batch if is_ours(item.ctx)]
        writer().figures.foreign += len(batch) - len(items)
        await writer().consume(
            lambda tx: batch.claim(tx, of=is_ours),
            [(item, fault_of(item) or _command(item.event), _moment(item)) for item in items],
        )

    @service.on_batch(DriverLocationReported, max_items=500, max_wait=SOON)
    async def hear(batch: Batch[DriverLocationReported]) -> list[Verdict]:
        # What a driver reports over HTTP is known already; booking has published it.
        heard = [item for item in batch.items if item.ctx.envelope.source != SOURCE]
        faults = {item.ctx.envelope.id: fault for item in heard if (fault := fault_of_position(item)) is not None}
        now = clock.now() if clock.name == "wall" else LAST_MOMENT
        good = [item for item in heard if item.ctx.envelope.id not in faults]
        if good:
            with contextlib.suppress(UnavailableError):  # the next position replaces a lost one
                await writer().hear([(position_of(item.event), min(item.ctx.envelope.time, now)) for item in good])
        fault_of_item = (faults.get(item.ctx.envelope.id) for item in batch.items)
        return [Done() if fault is None else Reject(fault) for fault in fault_of_item]

    return service, positions


def group_of(realm: Realm | None) -> str:
    """Return the consumer group: each region reads all events, and applies its own."""
    return GROUP if realm is None else f"{GROUP}-{realm.own.name}"


def is_of(realm: Realm, topic: str, key: bytes | None) -> bool:
    """Return whether the events of a key are about a ride, quote or cell of this region. Nonsense is the rest's."""
    name = (key or b"").decode("utf-8", "replace")
    return realm.owns_cell(name) if topic == SURGE.name else realm.owns_id(name)


def fault_of_position(item: Delivery[DriverLocationReported]) -> str | None:
    """Say what is wrong with a position that fits its class and is nonsense all the same."""
    if not FIRST_MOMENT <= item.ctx.envelope.time <= LAST_MOMENT:
        return f"ce_time {item.ctx.envelope.time.isoformat()} is not between 1970 and 2100"
    if not _SUBJECT.match(item.event.driver_id):
        return f"driver_id {item.event.driver_id[:80]!r} is no driver's id"
    return None


def position_of(event: DriverLocationReported) -> HearPosition:
    """Return the command for a position that a driver app has published."""
    place = Place(lat=event.position.lat, lng=event.position.lng, cell=event.position.cell())
    return HearPosition(driver_id=event.driver_id, position=place)


def fault_of(item: Delivery[Consumed]) -> str | None:
    """Say what is wrong with an event that fits its class and is nonsense all the same."""
    envelope = item.ctx.envelope
    if not FIRST_MOMENT <= envelope.time <= LAST_MOMENT:
        return f"ce_time {envelope.time.isoformat()} is not between 1970 and 2100"
    match item.event:
        case SurgeUpdated() as surge:
            lowest, highest = MULTIPLIER_RANGE
            if not lowest <= surge.multiplier <= highest:  # NaN is not, either
                return f"multiplier {surge.multiplier} is not between {lowest} and {highest}"
            if not 0 <= surge.surge_version < 2**63:
                return f"surge_version {surge.surge_version} is no count"
            if surge.valid_until.tzinfo is None or not FIRST_MOMENT <= surge.valid_until <= LAST_MOMENT:
                return f"valid_until {surge.valid_until.isoformat()} is not between 1970 and 2100 in UTC"
        case TimerElapsed() as timer:
            if not _SUBJECT.match(timer.subject_id):
                return f"subject_id {timer.subject_id[:80]!r} is neither a quote's nor a ride's id"
            if timer.due_at.tzinfo is None:
                return "due_at has no zone"
        case RideOverdue() as overdue:
            if not _SUBJECT.match(overdue.ride_id):
                return f"ride_id {overdue.ride_id[:80]!r} is no ride's id"
            if overdue.state not in _OVERDUE_BY:
                return f"no ride is overdue in state {overdue.state[:80]!r}"
            if overdue.due_at.tzinfo is None:
                return "due_at has no zone"
        case PaymentAuthorised() | PaymentCaptured() | PaymentFailed() | PaymentReleased() | PaymentRefunded() as fact:
            return _fault_of_payment(fact)
    return None


def _fault_of_payment(fact: PaymentFact) -> str | None:
    if not _SUBJECT.match(fact.ride_id):
        return f"ride_id {fact.ride_id[:80]!r} is no ride's id"
    if not 0 < fact.seq < 2**31:
        return f"seq {fact.seq} is no number of an event"
    for amount in (fact.amount, fact.owed if isinstance(fact, PaymentFailed) else None):
        if amount is not None and (amount.currency != CURRENCY or amount.amount_minor >= 2**53):
            return f"{amount.amount_minor} {amount.currency} is no amount of {CURRENCY}"
    return None


def _moment(item: Delivery[Consumed]) -> datetime | None:
    """Return when an event's consequences happen, None for the moment at which booking hears of it."""
    # A timer's event time is when it was due: the transition happens then. A card that was declined for a ride of a
    # minute ago changes the ride now.
    return item.ctx.envelope.time if isinstance(item.event, SurgeUpdated | TimerElapsed | RideOverdue) else None


def _command(event: Consumed) -> Command[object]:
    match event:
        case SurgeUpdated():
            return ApplySurge(
                multiplier=Multiplier(
                    cell=event.cell,
                    multiplier=event.multiplier,
                    version=event.surge_version,
                    valid_until=event.valid_until,
                )
            )
        case TimerElapsed():
            return Elapse(kind=event.kind, subject_id=event.subject_id, seq=event.seq, due_at=event.due_at)
        case RideOverdue():
            kind = _OVERDUE_BY[event.state]
            return Elapse(kind=kind, subject_id=event.ride_id, seq=event.seq, due_at=event.due_at)
        case PaymentAuthorised() | PaymentCaptured() | PaymentFailed() | PaymentReleased() | PaymentRefunded():
            return ApplyPayment(ride_id=event.ride_id, news=_news(event))
        case _:
            assert_never(event)


def _news(fact: PaymentFact) -> PaymentNews:
    amount_minor = fact.amount.amount_minor
    match fact:
        case PaymentAuthorised():
            return PaymentNews(kind="authorised", seq=fact.seq, amount_minor=amount_minor)
        case PaymentCaptured():
            return PaymentNews(kind="captured", seq=fact.seq, amount_minor=amount_minor)
        case PaymentFailed():
            return PaymentNews(
                kind="failed", seq=fact.seq, amount_minor=amount_minor, stage=fact.stage, owed_minor=_minor(fact.owed)
            )
        case PaymentReleased():
            return PaymentNews(kind="released", seq=fact.seq, amount_minor=amount_minor)
        case PaymentRefunded():
            return PaymentNews(kind="refunded", seq=fact.seq, amount_minor=amount_minor)
        case _:
            assert_never(fact)


def _minor(amount: Money | None) -> int | None:
    return None if amount is None else amount.amount_minor
