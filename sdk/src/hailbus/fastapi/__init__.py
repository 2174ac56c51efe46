"""What an HTTP service needs around its routes: serving, problem responses, body checks, idempotency keys, event times.

Importing it needs FastAPI only; `serve` needs uvicorn and httptools as well: install `hailbus[service]`.
"""

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
from hailbus.fastapi.serving import serve

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
    "moment_of",
    "reply_to",
    "serve",
]
