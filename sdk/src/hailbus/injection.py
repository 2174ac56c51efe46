"""A handler's parameters: the event or batch, its context, and dependencies as FastAPI has them.

::

    async def session(ctx: Context) -> AsyncIterator[AsyncSession]:
        async with sessions.begin() as db:
            yield db

    @svc.on
    async def take(event: OrderPlaced, db: Annotated[AsyncSession, Depends(session)]) -> None: ...

    svc.dependency_overrides[session] = fake_session        # in tests

The first parameter is the event, or the batch. All others are filled in by annotation, in any order: `Context`, or a
dependency. A handler that is a plain function (`def`) runs in a thread of the service's pool.

A dependency is a function, a coroutine function or a generator of either kind; the code after its `yield` runs when
the handler has ended, and sees the handler's exception. Its parameters are the event, the context, the batch (each by
annotation) or dependencies again. Within one event each is made once, unless `Depends(..., use_cache=False)`.
Dependencies that are plain functions run where the handler runs: in its thread pool if it is one itself, else in the
event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hailbus._threads import HandlerThreads
from hailbus.context import Batch, Context
from hailbus.errors import ConfigurationError
from hailbus.event import Event, is_event

__all__ = ["HandlerSignature", "Overrides", "event_classes"]

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
"""Replacements of dependencies."""

_P = inspect.Parameter


@dataclass(frozen=True, slots=True)
class _Given:
    """A parameter that the service fills: the event, its context, or the batch."""

    kind: type


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A parameter that a dependency fills."""

    call: Callable[..., Any]
    use_cache: bool


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """An annotation that names something which cannot be found."""

    text: str
    error: Exception


_Source = _Given | _Wanted
_Parameters = tuple[tuple[str, _Source], ...]


