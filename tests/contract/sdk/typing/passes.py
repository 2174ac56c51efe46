"""What type checkers must accept, without a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, FastAPI
from hailbus import (
    AtLeastOnce,
    Batch,
    Catalogue,
    Context,
    Done,
    Event,
    Publisher,
    Retry,
    Router,
    Service,
    Topic,
    Verdict,
    bus_reader,
)
from hailbus.state_machine import State, StateMachine, Step

RIDES = Topic("rides.v1", partitions=3)


class RideEvent(Event, topic=RIDES, key="ride_id"):
    ride_id: str


class RideRequested(RideEvent, type="ride.requested", version=2):
    rider_id: str
    note: str | None = None


class RideCompleted(RideEvent, type="ride.completed"):
    fare: int


class RideCancelled(RideEvent, type="ride.cancelled"):
    pass


svc = Service("booking", source="/booking")
rides: Publisher[RideRequested | RideCompleted] = svc.publishes(RideRequested | RideCompleted)
inferred = svc.publishes(RideRequested | RideCompleted)
narrower: Publisher[RideRequested] = rides  # who may publish both may publish one


async def publish() -> None:
    receipt = await rides.publish(RideRequested(ride_id="1", rider_id="2"))
    offset: int | None = receipt.offset
    await inferred.publish(RideCompleted(ride_id="1", fare=offset or 0))
    await rides.publish_many([RideRequested(ride_id="1", rider_id="2"), RideCompleted(ride_id="1", fare=3)])


@svc.on(RideRequested)
async def one(event: RideRequested, ctx: Context) -> None:
    event.rider_id.upper()


@svc.on(RideRequested | RideCompleted, group="other", delivery=AtLeastOnce(order="partition"))
async def two(event: RideRequested | RideCompleted, ctx: Context) -> Verdict | None:
    match event:
        case RideRequested():
            return Retry()
        case RideCompleted():
            return Done()


@svc.on(RideRequested | RideCompleted, group="base")
async def base(event: RideEvent, ctx: Context) -> None:
    event.ride_id.upper()


@svc.on_batch(RideRequested | RideCompleted, group="batch")
async def batch(items: Batch[RideRequested | RideCompleted]) -> Sequence[Verdict]:
    return [Done() for item in items if item.event.ride_id]


@svc.on(RideRequested, group="no context")
async def no_context(event: RideRequested) -> None: ...


@svc.on(RideRequested, group="plain")
def plain(event: RideRequested, ctx: Context) -> Verdict | None:
    return Done()


@svc.on
async def annotated(event: RideRequested | RideCompleted, ctx: Context) -> None: ...


@svc.on(group="annotated", delivery=AtLeastOnce())
def annotated_with_options(event: RideRequested) -> None: ...


@svc.on_batch
def annotated_batch(batch: Batch[RideRequested]) -> list[Verdict]:
    return [Done() for _ in batch]


@svc.on(Catalogue.of(RideRequested, RideCompleted), group="catalogue")
async def whatever(event: Event) -> None: ...


router = Router(group="audit")
cancelled = router.publishes(RideCancelled)


@router.on
async def routed(event: RideRequested | RideCompleted) -> None:
    await cancelled.publish(RideCancelled(ride_id=event.ride_id))


svc.include(router, delivery=AtLeastOnce(order="partition"))


async def call_a_handler_as_a_test_does(ctx: Context) -> None:
    await no_context(RideRequested(ride_id="1", rider_id="2"))
    verdict: Verdict | None = plain(RideRequested(ride_id="1", rider_id="2"), ctx)
    await with_dependency(RideRequested(ride_id="1", rider_id="2"), ctx, "tenant")
    assert verdict is not None


class E1(RideEvent, type="e.one"):
    pass


class E2(RideEvent, type="e.two"):
    pass


class E3(RideEvent, type="e.three"):
    pass


class E4(RideEvent, type="e.four"):
    pass


class E5(RideEvent, type="e.five"):
    pass


class E6(RideEvent, type="e.six"):
    pass


class E7(RideEvent, type="e.seven"):
    pass


class E8(RideEvent, type="e.eight"):
    pass


class E9(RideEvent, type="e.nine"):
    pass


nine = svc.publishes(E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8 | E9)


@svc.on(E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8 | E9)
async def one_of_many(event: E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8 | E9) -> None:
    await nine.publish(event)


@svc.on_batch(E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8 | E9, group="batches of many")
async def batch_of_many(batch: Batch[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8 | E9]) -> None:
    await nine.publish_many(batch.events)


def tenant(ctx: Context) -> str:
    return ctx.topic


@svc.on(RideRequested, group="dependencies")
async def with_dependency(event: RideRequested, ctx: Context, whose: Annotated[str, Depends(tenant)]) -> None:
    whose.upper()


@svc.on_batch(RideRequested, group="batch dependencies")
async def batch_with_dependency(items: Batch[RideRequested], whose: Annotated[str, Depends(tenant)]) -> None:
    whose.upper()


class Waiting(State):
    rider_id: str


class Ended(State, is_final=True):
    fare: int


def declare(machine: StateMachine) -> None:
    @machine.starts(RideRequested)
    async def requested(event: RideRequested, step: Step) -> Waiting:
        await step.schedule(rides, RideCompleted(ride_id="1", fare=0), after=timedelta(hours=1))
        return Waiting(rider_id=event.rider_id)

    @machine.on(Waiting, RideCompleted, by=lambda event: event.ride_id)
    async def completed(state: Waiting, event: RideCompleted, step: Step) -> Ended | None:
        return Ended(fare=event.fare) if state.rider_id else None


app = FastAPI(lifespan=svc.lifespan)
app.include_router(svc.health())


@app.post("/rides")
async def request_ride(pub: Annotated[Publisher[RideRequested], Depends(rides)]) -> None:
    await pub.publish(RideRequested(ride_id="1", rider_id="2"))


async def tail() -> None:
    from hailbus.testing import MemoryBus

    async for delivery in bus_reader(MemoryBus(), RideRequested):
        delivery.event.rider_id.upper()
    async for anything in bus_reader(MemoryBus(), Catalogue.of(RideRequested)):
        anything.event.model_dump()
