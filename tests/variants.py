"""Parameters with which a test is left to the slow ones: `@pytest.mark.slow_with("apache")`."""

from collections.abc import Iterable

import pytest

__all__ = ["mark_slow_variants"]


def mark_slow_variants(items: Iterable[pytest.Item]) -> None:
    """Mark each test `slow` whose parameters include one of those that its mark `slow_with` names.

    A name is one part of the id of the parameters, as `apache`, or several that follow each other, as
    `apache-postgresql`. A module may have the mark, too.
    """
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is None:
            continue
        names = [name for mark in item.iter_markers("slow_with") for name in mark.args]
        if any(f"-{name}-" in f"-{parameters.id}-" for name in names):
            item.add_marker(pytest.mark.slow)