def event_classes(form: Any, *, call: str) -> tuple[type[Event], ...]:  # Any: a type form, see below
    """The event classes that a caller names.

    Args:
        form: A class, a union `A | B`, or an iterable of classes, as a catalogue is.
        call: The call that it was given to, for the error.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(form, type) and get_origin(form) is None:
        return (form,)
    if (value := getattr(form, "__value__", None)) is not None:  # type OrderEvents = OrderPlaced | OrderPaid
        return event_classes(value, call=call)
    if get_origin(form) in {Union, UnionType}:
        return tuple(dict.fromkeys(cls for part in get_args(form) for cls in event_classes(part, call=call)))
    if get_origin(form) is Annotated:
        return event_classes(get_args(form)[0], call=call)
    if isinstance(form, Iterable) and not isinstance(form, str):
        return tuple(dict.fromkeys(cls for part in form for cls in event_classes(part, call=call)))
    message = f"{call} takes an event class, a union of them like OrderPlaced | OrderPaid, or a catalogue; not {form!r}"
    raise ConfigurationError(message)


class HandlerSignature:
    """A handler and what its parameters ask for.

    Args:
        handler: A function, a coroutine function, a bound method or an object that can be called.
        takes: `Event` for a handler of single events, `Batch` for one of batches.
        names: The local names of the code that registers it: annotations may use them.

    Raises:
        ConfigurationError: The handler cannot be called with an event, or a parameter says neither what it is nor
            where its value comes from.
    """

    def __init__(self, handler: Callable[..., Any], *, takes: type, names: Mapping[str, Any]) -> None:
        self.handler = handler
        self.name = _name(handler)
        self._takes = takes
        self._word = "batch" if takes is Batch else "event"
        if inspect.isclass(handler) or not callable(handler):
            what = "a class" if inspect.isclass(handler) else repr(handler)
            raise self._misfit(f"is {what}; register a function, as in `async def take(event: OrderPlaced) -> None`")
        function = _function(handler)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise self._misfit("contains `yield`; a handler returns its verdict, or None")
        self._is_native = _is_async(handler)
        self.is_async = self._is_native or inspect.iscoroutinefunction(inspect.unwrap(function))
        """Whether it runs in the event loop, not in a thread."""
        self._first: Any = _P.empty
        self._positional: list[_Source] = []
        self._named: list[tuple[str, _Source]] = []
        try:
            found = inspect.signature(handler)
        except (TypeError, ValueError):  # a callable that tells nothing about itself gets all there is
            self._positional = [_Given(Context)] if takes is Event else []
        else:
            self._read(list(found.parameters.values()), function, names)
        sources = [*self._positional, *(source for _, source in self._named)]
        self._has_dependencies = any(isinstance(source, _Wanted) for source in sources)
        for source in sources:
            self._check(source)

    def _misfit(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"handler {self.name} {reason}")

    def _read(
        self, parameters: list[inspect.Parameter], function: Callable[..., Any], names: Mapping[str, Any]
    ) -> None:
        expected = "a Batch" if self._takes is Batch else "the event"
        if not parameters or parameters[0].kind in {_P.KEYWORD_ONLY, _P.VAR_KEYWORD}:
            kind = f"takes {parameters[0].name!r} by keyword only" if parameters else "takes no parameter"
            raise self._misfit(f"{kind}; its first parameter is {expected}, by position")
        first, *others = parameters
        if first.kind is _P.VAR_POSITIONAL:
            self._positional = [_Given(Context)] if self._takes is Event else []
        else:
            self._first = _hint(first, function, names)
            self._check_first(first.name)
        may_be_context = self._takes is Event and not self._positional
        for index, parameter in enumerate(others):
            if parameter.kind is _P.VAR_KEYWORD:
                continue
            if parameter.kind is _P.VAR_POSITIONAL:
                if may_be_context and len(self._positional) == index:
                    self._positional.append(_Given(Context))
                continue
            source = self._source_of(parameter, function, names, may_be_context=may_be_context and index == 0)
            if source is None:
                continue
            if parameter.kind is not _P.KEYWORD_ONLY and not self._named and len(self._positional) == index:
                self._positional.append(source)
            else:
                self._named.append((parameter.name, source))

    def _source_of(
        self,
        parameter: inspect.Parameter,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        may_be_context: bool,
    ) -> _Source | None:
        hint = _hint(parameter, function, names)
        is_open = hint in (_P.empty, Any, object) or isinstance(hint, _Unreadable)
        source = _source(None if is_open else hint, parameter.default)
        if source is not None:
            return source
        if parameter.default is not _P.empty:
            return None
        if may_be_context and is_open:  # the second parameter of a handler whose annotations say nothing
            return _Given(Context)
        if isinstance(hint, _Unreadable):
            raise self._misfit(
                f"has a parameter {parameter.name!r} whose annotation {hint.text!r} cannot be read ({hint.error}); "
                "declare what it names at module level"
            )
        raise self._misfit(
            f"has a parameter {parameter.name!r} that is neither an event, a Context, a Batch nor a dependency; "
            "annotate it like Annotated[Session, Depends(session)]"
        )

    def _check_first(self, name: str) -> None:
        """Refuse a first parameter that is the wrong one of event, context and batch."""
        if self._first is _P.empty or isinstance(self._first, _Unreadable):
            return
        source = _source(self._first, _P.empty)
        found = source.kind if isinstance(source, _Given) else None
        if found in {None, self._takes}:
            return
        advice = {
            Event: "register it with `on`, or annotate it Batch[...]",
            Batch: "register it with `on_batch`",
            Context: f"the {self._word} comes first, the context after it",
        }
        raise self._misfit(f"has {_text(self._first)} as its first parameter {name!r}; {advice[found or Context]}")

    def _check(self, source: _Source) -> None:
        """Refuse a parameter, of the handler or of a dependency, that nothing can fill."""
        if isinstance(source, _Wanted):
            for _, inner in _parameters(source.call):
                self._check(inner)
        elif (source.kind is Batch) != (self._takes is Batch):
            raise self._misfit(
                f"asks for a {source.kind.__name__}, which a handler of {self._word}{_plural(self._word)}"
            )

    @property
    def events(self) -> tuple[type[Event], ...]:
        """The event classes that the annotation of the first parameter names.

        Raises:
            ConfigurationError: There is no annotation, it cannot be read, or it names something else.
        """
        example = "batch: Batch[OrderPlaced]" if self._takes is Batch else "event: OrderPlaced"
        hint = self._first
        if hint is _P.empty:
            raise self._misfit(f"says no event; annotate its first parameter like `{example}`")
        if isinstance(hint, _Unreadable):
            raise self._misfit(
                f"has an annotation {hint.text!r} that cannot be read ({hint.error}); declare what it names at module "
                "level, or name the event classes in the decorator"
            )
        inner = get_args(hint)[0] if get_origin(hint) is Batch else hint
        parts = event_classes(inner, call=f"the first parameter of handler {self.name}") if hint is not Batch else ()
        for part in parts:
            if not is_event(part):
                raise self._misfit(
                    f"handles {_text(part)}, which is no event with a type=; annotate the events themselves, as in "
                    f"`{example}`, or name them in the decorator"
                )
        if not parts:
            raise self._misfit(f"says no event; annotate its first parameter like `{example}`")
        return parts

    def check_takes(self, events: Sequence[type[Event]]) -> None:
        """Refuse events that the annotation of the first parameter excludes.

        Raises:
            ConfigurationError: Which event, and what the handler is annotated with.
        """
        hint = self._first
        if hint is _P.empty or isinstance(hint, _Unreadable):
            return
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        if self._takes is Batch:
            hint = (get_args(hint) or (Any,))[0] if get_origin(hint) is Batch or hint is Batch else hint
        parts = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
        if any(part is Any or not isinstance(part, type) or _is_protocol(part) for part in parts):
            return  # says nothing about classes
        for cls in events:
            if not issubclass(cls, tuple(parts)):
                raise self._misfit(
                    f"is registered for {cls.__name__}, but its first parameter takes {_text(self._first)}; expected "
                    f"{cls.__name__} or a base class of it"
                )

    def bind(self, overrides: Overrides, threads: HandlerThreads) -> Callable[..., Awaitable[Any]]:
        """The handler as an awaitable function of event and context, or of the batch alone.

        Args:
            overrides: Looked up at each call.
            threads: Where a plain function runs.
        """
        handler, positional, named = self.handler, tuple(self._positional), tuple(self._named)
        if not self._has_dependencies:
            return self._bind_plain(threads)
        pool = None if self.is_async else threads

        async def with_dependencies(*arguments: Any, is_abandoned: Callable[[], bool] = bool) -> Any:
            values = {_kind(argument): argument for argument in arguments}
            async with AsyncExitStack() as stack:
                scope = _Scope(values, overrides, stack, pool)
                args = [arguments[0], *[await scope.value(source) for source in positional]]
                kwargs = await scope.resolve(named)
                if pool is None:
                    result = handler(*args, **kwargs)
                    return await result if inspect.isawaitable(result) else result
                result = await pool.run(handler, *args, **kwargs)
                if is_abandoned():  # the dependencies end as after a failure: what they hold is rolled back
                    raise asyncio.CancelledError
                return result

        if pool is None:
            return with_dependencies

        async def in_thread(*arguments: Any) -> Any:
            return await threads.outlive(lambda is_abandoned: with_dependencies(*arguments, is_abandoned=is_abandoned))

        return in_thread

    def _bind_plain(self, threads: HandlerThreads) -> Callable[..., Awaitable[Any]]:
        """Without dependencies: a coroutine function of exactly the given arguments is called as it is."""
        handler = self.handler
        # What is left to fill are the event, which comes first anyway, and the context.
        order = [source.kind for source in self._positional if isinstance(source, _Given)]
        named = [(name, source.kind) for name, source in self._named if isinstance(source, _Given)]
        if self._is_native and not named and order == ([Context] if self._takes is Event else []):
            return handler
        if self._is_native and not named and not order:

            def without_context(event: Any, _ctx: Context) -> Awaitable[Any]:
                found: Awaitable[Any] = handler(event)
                return found

            return without_context
        is_async = self.is_async

        async def call(*given: Any) -> Any:
            values = {Context: given[-1], self._takes: given[0]}
            args = (given[0], *(values[kind] for kind in order))
            kwargs = {name: values[kind] for name, kind in named}
            if not is_async:
                return await threads.run(handler, *args, **kwargs)
            result = handler(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return call


def _plural(word: str) -> str:
    return "es has none of" if word == "batch" else "s has none of"


def _name(handler: Any) -> str:  # Any: whatever was registered
    while isinstance(handler, partial):
        handler = handler.func
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return str(name).replace("<locals>.", "")


def _function(handler: Any) -> Callable[..., Any]:  # Any: whatever can be called
    """The function behind a partial, a bound method or an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    if not inspect.isroutine(handler):
        handler = type(handler).__call__
    found: Callable[..., Any] = getattr(handler, "__func__", handler)
    return found


