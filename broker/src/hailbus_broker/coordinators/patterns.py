"""Regular expressions of clients: RE2's, as in Apache Kafka. No pattern takes more time than the text is long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH: Final = 1_000
MAX_COMPILED_BYTES: Final = 1 << 20


class PatternError(ValueError):
    """A pattern is none, or too big."""


def whole_match(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether the pattern matches the whole of a text.

    Raises:
        PatternError: With the reason.
    """
    # Loaded when the first client asks: most brokers never need it.
    import re2

    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"it is longer than {MAX_LENGTH} characters")
    options = re2.Options()
    options.max_mem = MAX_COMPILED_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise PatternError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error
    return lambda text: compiled.fullmatch(text) is not None
