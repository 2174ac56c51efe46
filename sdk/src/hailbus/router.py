"""Handlers and publishers that are declared in modules of their own, before there is a service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from hailbus._transport import Start
from hailbus.delivery import Promise
from hailbus.errors import ConfigurationError
from hailbus.event import ContentMode, Event
from hailbus.injection import event_classes
from hailbus.publisher import Publisher
from hailbus.registration import Registrar, Registration, checked_delivery

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from hailbus.service import Service

__all__ = ["Router"]

E = TypeVar("E", bound=Event)


class Router(Registrar):
    """Handlers and publishers of one module, for `svc.include(router)`.

    ::

        # shop/payments.py
        router = Router(group="payments")
        paid = router.publishes(OrderPaid)

        @router.on
        async def take_money(event: OrderPlaced) -> None:
            await paid.publish(OrderPaid(order_id=event.order_id))

        # shop/main.py
        svc = Service("shop")
        svc.include(payments.router)

    What a handler does not say its router says; what the router does not say `include` says, and then the service.

    Args:
        group: Consumer group of the handlers.
        delivery: Their promise.
        start: Where a new group begins.
    """

    def __init__(
        self, *, group: str | None = None, delivery: Promise | None = None, start: Start | None = None
    ) -> None:
        self._group = group
        self._delivery = checked_delivery(delivery, where="Router(...)")
        self._start = start
        self._registrations: list[Registration] = []
        self._publishers: list[LatePublisher] = []

    def _register(self, registration: Registration) -> None:
        self._registrations.append(registration)

    @overload
    def publishes(self, events: TypeForm[E], /, *, content_mode: ContentMode | None = None) -> Publisher[E]: ...
    @overload
    def publishes(
        self, events: Iterable[type[Event]], /, *, content_mode: ContentMode | None = None
    ) -> Publisher[Event]: ...
    def publishes(self, events: Any, /, *, content_mode: ContentMode | None = None) -> Publisher[Any]:
        """Declare what the including service publishes; see `Service.publishes`.

        The publisher works once the router is included and its service runs.
        """
        publisher = LatePublisher(event_classes(events, call="publishes(...)"), content_mode)
        self._publishers.append(publisher)
        return publisher

    def include(
        self,
        router: Router,
        *,
        group: str | None = None,
        delivery: Promise | None = None,
        start: Start | None = None,
    ) -> None:
        """Take over the handlers and publishers of another router; the arguments are defaults for its handlers."""
        if router is self:
            raise ConfigurationError("a router cannot include itself")
        self._registrations += router.registrations(group=group, delivery=delivery, start=start)
        self._publishers += router.publishers

    @property
    def publishers(self) -> tuple[LatePublisher, ...]:
        """The publishers that wait for a service."""
        return tuple(self._publishers)

    def registrations(
        self, *, group: str | None = None, delivery: Promise | None = None, start: Start | None = None
    ) -> list[Registration]:
        """The handlers, with this router's defaults, then the given ones, in place of what they leave open."""
        checked_delivery(delivery, where="include(...)")
        return [
            registration.with_defaults(delivery=self._delivery, group=self._group, start=self._start).with_defaults(
                delivery=delivery, group=group, start=start
            )
            for registration in self._registrations
        ]


class _UnboundPublisherError(ConfigurationError, AttributeError):
    """A publisher is used that has no service; an `AttributeError` for code that asks whether an attribute exists."""


class LatePublisher(Publisher[Any]):
    """A publisher that is declared before its service is known.

    Until it is bound it has none of a publisher's attributes but its events, and says so when one is asked for.
    """

    def __init__(self, events: tuple[type[Event], ...], content_mode: ContentMode | None) -> None:
        self.events = events
        self._own_content_mode = content_mode
        self._bound_to: Service | None = None

    def bind(self, service: Service) -> None:
        """Publish through this service from now on.

        Raises:
            ConfigurationError: Another service that runs uses it.
        """
        before = self._bound_to
        if before is not None and before is not service and before.is_running:
            message = f"a router's publisher belongs to service {before.name}, which runs; make a router per service"
            raise ConfigurationError(message)
        self._bound_to = service
        self.__dict__.update(service.publishes(self.events, content_mode=self._own_content_mode).__dict__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        message = "this publisher was declared by a router that no service includes; call svc.include(router)"
        raise _UnboundPublisherError(message)
