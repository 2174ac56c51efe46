"""How handlers are registered: `on` and `on_batch`, which a service and a router share."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    overload,
)

from hailbus._transport import Start
from hailbus.context import Batch
from hailbus.delivery import Promise, Verdict
from hailbus.errors import ConfigurationError
from hailbus.event import Event, is_event
from hailbus.injection import HandlerSignature, event_classes
from hailbus.upcasting import newest

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["EventBatchHandler", "EventHandler", "Handles", "HandlesBatches", "Registrar", "Registration"]

E = TypeVar("E", bound=Event)
P = ParamSpec("P")
# What a handler returns: a coroutine function an awaitable, a plain function the verdict itself.
Result = TypeVar("Result", bound="Awaitable[Verdict | None] | Verdict | None")
BatchResult = TypeVar("BatchResult", bound="Awaitable[Sequence[Verdict] | None] | Sequence[Verdict] | None")

EventHandler = Callable[Concatenate[E, ...], Awaitable[Verdict | None] | Verdict | None]
"""A handler of single events. After the event come the context and dependencies, in any order; both are optional."""
EventBatchHandler = Callable[Concatenate[Batch[E], ...], Awaitable[Sequence[Verdict] | None] | Sequence[Verdict] | None]
"""A handler of batches. After the batch come dependencies."""


class Handles(Protocol[E]):
    """Registers a handler whose first parameter takes each of the events that were named, and returns it."""

    def __call__(self, handler: Callable[Concatenate[E, P], Result], /) -> Callable[Concatenate[E, P], Result]:
        """Register."""
        ...


class HandlesBatches(Protocol[E]):
    """Registers a handler of batches of the events that were named, and returns it."""

    def __call__(
        self, handler: Callable[Concatenate[Batch[E], P], BatchResult], /
    ) -> Callable[Concatenate[Batch[E], P], BatchResult]:
        """Register."""
        ...


class HandlesAnnotated(Protocol):
    """Registers a handler for the events that the annotation of its first parameter names, and returns it."""

    def __call__(self, handler: Callable[Concatenate[E, P], Result], /) -> Callable[Concatenate[E, P], Result]:
        """Register."""
        ...


class HandlesAnnotatedBatches(Protocol):
    """Registers a handler for the events that its annotation `Batch[...]` names, and returns it."""

    def __call__(
        self, handler: Callable[Concatenate[Batch[E], P], BatchResult], /
    ) -> Callable[Concatenate[Batch[E], P], BatchResult]:
        """Register."""
        ...


class OnOptions(TypedDict, total=False):
    """Keyword arguments of `on`, for its overloads."""

    delivery: Promise | None
    group: str | None
    start: Start | None
    deadline: timedelta | None


class OnBatchOptions(OnOptions, total=False):
    """Keyword arguments of `on_batch`, for its overloads."""

    max_items: int
    max_wait: timedelta
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A handler as it was declared; what is None is left to the router, then to the service."""

    signature: HandlerSignature
    events: tuple[type[Event], ...]
    is_batch: bool
    delivery: Promise | None
    group: str | None
    start: Start | None
    max_items: int = 500
    max_wait: timedelta = timedelta(milliseconds=100)
    max_bytes: int = 16 * 1024 * 1024
    deadline: timedelta | None = None

    def __post_init__(self) -> None:
        checked_delivery(self.delivery, where=f"handler {self.signature.name}")
        if self.group is not None and (not isinstance(self.group, str) or not self.group):
            message = f"handler {self.signature.name}: group={self.group!r} is not the name of a consumer group"
            raise ConfigurationError(message)

    def with_defaults(self, *, delivery: Promise | None, group: str | None, start: Start | None) -> Registration:
        """The same with something in place of each None."""
        return replace(
            self,
            delivery=self.delivery if self.delivery is not None else delivery,
            group=self.group if self.group is not None else group,
            start=self.start if self.start is not None else start,
        )


def checked_delivery(delivery: Promise | None, *, where: str) -> Promise | None:
    """The promise, if it is one.

    Raises:
        ConfigurationError: It is the class of a promise, or something else.
    """
    given: object = delivery
    if given is None or isinstance(given, get_args(Promise)):
        return delivery
    reason = "is no promise; give AtLeastOnce()"
    if isinstance(given, type) and issubclass(given, get_args(Promise)):
        reason = f"is a class; call it: {given.__name__}(...)"
    message = f"{where}: delivery={given!r} {reason}"
    raise ConfigurationError(message)


def newest_of(cls: type[Event]) -> type[Event]:
    """The newest version of an event class; the class itself when it is no event, which is refused elsewhere."""
    return newest(cls) if is_event(cls) else cls


