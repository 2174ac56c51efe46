"""What client libraries need beside the standard library's functions, so that a seed gives one trace."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

# The first line that is logged would load it within a world, and rich, which it loads, draws random numbers then.
import structlog.dev  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator


def library_replacements() -> Iterator[tuple[Any, Any]]:
    """Yield classes that ask the C library for the time, each with its equivalent in Python."""
    for kind in ("Default", "Legacy"):
        module = sys.modules.get(f"aiokafka.record.{kind.lower()}_records")
        in_c = getattr(module, f"_{kind}RecordBatchBuilderCython", None)
        in_python = getattr(module, f"_{kind}RecordBatchBuilderPy", None)
        if in_c is not None and in_python is not None:
            yield in_c, in_python


@contextmanager
def fresh_library_state() -> Iterator[None]:
    """Reset state that libraries keep in modules, and put it back at the end."""
    producer: Any = getattr(sys.modules.get("aiokafka.producer.producer"), "AIOKafkaProducer", None)
    count = getattr(producer, "_PRODUCER_CLIENT_ID_SEQUENCE", None)  # of default client ids
    ids: list[str] | None = getattr(sys.modules.get("hailbus.envelope"), "_random_hex", None)  # drawn in advance
    kept = list(ids or ())
    if count is not None:
        producer._PRODUCER_CLIENT_ID_SEQUENCE = 0  # noqa: SLF001 - it has no other way
    if ids is not None:
        ids.clear()
    try:
        yield
    finally:
        if count is not None:
            producer._PRODUCER_CLIENT_ID_SEQUENCE = count  # noqa: SLF001 - see above
        if ids is not None:
            ids[:] = kept
