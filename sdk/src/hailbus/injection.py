"""Dependencies of handlers, as FastAPI has them: `Annotated[Session, Depends(session)]`, scoped to one event.

::

    async def session(ctx: Context) -> AsyncIterator[AsyncSession]:
        async with sessions.begin() as db:
            yield db

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context, db: Annotated[AsyncSession, Depends(session)]) -> None: ...

    svc.dependency_overrides[session] = fake_session        # in tests

A dependency is a function, a coroutine function or a generator of either kind; what stands after its `yield` runs when
the handler has ended, and sees the handler's exception. Its parameters are the event, the context, the batch (each by
annotation) or dependencies again. Within one event each is made once, unless `Depends(..., use_cache=False)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from hailbus.context import Batch, Context
from hailbus.errors import ConfigurationError
from hailbus.event import Event

__all__ = ["Overrides", "injected"]

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
"""What stands in for which dependency."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A parameter that the service fills: the event, its context, or the batch."""

    kind: type


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A parameter that a dependency fills."""

    call: Callable[..., Any]
    use_cache: bool


_Parameters = tuple[tuple[str, _Given | _Wanted], ...]


def injected(
    handler: Callable[..., Awaitable[Any]], overrides: Overrides, *, given: int
) -> Callable[..., Awaitable[Any]]:
    """The handler as a function of its first parameters alone; itself when it has no dependencies.

    Args:
        handler: A handler of events (`given` is 2: event and context) or of batches (1).
        overrides: Looked at whenever the handler is called.
        given: How many parameters the service fills by position.

    Raises:
        ConfigurationError: A parameter says neither what it is nor where it comes from.
    """
    try:
        names = list(inspect.signature(handler).parameters)
    except (TypeError, ValueError):  # a callable that tells nothing about itself
        return handler
    if len(names) <= given:
        return handler
    parameters = tuple(found for found in _parameters(handler) if found[0] in names[given:])
    for _, source in parameters:
        _check(source)

    @wraps(handler)
    async def with_dependencies(*arguments: Any) -> Any:
        values = {_kind(argument): argument for argument in arguments}
        async with AsyncExitStack() as stack:
            scope = _Scope(values, overrides, stack)
            return await handler(*arguments, **await scope.resolve(parameters))

    return with_dependencies


def _kind(argument: object) -> type:
    return next(kind for kind in (Event, Context, Batch) if isinstance(argument, kind))


def _check(source: _Given | _Wanted) -> None:
    if isinstance(source, _Wanted):
        for _, inner in _parameters(source.call):
            _check(inner)


@lru_cache(maxsize=1024)
def _parameters(call: Callable[..., Any]) -> _Parameters:
    name = getattr(call, "__qualname__", repr(call))
    target = call.__init__ if inspect.isclass(call) else call
    try:
        hints = get_type_hints(target, include_extras=True)
    except NameError as error:
        message = f"the annotations of {name} cannot be read: {error}; declare what they name at module level"
        raise ConfigurationError(message) from error
    found: list[tuple[str, _Given | _Wanted]] = []
    for parameter in inspect.signature(call).parameters.values():
        hint = hints.get(parameter.name)
        source = _source(hint, parameter.default)
        if source is not None:
            found.append((parameter.name, source))
        elif parameter.default is parameter.empty:
            message = (
                f"{name} has a parameter {parameter.name!r} that is neither an event, a Context, a Batch nor a "
                "dependency; annotate it like Annotated[Session, Depends(session)]"
            )
            raise ConfigurationError(message)
    return tuple(found)


def _source(hint: Any, default: Any) -> _Given | _Wanted | None:
    from fastapi.params import Depends  # whoever has no dependencies need not load FastAPI

    marks = [default, *(get_args(hint)[1:] if get_origin(hint) is Annotated else ())]
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    for mark in marks:
        if isinstance(mark, Depends):
            call = mark.dependency if mark.dependency is not None else bare
            return _Wanted(call, mark.use_cache)
    parts = [bare] if get_origin(bare) is Batch else get_args(bare) or [bare]
    kinds = [get_origin(part) or part for part in parts]
    for kind in (Event, Context, Batch):
        if all(isinstance(part, type) and issubclass(part, kind) for part in kinds):
            return _Given(kind)
    return None


class _Scope:
    """The dependencies of one event."""

    def __init__(self, values: Mapping[type, object], overrides: Overrides, stack: AsyncExitStack) -> None:
        self._values = values
        self._overrides = overrides
        self._stack = stack
        self._made: dict[Callable[..., Any], Any] = {}

    async def resolve(self, parameters: _Parameters) -> dict[str, Any]:
        """Values for parameters."""
        found: dict[str, Any] = {}
        for name, source in parameters:
            if isinstance(source, _Given):
                if source.kind not in self._values:
                    message = f"parameter {name!r} is a {source.kind.__name__}, which a handler of batches has none of"
                    raise ConfigurationError(message)
                found[name] = self._values[source.kind]
            else:
                found[name] = await self._make(source)
        return found

    async def _make(self, wanted: _Wanted) -> Any:
        if wanted.use_cache and wanted.call in self._made:
            return self._made[wanted.call]
        call = self._overrides.get(wanted.call, wanted.call)
        arguments = await self.resolve(_parameters(call))
        if inspect.isasyncgenfunction(call):
            value = await self._stack.enter_async_context(asynccontextmanager(call)(**arguments))
        elif inspect.isgeneratorfunction(call):
            value = self._stack.enter_context(contextmanager(call)(**arguments))
        else:
            value = call(**arguments)
            if inspect.isawaitable(value):
                value = await value
        if wanted.use_cache:
            self._made[wanted.call] = value
        return value
