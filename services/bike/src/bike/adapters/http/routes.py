"""Routes: read the request, run the use case once per key, send the answer."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Final
from uuid import uuid4

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from hailbus.clock import ServiceClock
from hailbus.fastapi import EventTime, IdempotencyKey, ProblemError, moment_of, reply_to
from hailbus.idempotency import fingerprint
from pydantic import BaseModel

from bike.adapters.http import schemas
from bike.adapters.http.problems import PROBLEMS, documented
from bike.adapters.storage.store import Store
from bike.app.place_bike import place_bike
from bike.app.ports import Work
from bike.app.reserve_bike import reserve_bike
from bike.app.return_bike import return_bike
from bike.app.unlock_bike import unlock_bike
from bike.domain.errors import Refusal
from bike.domain.hire import Bike, Hire

_ID: Final = r"^[A-Za-z0-9._:-]{1,64}$"

IdPath = Annotated[str, Path(pattern=_ID)]
_POSTED = (
    "malformed",
    "event-time-refused",
    "event-time-required",
    "too-large",
    "unsupported-media-type",
    "invalid",
    "idempotency-key-reused",
    "unavailable",
)


def add_routes(api: APIRouter, store: Store, clock: ServiceClock) -> None:
    """Add the routes to the application's own router."""

    async def once(
        request: Request,
        use_case: Callable[[Work], Awaitable[Bike | Hire | datetime]],
        body: BaseModel | None,
        *,
        key: str,
        event_time: str | None,
        status: int = 200,
    ) -> Response:
        path = request.url.path
        content = b"" if body is None else body.model_dump_json().encode()

        def present(result: Bike | Hire | datetime | Refusal, now: datetime) -> tuple[int, bytes]:
            view: BaseModel
            match result:
                case Refusal():
                    return PROBLEMS.stored(result, instance=path)
                case Bike():
                    view = schemas.BikeView.of(result, None, now)
                case Hire():
                    view = schemas.HireView.of(result, now)
                case datetime():
                    view = schemas.ClockView(clock="event", now=result)
            return status, view.model_dump_json().encode()

        answer = await store.once(
            use_case,
            key=key,
            fingerprint=fingerprint(path, content),
            at=moment_of(event_time, clock),
            present=present,
        )
        return reply_to(answer)

    @api.post(
        "/bikes",
        status_code=201,
        tags=["bikes"],
        summary="Put a bike on the street",
        response_model=schemas.BikeView,
        responses=documented(*_POSTED, "bike-taken"),
    )
    async def put_bike(
        request: Request, body: schemas.NewBike, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        return await once(
            request,
            lambda work: place_bike(work, bike_id=body.bike_id, place=body.place.place()),
            body,
            key=key,
            event_time=event_time,
            status=201,
        )

    @api.get(
        "/bikes",
        tags=["bikes"],
        summary="List bikes",
        response_model=schemas.BikeList,
        responses=documented("invalid"),
    )
    async def list_bikes(
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        after: Annotated[str | None, Query(pattern=_ID, description="`next` of the page before.")] = None,
    ) -> Response:
        found = await store.bikes(limit=limit, after=after)
        now = clock.now()
        return _ok(
            schemas.BikeList(
                bikes=[schemas.BikeView.of(bike, holder, now) for bike, holder in found],
                next=found[-1][0].bike_id if len(found) == limit else None,
            )
        )

    @api.get(
        "/bikes/{bike_id}",
        tags=["bikes"],
        summary="Look at a bike",
        response_model=schemas.BikeView,
        responses=documented("not-found", "invalid"),
    )
    async def get_bike(bike_id: IdPath) -> Response:
        bike, holder = await store.bike(bike_id)
        return _ok(schemas.BikeView.of(bike, holder, clock.now()))

    @api.post(
        "/hires",
        status_code=201,
        tags=["hires"],
        summary="Reserve a bike",
        response_model=schemas.HireView,
        responses=documented(*_POSTED, "not-found", "bike-taken"),
    )
    async def reserve(
        request: Request, body: schemas.NewHire, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        return await once(
            request,
            lambda work: reserve_bike(
                work,
                hire_id=str(uuid4()),
                bike_id=body.bike_id,
                rider_id=body.rider_id,
                simulated=body.simulated,
            ),
            body,
            key=key,
            event_time=event_time,
            status=201,
        )

    @api.get(
        "/hires/{hire_id}",
        tags=["hires"],
        summary="Look at a hire",
        response_model=schemas.HireView,
        responses=documented("not-found", "invalid"),
    )
    async def get_hire(hire_id: IdPath) -> Response:
        return _ok(schemas.HireView.of(await store.hire(hire_id), clock.now()))

    @api.post(
        "/hires/{hire_id}/unlock",
        tags=["hires"],
        summary="Unlock the bike",
        response_model=schemas.HireView,
        responses=documented(*_POSTED, "not-found", "wrong-state"),
    )
    async def unlock(
        request: Request,
        hire_id: IdPath,
        key: IdempotencyKey,
        body: schemas.Nothing | None = None,  # noqa: ARG001 checked: no body and {} are the same request
        event_time: EventTime = None,
    ) -> Response:
        return await once(
            request, lambda work: unlock_bike(work, hire_id=hire_id), None, key=key, event_time=event_time
        )

    @api.post(
        "/hires/{hire_id}/return",
        tags=["hires"],
        summary="Return the bike",
        response_model=schemas.HireView,
        responses=documented(*_POSTED, "not-found", "wrong-state"),
    )
    async def bring_back(
        request: Request, hire_id: IdPath, body: schemas.Return, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        return await once(
            request,
            lambda work: return_bike(work, hire_id=hire_id, place=body.place.place(), distance_m=body.distance_m),
            body,
            key=key,
            event_time=event_time,
        )

    @api.get("/clock", tags=["clock"], summary="What time it is", response_model=schemas.ClockView)
    async def get_clock() -> Response:
        return _ok(schemas.ClockView(clock=clock.name, now=clock.now() if clock.is_set else None))

    @api.post(
        "/clock",
        tags=["clock"],
        summary="Advance the clock",
        response_model=schemas.ClockView,
        responses=documented(*_POSTED),
    )
    async def move_clock(
        request: Request,
        key: IdempotencyKey,
        body: schemas.Nothing | None = None,  # noqa: ARG001 as in unlock
        event_time: EventTime = None,
    ) -> Response:
        if event_time is None:
            code = "event-time-refused" if clock.name == "wall" else "event-time-required"
            raise ProblemError(code, "send the header Event-Time to a service that runs by the event clock")

        async def now(work: Work) -> datetime:
            return work.now

        return await once(request, now, None, key=key, event_time=event_time)


def _ok(view: BaseModel) -> Response:
    return Response(view.model_dump_json(), media_type="application/json")
