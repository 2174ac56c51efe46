"""The sentence for a package that is not installed: which extra brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hailbus.errors import MissingExtraError

__all__ = ["extra"]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import a package that an extra of hailbus brings.

    ::

        with extra("kafka"):
            import aiokafka

    Args:
        name: The extra.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hailbus":
            raise
        raise MissingExtraError(package=error.name.partition(".")[0], extra=name) from error
