"""Routes: read the request, give the order to the writer or the question to the reader, send the answer."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar, assert_never
from uuid import uuid4

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from hailbus.clock import ServiceClock
from hailbus.fastapi import EventTime, IdempotencyKey, ProblemError, in_range, moment_of, reply_to
from hailbus.idempotency import fingerprint
from pydantic import BaseModel
from pydantic_core import to_json

from booking.adapters.http import schemas
from booking.adapters.http.guard import GUARDED, Guard, admission_of
from booking.adapters.http.problems import PROBLEMS, documented
from booking.adapters.storage.reader import Reader
from booking.adapters.storage.writer import Writer
from booking.app.cancel_ride import CancelRide
from booking.app.change_destination import ChangeDestination
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.offer_quote import OfferQuote
from booking.app.ownership import check_driver, check_id
from booking.app.permissions import ByCaller, check_sees_driver, may_see
from booking.app.pool_ride import PoolRide
from booking.app.ports import Command, Presented
from booking.app.request_ride import RequestRide
from booking.app.update_drivers import MoveClock, Update, UpdateDrivers
from booking.domain.caller import Role
from booking.domain.driver import Driver
from booking.domain.errors import NotFound, Refusal
from booking.domain.quote import Quote
from booking.domain.region import Realm
from booking.domain.ride import Ride, RideState

JSON: Final = "application/json"
RIDERS: Final = frozenset({Role.RIDER})
DRIVERS: Final = frozenset({Role.DRIVER})
FLEETS: Final = frozenset({Role.FLEET})
OPERATORS: Final = frozenset({Role.OPERATOR})
R = TypeVar("R", bound=Callable[..., Any])  # Any: a route takes what FastAPI gives it

IdPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
Limit = Annotated[int, Query(ge=1, le=500)]
After = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._:-]{1,64}$", description="`next` of the page before.")]

_POST = ("malformed", "event-time-refused", "event-time-required", "too-large", "unsupported-media-type", "invalid")
_POSTED = (*_POST, "idempotency-key-reused", "misdirected", "unavailable")


def view_of(thing: Quote | Ride | Driver | datetime) -> BaseModel:
    """Return the body that shows a thing."""
    match thing:
        case Quote():
            return schemas.QuoteView.of(thing)
        case Ride():
            return schemas.RideView.of(thing)
        case Driver():
            return schemas.DriverView.of(thing)
        case datetime():
            return schemas.ClockView(clock="event", now=thing)
        case _:
            assert_never(thing)


class Answers:
    """Presents results and refusals of one request as status and JSON, to be stored and sent."""

    def __init__(self, instance: str, status: int = 200) -> None:
        self._instance = instance
        self._status = status

    def result(self, result: Any) -> Presented:  # Any: as the port
        """Present a thing, or the results of many updates."""
        if isinstance(result, list):
            return self._status, to_json({"results": [self._one(item) for item in result]})
        view = view_of(result)
        return self._status, view.__pydantic_serializer__.to_json(view)

    def refusal(self, refusal: Exception) -> Presented:
        """Present a refusal as a problem."""
        return PROBLEMS.stored(refusal, instance=self._instance)

    def _one(self, item: Driver | Ride | Refusal) -> dict[str, object]:
        if isinstance(item, Refusal):
            body = PROBLEMS.of_error(item, instance=self._instance)
            return {"status": body["status"], "body": body}
        view = view_of(item)
        return {"status": 200, "body": view.__pydantic_serializer__.to_python(view, mode="json")}


def add_routes(
    api: APIRouter, writer: Writer, reader: Reader, clock: ServiceClock, guard: Guard, realm: Realm | None = None
) -> None:
    """Add booking's routes. Each declares the roles that may call it.

    Args:
        api: The application's own router: an included one would be searched anew for each request.
        writer: Takes orders.
        reader: Answers questions.
        clock: Says whether event times are welcome.
        guard: Stands before each route.
        realm: The region of this process, `None` where one process serves everywhere.
    """

    def route(
        method: str,
        path: str,
        callers: frozenset[Role],
        responses: dict[int | str, dict[str, Any]],  # Any: OpenAPI
        **declared: Any,  # Any: what FastAPI's own decorators take
    ) -> Callable[[R], R]:
        def add(endpoint: R) -> R:
            api.add_api_route(
                path,
                endpoint,
                methods=[method],
                responses=documented(*GUARDED) | responses if guard.is_on else responses,
                openapi_extra=guard.declare(callers),
                route_class_override=guard.route_class(callers),
                **declared,
            )
            return endpoint

        return add

    def new_id() -> str:
        return str(uuid4()) if realm is None else realm.new_id()

    def get(path: str, *, callers: frozenset[Role], **declared: Any) -> Callable[[R], R]:  # Any: as `route`
        return route("GET", path, callers, declared.pop("responses", {}), **declared)

    def post(path: str, *, callers: frozenset[Role], **declared: Any) -> Callable[[R], R]:  # Any: as `route`
        return route("POST", path, callers, declared.pop("responses", {}), **declared)

    async def order(
        request: Request,
        command: Command[Any],  # Any: each command has its own result
        body: BaseModel | None,
        *,
        key: str,
        at: datetime | None,
        status: int = 200,
    ) -> Response:
        path, admission = request.scope["path"], admission_of(request)
        content = b"" if body is None else body.__pydantic_serializer__.to_json(body)
        answer = await writer.post(
            ByCaller(caller=admission.caller, command=command),
            at=at,
            key=admission.scoped(key),
            fingerprint=fingerprint(path, content),
            presenter=Answers(path, status),
        )
        return reply_to(answer)

    # ---------------------------------------------------------------- quotes

    @post(
        "/quotes",
        callers=RIDERS,
        status_code=201,
        tags=["riders"],
        summary="Ask for a fare",
        response_model=schemas.QuoteView,
        responses=documented(*_POSTED),
    )
    async def offer_quote(
        request: Request, body: schemas.NewQuote, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = OfferQuote(
            quote_id=new_id(),
            rider_id=body.rider_id,
            pickup=body.pickup.place(),
            dropoff=body.dropoff.place(),
            passengers=body.passengers,
            simulated=body.simulated,
        )
        return await order(request, command, body, key=key, at=moment_of(event_time, clock), status=201)

    @get(
        "/quotes/{quote_id}",
        callers=RIDERS | OPERATORS,
        tags=["riders"],
        summary="Look at a quote",
        response_model=schemas.QuoteView,
        responses=documented("not-found", "invalid", "misdirected"),
    )
    async def get_quote(request: Request, quote_id: IdPath) -> Response:
        if realm is not None:
            check_id(realm, "quote", quote_id)
        quote = await reader.quote(quote_id)
        if not may_see(admission_of(request).caller, quote):
            raise NotFound("quote", quote_id)
        return _ok(schemas.QuoteView.of(quote))

    # ---------------------------------------------------------------- rides

    @post(
        "/rides",
        callers=RIDERS,
        status_code=201,
        tags=["riders"],
        summary="Accept a quote",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "quote-expired", "quote-taken", "ride-open", "payment-due"),
    )
    async def request_ride(
        request: Request, body: schemas.NewRide, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = RequestRide(
            ride_id=new_id(), quote_id=body.quote_id, seeks_partner=body.seeks_partner, simulated=body.simulated
        )
        return await order(request, command, body, key=key, at=moment_of(event_time, clock), status=201)

    @get(
        "/rides",
        callers=OPERATORS,
        tags=["riders"],
        summary="List rides, the newest request first",
        response_model=schemas.RideList,
        responses=documented("not-found", "invalid"),
    )
    async def list_rides(
        state: Annotated[list[RideState] | None, Query(max_length=8)] = None,
        ride_id: Annotated[list[schemas.Id] | None, Query(max_length=100)] = None,
        limit: Limit = 100,
        after: After = None,
    ) -> Response:
        found = await reader.rides(
            states=[one.value for one in state or ()], ride_ids=ride_id or (), limit=limit, after=after
        )
        return _ok(
            schemas.RideList.model_construct(
                rides=[schemas.RideView.of(ride) for ride in found],
                next=found[-1].ride_id if len(found) == limit else None,
            )
        )

    @get(
        "/rides/{ride_id}",
        callers=RIDERS | DRIVERS | OPERATORS,
        tags=["riders"],
        summary="Look at a ride",
        response_model=schemas.RideView,
        responses=documented("not-found", "invalid", "misdirected"),
    )
    async def get_ride(request: Request, ride_id: IdPath) -> Response:
        if realm is not None:
            check_id(realm, "ride", ride_id)
        ride = await reader.ride(ride_id)
        if not may_see(admission_of(request).caller, ride):
            raise NotFound("ride", ride_id)
        return _ok(schemas.RideView.of(ride))

    @post(
        "/rides/{ride_id}/cancel",
        callers=RIDERS | DRIVERS,
        tags=["riders"],
        summary="Cancel a ride",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "wrong-state", "not-your-ride", "no-show-too-early"),
    )
    async def cancel_ride(
        request: Request,
        ride_id: IdPath,
        body: schemas.Cancellation,
        key: IdempotencyKey,
        event_time: EventTime = None,
    ) -> Response:
        if body.by == "driver" and body.driver_id is None:
            raise ProblemError("invalid", "a driver who cancels says who it is: send driver_id")
        command = CancelRide(
            ride_id=ride_id, by=body.by, reason=body.reason, driver_id=body.driver_id, simulated=body.simulated
        )
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/rides/{ride_id}/destination",
        callers=RIDERS,
        tags=["riders"],
        summary="Go elsewhere",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "wrong-state", "ride-pooled"),
    )
    async def change_destination(
        request: Request,
        ride_id: IdPath,
        body: schemas.Destination,
        key: IdempotencyKey,
        event_time: EventTime = None,
    ) -> Response:
        command = ChangeDestination(ride_id=ride_id, dropoff=body.dropoff.place(), simulated=body.simulated)
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/rides/{ride_id}/pool",
        callers=RIDERS,
        tags=["riders"],
        summary="Share a car",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "wrong-state", "ride-pooled", "cannot-pool"),
    )
    async def pool_ride(
        request: Request, ride_id: IdPath, body: schemas.Pool, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = PoolRide(ride_id=ride_id, partner_ride_id=body.partner_ride_id, simulated=body.simulated)
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/rides/{ride_id}/arrived",
        callers=DRIVERS,
        tags=["drivers"],
        summary="Wait at the pickup",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "wrong-state", "not-your-ride"),
    )
    async def report_arrival(
        request: Request, ride_id: IdPath, body: schemas.ByDriver, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = ReportArrival(ride_id=ride_id, driver_id=body.driver_id, simulated=body.simulated)
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/rides/{ride_id}/start",
        callers=DRIVERS,
        tags=["drivers"],
        summary="Start a ride",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "wrong-state", "not-your-ride"),
    )
    async def start_ride(
        request: Request, ride_id: IdPath, body: schemas.ByDriver, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = StartRide(ride_id=ride_id, driver_id=body.driver_id, simulated=body.simulated)
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/rides/{ride_id}/complete",
        callers=DRIVERS,
        tags=["drivers"],
        summary="Complete a ride",
        response_model=schemas.RideView,
        responses=documented(*_POSTED, "not-found", "wrong-state", "not-your-ride"),
    )
    async def complete_ride(
        request: Request, ride_id: IdPath, body: schemas.Completion, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = CompleteRide(
            ride_id=ride_id,
            driver_id=body.driver_id,
            distance_m=body.distance_m,
            simulated=body.simulated,
        )
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    # ---------------------------------------------------------------- drivers

    @get(
        "/drivers",
        callers=OPERATORS,
        tags=["drivers"],
        summary="List drivers",
        response_model=schemas.DriverList,
        responses=documented("invalid"),
    )
    async def list_drivers(
        status: Annotated[list[Literal["free", "busy", "offline"]] | None, Query(max_length=3)] = None,
        limit: Limit = 100,
        after: After = None,
    ) -> Response:
        found = await reader.drivers(statuses=status or (), limit=limit, after=after)
        return _ok(
            schemas.DriverList.model_construct(
                drivers=[schemas.DriverView.of(driver) for driver in found],
                next=found[-1].driver_id if len(found) == limit else None,
            )
        )

    @get(
        "/drivers/{driver_id}",
        callers=DRIVERS | OPERATORS,
        tags=["drivers"],
        summary="Look at a driver",
        response_model=schemas.DriverView,
        responses=documented("not-found", "invalid", "misdirected"),
    )
    async def get_driver(request: Request, driver_id: IdPath) -> Response:
        check_sees_driver(admission_of(request).caller, driver_id)
        if realm is not None:
            check_driver(realm, driver_id, await reader.region_of_driver(driver_id))
        return _ok(schemas.DriverView.of(await reader.driver(driver_id)))

    @post(
        "/drivers/{driver_id}/online",
        callers=DRIVERS,
        tags=["drivers"],
        summary="Be ready for rides",
        response_model=schemas.DriverView,
        responses=documented(*_POSTED, "driver-elsewhere"),
    )
    async def go_online(
        request: Request, driver_id: IdPath, body: schemas.Online, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = GoOnline(driver_id=driver_id, position=body.position.place(), simulated=body.simulated)
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/drivers/{driver_id}/location",
        callers=DRIVERS,
        tags=["drivers"],
        summary="Be elsewhere",
        response_model=schemas.DriverView,
        responses=documented(*_POSTED, "not-found", "driver-offline"),
    )
    async def report_location(
        request: Request, driver_id: IdPath, body: schemas.Position, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        command = ReportLocation(driver_id=driver_id, position=body.position.place())
        return await order(request, command, body, key=key, at=moment_of(event_time, clock))

    @post(
        "/drivers/{driver_id}/offline",
        callers=DRIVERS,
        tags=["drivers"],
        summary="Take no more rides",
        response_model=schemas.DriverView,
        responses=documented(*_POSTED, "not-found", "driver-busy"),
    )
    async def go_offline(
        request: Request,
        driver_id: IdPath,
        key: IdempotencyKey,
        body: schemas.Nothing | None = None,  # noqa: ARG001 checked: no body and {} are the same request
        event_time: EventTime = None,
    ) -> Response:
        return await order(request, GoOffline(driver_id=driver_id), None, key=key, at=moment_of(event_time, clock))

    @post(
        "/driver-updates",
        callers=DRIVERS | FLEETS,
        tags=["drivers"],
        summary="Many drivers' updates at once",
        response_model=schemas.UpdateResults,
        responses=documented(*_POSTED),
    )
    async def update_drivers(
        request: Request, body: schemas.DriverUpdates, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        base = moment_of(event_time, clock)
        caller = admission_of(request).caller
        updates: list[tuple[ByCaller[Driver | Ride], datetime | None]] = []
        latest = base
        for update in body.updates:
            at = base
            if update.event_time is not None:
                at = in_range(update.event_time, clock)
                latest = at if latest is None else max(latest, at)
            updates.append((ByCaller(caller=caller, command=_update(update)), at))
        command = UpdateDrivers(updates=updates)
        return await order(request, command, body, key=key, at=latest)

    # ---------------------------------------------------------------- the clock, health, problems

    @get(
        "/clock",
        callers=RIDERS | DRIVERS | FLEETS | OPERATORS,
        tags=["clock"],
        summary="What time it is",
        response_model=schemas.ClockView,
    )
    async def get_clock() -> Response:
        now = clock.now() if clock.is_set else None
        return _ok(schemas.ClockView.model_construct(clock=clock.name, now=now))

    @post(
        "/clock",
        callers=OPERATORS,
        tags=["clock"],
        summary="Advance the clock",
        response_model=schemas.ClockView,
        responses=documented(*_POSTED),
    )
    async def move_clock(
        request: Request,
        key: IdempotencyKey,
        body: schemas.Nothing | None = None,  # noqa: ARG001 checked: no body and {} are the same request
        event_time: EventTime = None,
    ) -> Response:
        at = moment_of(event_time, clock)
        if at is None:
            code = "event-time-refused" if clock.name == "wall" else "event-time-required"
            raise ProblemError(code, PROBLEMS.kinds[code].advice)
        return await order(request, MoveClock(), None, key=key, at=at)


def _ok(view: BaseModel) -> Response:
    return Response(view.__pydantic_serializer__.to_json(view), media_type=JSON)


def _update(update: schemas.AnyUpdate) -> Update:
    match update:
        case schemas.OnlineUpdate():
            return GoOnline(driver_id=update.driver_id, position=update.position.place(), simulated=update.simulated)
        case schemas.LocationUpdate():
            return ReportLocation(driver_id=update.driver_id, position=update.position.place())
        case schemas.OfflineUpdate():
            return GoOffline(driver_id=update.driver_id)
        case schemas.StepUpdate(kind="arrived"):
            return ReportArrival(ride_id=update.ride_id, driver_id=update.driver_id, simulated=update.simulated)
        case schemas.StepUpdate():
            return StartRide(ride_id=update.ride_id, driver_id=update.driver_id, simulated=update.simulated)
        case schemas.CompleteUpdate():
            return CompleteRide(
                ride_id=update.ride_id,
                driver_id=update.driver_id,
                distance_m=update.distance_m,
                simulated=update.simulated,
            )
        case schemas.CancelUpdate():
            return CancelRide(
                ride_id=update.ride_id,
                by="driver",
                reason=update.reason,
                driver_id=update.driver_id,
                simulated=update.simulated,
            )
        case _:
            assert_never(update)
