"""Typed events over Kafka: publishers, handlers with explicit delivery semantics, outbox and inbox.

Public names are listed in `__init__.pyi`, which type checkers read. Here each is imported when it is first used:
SQLAlchemy, FastAPI and Kafka clients take long to import and are extras, and a package of events needs none of them.
"""

import ast
from importlib import import_module
from pkgutil import get_data

_MODULES = {
    alias.name: str(statement.module)
    for statement in ast.parse(get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
__all__ = sorted(_MODULES)  # noqa: PLE0605 read from the stub, so that each name is written once


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
