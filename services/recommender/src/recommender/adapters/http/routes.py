"""The routes: ask for recommendations, say what was chosen, look after the service."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import h3
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from ride_events.zones import zone_at

from recommender.adapters.http.problems import documented
from recommender.app.city import MODEL, City, Option, Request
from recommender.app.serving import Served, Serving


def _utc(value: datetime) -> datetime:
    if not 1990 <= value.year <= 2100:
        raise ValueError("give a time between 1990 and 2100")
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(_utc)]
"""ISO 8601; without a zone it counts as UTC, as the city's wall clock does everywhere in the example."""


class Place(BaseModel):
    """A place in WGS-84 degrees."""

    model_config = ConfigDict(extra="forbid")

    lat: float = Field(ge=-90, le=90)
    lng: float = Field(ge=-180, le=180)


class Question(BaseModel):
    """Who wants to go, when, from where, and perhaps whereto."""

    model_config = ConfigDict(extra="forbid")

    rider_id: str = Field(min_length=1, max_length=200)
    origin: Place
    destination: Place | None = Field(default=None, description="Where known: rides to share are looked for that way.")
    time: Time | None = Field(default=None, description="When; now unless given.")
    limit: int = Field(default=5, ge=1, le=10, description="Destinations at most.")
    simulated: bool = Field(default=False, description="Marks the events of this question as simulated.")


class Choice(BaseModel):
    """What the rider took."""

    model_config = ConfigDict(extra="forbid")

    option_id: str = Field(min_length=1, max_length=40)
    ride_id: str | None = Field(default=None, max_length=200, description="The ride that came of it.")
    time: Time | None = Field(default=None, description="When; the time of the recommendation unless given.")


class OptionView(BaseModel):
    """One option. `metres`: of walk for a pickup spot."""

    option_id: str
    rank: int
    score: float
    code: str
    reason: str
    cell: str
    lat: float
    lng: float
    name: str | None = None
    zone_id: int | None = None
    ride_id: str | None = None
    metres: int | None = None


class Origin(BaseModel):
    """Where the rider is, as the city calls it."""

    cell: str
    name: str | None
    zone_id: int | None


class Answer(BaseModel):
    """Ranked options of three kinds, best first, each with its reason."""

    recommendation_id: str
    model: str
    origin: Origin
    destinations: list[OptionView]
    pooled_rides: list[OptionView]
    pickup_spots: list[OptionView]


class Chosen(BaseModel):
    """The choice that holds."""

    recommendation_id: str
    option_id: str


class ModelView(BaseModel):
    """What the service has learned."""

    model: str
    journeys: int
    open_rides: int
    served: int


_KEY_LENGTH: Final = 200
_KINDS: Final[tuple[tuple[Literal["destinations", "pooled_rides", "pickup_spots"], str], ...]] = (
    ("destinations", "destination"),
    ("pooled_rides", "pooled_ride"),
    ("pickup_spots", "pickup_spot"),
)


def _schema(model: type[BaseModel]) -> dict[str, Any]:  # Any: JSON
    """Return a model's schema with everything that it refers to in place, as OpenAPI's extras cannot refer."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:  # Any: JSON
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            return inlined(parts[name]) if name in parts else {key: inlined(value) for key, value in node.items()}
        return [inlined(item) for item in node] if isinstance(node, list) else node

    found = inlined(schema)
    assert isinstance(found, dict)
    return found


def _view(option: Option) -> dict[str, object]:
    view: dict[str, object] = {
        "option_id": option.option_id,
        "rank": option.rank,
        "score": option.score,
        "code": option.code,
        "reason": option.reason,
        "cell": option.cell,
        "lat": round(option.lat, 5),
        "lng": round(option.lng, 5),
    }
    for name in ("name", "zone_id", "ride_id", "metres"):
        value = getattr(option, name)
        if value is not None:
            view[name] = value
    return view


def _answer(served: Served) -> Response:
    request = served.request
    zone = zone_at(request.lat, request.lng)
    origin = {
        "cell": h3.latlng_to_cell(request.lat, request.lng, 8),
        "name": zone.name if zone else None,
        "zone_id": zone.zone_id if zone else None,
    }
    body: dict[str, object] = {
        "recommendation_id": served.recommendation_id,
        "model": MODEL,
        "origin": origin,
    }
    for plural, kind in _KINDS:
        body[plural] = [_view(option) for option in served.options if option.kind == kind]
    return Response(to_json(body), media_type="application/json")


def add_routes(router: APIRouter, serving: Serving, city: City, *, now: Callable[[], datetime]) -> None:
    """Add the routes to the application's own router. `now` is the time of a question without one."""

    # The busiest route by far: its body is read by pydantic in one step, which halves what FastAPI's own way costs.
    @router.post(
        "/recommendations",
        response_model=Answer,
        responses=documented("malformed", "too-large", "invalid", "unavailable"),
        summary="Recommend destinations, rides to share and pickup spots",
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": _schema(Question)}}},
            "parameters": [
                {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "required": False,
                    "description": "Repeating a question with the same key gives the same answer.",
                    "schema": {"type": "string", "maxLength": _KEY_LENGTH},
                }
            ],
        },
    )
    async def recommend(http: HttpRequest) -> Response:
        try:
            question = Question.model_validate_json(await http.body())
        except ValidationError as error:
            raise RequestValidationError(
                [{**found, "loc": ("body", *found["loc"])} for found in error.errors(include_input=False)]
            ) from error
        key = http.headers.get("idempotency-key")
        if key is not None and len(key) > _KEY_LENGTH:
            raise RequestValidationError(
                [{"type": "too_long", "loc": ("header", "Idempotency-Key"), "msg": f"at most {_KEY_LENGTH} characters"}]
            )
        to = question.destination
        request = Request(
            rider_id=question.rider_id,
            at=question.time if question.time is not None else now(),
            lat=question.origin.lat,
            lng=question.origin.lng,
            to_lat=to.lat if to else None,
            to_lng=to.lng if to else None,
            destinations=question.limit,
            simulated=question.simulated,
        )
        return _answer(await serving.recommend(request, key=key))

    @router.post(
        "/recommendations/{recommendation_id}/chosen",
        responses=documented("malformed", "not-found", "other-option-chosen", "unknown-option", "unavailable"),
        summary="Say which option the rider took",
    )
    async def choose(recommendation_id: str, choice: Choice) -> Chosen:
        await serving.choose(recommendation_id, choice.option_id, ride_id=choice.ride_id, at=choice.time)
        return Chosen(recommendation_id=recommendation_id, option_id=choice.option_id)

    @router.get("/model", summary="What the service has learned")
    async def model() -> ModelView:
        return ModelView(model=MODEL, journeys=city.journeys, open_rides=city.open_rides, served=serving.served)


__all__ = ["Answer", "Choice", "Question", "add_routes"]