def _is_async(handler: Any) -> bool:  # Any: whatever can be called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(_function(handler))


def _is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def _text(hint: Any) -> str:  # Any: an annotation
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _hint(parameter: inspect.Parameter, function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """A parameter's annotation as a value; `_Unreadable` when it names something that cannot be found."""
    hint = parameter.annotation
    if hint is _P.empty:
        return hint
    inner = inspect.unwrap(function)
    space = dict(names)
    if inspect.isfunction(inner):
        with suppress(ValueError):  # a name that its function has not bound yet
            space |= {
                name: cell.cell_contents
                for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
            }
    try:
        holder = SimpleNamespace(__annotations__={"it": hint})
        return get_type_hints(holder, getattr(inner, "__globals__", {}), space, include_extras=True)["it"]
    except Exception as error:  # noqa: BLE001 an annotation is an expression, and may raise anything
        return _Unreadable(str(hint), error)


def _kind(argument: object) -> type:
    return next(kind for kind in (Event, Context, Batch) if isinstance(argument, kind))


@lru_cache(maxsize=1024)
def _parameters(call: Callable[..., Any]) -> _Parameters:
    """The parameters of a dependency."""
    name = getattr(call, "__qualname__", repr(call))
    target = call.__init__ if inspect.isclass(call) else call
    try:
        hints = get_type_hints(target, include_extras=True)
    except NameError as error:
        message = f"the annotations of {name} cannot be read: {error}; declare what they name at module level"
        raise ConfigurationError(message) from error
    found: list[tuple[str, _Source]] = []
    for parameter in inspect.signature(call).parameters.values():
        source = _source(hints.get(parameter.name), parameter.default)
        if source is not None:
            found.append((parameter.name, source))
        elif parameter.default is parameter.empty and parameter.kind not in {_P.VAR_POSITIONAL, _P.VAR_KEYWORD}:
            message = (
                f"dependency {name} has a parameter {parameter.name!r} that is neither an event, a Context, a Batch "
                "nor a dependency; annotate it like Annotated[Session, Depends(session)]"
            )
            raise ConfigurationError(message)
    return tuple(found)


def _source(hint: Any, default: Any) -> _Source | None:
    params = sys.modules.get("fastapi.params")  # a program that has not imported FastAPI has no Depends(...)
    marks = [default, *(get_args(hint)[1:] if get_origin(hint) is Annotated else ())]
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    for mark in marks if params is not None else ():
        if isinstance(mark, params.Depends):  # type: ignore[union-attr]  # checked in the line above
            call = mark.dependency if mark.dependency is not None else bare
            return _Wanted(call, mark.use_cache)
    if isinstance(bare, TypeVar):
        bare = bare.__bound__
    parts = [bare] if get_origin(bare) is Batch else get_args(bare) or [bare]
    kinds = [get_origin(part) or part for part in parts]
    for kind in (Event, Context, Batch):
        if all(isinstance(part, type) and issubclass(part, kind) for part in kinds):
            return _Given(kind)
    return None


class _Scope:
    """The dependencies of one event.

    Args:
        values: The event and its context, or the batch.
        overrides: Replacements of dependencies.
        stack: Closes the dependencies that are generators.
        threads: Where plain functions run; None calls them in the event loop.
    """

    def __init__(
        self,
        values: Mapping[type, object],
        overrides: Overrides,
        stack: AsyncExitStack,
        threads: HandlerThreads | None,
    ) -> None:
        self._values = values
        self._overrides = overrides
        self._stack = stack
        self._threads = threads
        self._made: dict[Callable[..., Any], Any] = {}

    async def resolve(self, parameters: _Parameters) -> dict[str, Any]:
        """Values for parameters."""
        return {name: await self.value(source) for name, source in parameters}

    async def value(self, source: _Source) -> Any:
        """The value for one parameter."""
        if isinstance(source, _Wanted):
            return await self._make(source)
        if source.kind not in self._values:  # an override asks for more than the dependency that it replaces
            message = f"a dependency asks for a {source.kind.__name__}, which a handler of batches has none of"
            raise ConfigurationError(message)
        return self._values[source.kind]

    async def _make(self, wanted: _Wanted) -> Any:
        if wanted.use_cache and wanted.call in self._made:
            return self._made[wanted.call]
        call = self._overrides.get(wanted.call, wanted.call)
        arguments = await self.resolve(_parameters(call))
        if inspect.isasyncgenfunction(call):
            value = await self._stack.enter_async_context(asynccontextmanager(call)(**arguments))
        elif inspect.isgeneratorfunction(call):
            value = await self._enter(contextmanager(call)(**arguments))
        elif self._threads is not None and not _is_async(call):
            value = await self._threads.run(call, **arguments)
        else:
            value = call(**arguments)
            if inspect.isawaitable(value):
                value = await value
        if wanted.use_cache:
            self._made[wanted.call] = value
        return value

    async def _enter(self, manager: Any) -> Any:  # Any: a context manager of the dependency's own type
        if self._threads is None:
            return self._stack.enter_context(manager)
        threads = self._threads
        value = await threads.run(manager.__enter__)

        async def leave(kind: Any, error: Any, trace: Any) -> bool:
            return bool(await threads.run(manager.__exit__, kind, error, trace))

        self._stack.push_async_exit(leave)
        return value
