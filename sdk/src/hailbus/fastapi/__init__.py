"""What an HTTP service needs around its routes: serving, problem responses, body checks, idempotency keys, event times.

Install `hailbus[fastapi]`.
"""

from hailbus._extras import extra

with extra("fastapi"):
    import fastapi as _fastapi  # noqa: F401 says which extra is missing before a module below fails

from hailbus.fastapi.api_page import serve_api_page
from hailbus.fastapi.bodies import BodyGate
from hailbus.fastapi.dead_letters import dead_letter_router
from hailbus.fastapi.headers import EventTime, IdempotencyKey, in_range, moment_of
from hailbus.fastapi.problems import (
    COMMON_PROBLEMS,
    PROBLEM_JSON,
    FieldProblem,
    Problem,
    ProblemError,
    ProblemKind,
    Problems,
)
from hailbus.fastapi.replies import reply_to
from hailbus.fastapi.serving import listener_at, serve

__all__ = [
    "COMMON_PROBLEMS",
    "PROBLEM_JSON",
    "BodyGate",
    "EventTime",
    "FieldProblem",
    "IdempotencyKey",
    "Problem",
    "ProblemError",
    "ProblemKind",
    "Problems",
    "dead_letter_router",
    "in_range",
    "listener_at",
    "moment_of",
    "reply_to",
    "serve",
    "serve_api_page",
]