class Registrar(ABC):
    """Something that handlers are registered with."""

    @abstractmethod
    def _register(self, registration: Registration) -> None:
        """Take a handler."""

    @overload
    def on(self, events: TypeForm[E], /, **options: Unpack[OnOptions]) -> Handles[E]: ...
    @overload
    def on(self, events: Iterable[type[E]], /, **options: Unpack[OnOptions]) -> Handles[E]: ...
    @overload
    def on(self, handler: Callable[Concatenate[E, P], Result], /) -> Callable[Concatenate[E, P], Result]: ...
    @overload
    def on(self, **options: Unpack[OnOptions]) -> HandlesAnnotated: ...
    def on(
        self,
        *events: Any,
        delivery: Promise | None = None,
        group: str | None = None,
        start: Start | None = None,
        deadline: timedelta | None = None,
    ) -> Any:
        """Handle events one by one.

        ::

            @svc.on                                         # the event that the annotation names
            async def take(event: OrderPlaced) -> None: ...

            @svc.on(OrderPlaced | OrderPaid, group="audit")
            async def note(event: OrderPlaced | OrderPaid, ctx: Context) -> Verdict | None: ...

        The handler is a coroutine function, or a plain function: that one runs in a thread of the service's pool,
        `Service(handler_threads=...)` at once. After the event it may take the context and dependencies, as in
        `Annotated[Session, Depends(session)]`: see `hailbus.injection`.

        Args:
            events: An event class, a union of them, or a catalogue; without it the handler's annotation says. One
                handler per class and group.
            delivery: The promise; at least once by default.
            group: Consumer group; the service's name by default. Groups are independent of each other.
            start: Where a new group begins; `earliest` by default, so that nothing is missed.
            deadline: A call that takes longer is cancelled and counts as failed; none by default. A plain function
                cannot be cancelled: its thread runs on, and what it returns is ignored.
        """
        return self._registering(events, Event, delivery=delivery, group=group, start=start, deadline=deadline)

    @overload
    def on_batch(self, events: TypeForm[E], /, **options: Unpack[OnBatchOptions]) -> HandlesBatches[E]: ...
    @overload
    def on_batch(self, events: Iterable[type[E]], /, **options: Unpack[OnBatchOptions]) -> HandlesBatches[E]: ...
    @overload
    def on_batch(
        self, handler: Callable[Concatenate[Batch[E], P], BatchResult], /
    ) -> Callable[Concatenate[Batch[E], P], BatchResult]: ...
    @overload
    def on_batch(self, **options: Unpack[OnBatchOptions]) -> HandlesAnnotatedBatches: ...
    def on_batch(
        self,
        *events: Any,
        delivery: Promise | None = None,
        group: str | None = None,
        start: Start | None = None,
        deadline: timedelta | None = None,
        max_items: int = 500,
        max_wait: timedelta = timedelta(milliseconds=100),
        max_bytes: int = 16 * 1024 * 1024,
    ) -> Any:
        """Handle events in batches, one batch at a time: `async def handler(batch: Batch[A]) -> list[Verdict] | None`.

        A batch is handed over when it has `max_items` or `max_bytes`, or `max_wait` after its first event. None settles
        all of it; a list has one verdict per item. When the handler raises, the batch is retried as the promise says,
        then split, so that one bad event becomes a dead letter and its neighbours do not.

        Args:
            events: As for `on`.
            delivery: As for `on`.
            group: As for `on`.
            start: As for `on`.
            deadline: As for `on`; of one call.
            max_items: Events of a batch at most.
            max_wait: How long the first event of a batch waits for others.
            max_bytes: A batch with so many bytes is handed over at once.
        """
        return self._registering(
            events,
            Batch,
            delivery=delivery,
            group=group,
            start=start,
            deadline=deadline,
            max_items=max_items,
            max_wait=max_wait,
            max_bytes=max_bytes,
        )

    def _registering(self, given: tuple[Any, ...], takes: type, **options: Any) -> Any:
        """What `on` and `on_batch` return: the handler when they are given one, else a decorator."""
        call = "on_batch" if takes is Batch else "on"
        # Annotations may name what is local to the function that registers the handler.
        frame = inspect.currentframe()
        caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
        names = caller.f_locals if caller is not None else {}
        if len(given) > 1:
            union = " | ".join(getattr(cls, "__name__", repr(cls)) for cls in given)
            message = f"{call}(...) takes several events as a union: {call}({union})"
            raise ConfigurationError(message)

        def register(handler: Any, *, classes: tuple[type[Event], ...] | None = None) -> Any:
            signature = HandlerSignature(handler, takes=takes, names=names)
            if classes is None:
                classes = signature.events
            else:
                signature.check_takes(classes)
            self._register(Registration(signature=signature, events=classes, is_batch=takes is Batch, **options))
            return handler

        if not given:
            return register
        (events,) = given
        if callable(events) and not isinstance(events, type | Iterable) and get_origin(events) is None:
            return register(events)
        classes = event_classes(events, call=f"{call}(...)")
        if isinstance(events, Iterable):  # a catalogue holds old versions too, which arrive as the newest one
            classes = tuple(cls for cls in classes if newest_of(cls) not in classes or newest_of(cls) is cls)
        return partial(register, classes=classes)
