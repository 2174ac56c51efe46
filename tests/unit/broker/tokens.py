"""Requests as the tests of coordinators name them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.protocol.errors import ErrorCode


class Token(str):
    """A request, known by its name. A test reads the responses in outcomes, so that nobody answers it."""

    __slots__ = ()
    _numbers: Iterator[int] = count()

    @classmethod
    def new(cls) -> Self:
        """Make one that differs from all others."""
        return cls(f"request {next(cls._numbers)}")

    def respond(self, message: object, /) -> None:
        """See `coordinators.outcome.Token`."""
        raise AssertionError(self, message)

    def respond_error(self, code: ErrorCode, /) -> None:
        """See `coordinators.outcome.Token`."""
        raise AssertionError(self, code)
