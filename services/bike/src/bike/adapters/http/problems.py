"""The bike service's refusals as problem responses."""

from typing import Final

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import Response
from hailbus.fastapi import ProblemKind, Problems
from sqlalchemy.exc import DBAPIError

from bike.domain import errors

PROBLEMS: Final = Problems(
    {
        "bike-taken": ProblemKind(status=409, title="Bike is taken", advice="Choose another bike."),
        "wrong-state": ProblemKind(
            status=409, title="Not possible in this state", advice="GET the hire; its state says what can come next."
        ),
    },
    errors={
        errors.NotFound: "not-found",
        errors.BikeTaken: "bike-taken",
        errors.WrongState: "wrong-state",
    },
)
documented: Final = PROBLEMS.documented
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("bike.http")


def install(app: FastAPI) -> None:
    """Answer whatever goes wrong with a problem; what the database said is for the log alone."""
    PROBLEMS.install(app)

    @app.exception_handler(DBAPIError)
    async def database_failed(request: Request, error: DBAPIError) -> Response:
        log.warning("database_failed", path=request.url.path, error=str(error))
        detail = "the database failed; send the same request again"
        return PROBLEMS.response("unavailable", detail, instance=request.url.path)
