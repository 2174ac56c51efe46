"""Which handler a record goes to, and its typed event. Decodes; calls no handler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hailbus._consuming.failure import Stage, StageError, StopReading, is_fatal
from hailbus._consuming.work import Item, Route, Usual
from hailbus._transport import Received
from hailbus.catalogue import Catalogue
from hailbus.codec import STRUCTURED_PREFIX, decode, decode_value
from hailbus.context import Context
from hailbus.envelope import CONTENT_TYPE
from hailbus.errors import ContractError, UnknownEventError, UnsupportedVersionError
from hailbus.event import Event
from hailbus.subscription import SubscriberSettings
from hailbus.upcasting import newest, upcasted

if TYPE_CHECKING:
    from hailbus.registry.schemas import Schemas

__all__ = ["JSON_HEADER", "Router"]

log = logging.getLogger("hailbus.subscriber")
JSON_HEADER = ("content-type", CONTENT_TYPE)
MOST_ROUTES = 10_000
"""Types and versions remembered: a flood of made-up types must not eat the memory."""


class Router:
    """Finds routes by headers, remembers them, and decodes values.

    Args:
        by_class: The route of each event class that has a handler here.
        catalogue: All classes that this process can read.
        settings: What happens to unknown types and versions.
        schemas: Names records by their schema ids, where a registry is used.
    """

    def __init__(
        self,
        by_class: Mapping[type[Event], Route],
        *,
        catalogue: Catalogue,
        settings: SubscriberSettings,
        schemas: Schemas | None,
    ) -> None:
        self._by_class = by_class
        self._catalogue = catalogue
        self._settings = settings
        self._schemas = schemas
        self._routes: dict[tuple[bytes | None, bytes | None], Route] = {}
        self.decode_first = Route(None, None)
        """The route of records whose headers do not name their type."""
        self.usual = Usual(None, None, self.decode_first)
        self.partition_ordered: set[str] = set()
        """Topics with a handler that wants the order of the partition, not of the key."""

    def route_of(self, record: Received) -> Route:
        """Where a record goes, by its headers alone.

        Raises:
            StopReading: Its type or version is unknown, and the policy is `fail`.
        """
        headers = record.headers
        kind: bytes | None = None
        schema: bytes | None = None
        if (
            len(headers) > 6
            and headers[6] == JSON_HEADER
            and headers[3][0] == "ce_type"
            and headers[5][0] == "ce_dataschema"
        ):
            # The order in which hailbus writes them: most records by far.
            kind = headers[3][1]
            schema = headers[5][1]
            known = self._routes.get((kind, schema))
            if known is not None:
                self.usual = Usual(headers[3], headers[5], known)
                return known
        else:
            for name, value in headers:
                if name == "ce_type":
                    kind = value
                elif name == "ce_dataschema":
                    schema = value
                elif name == "content-type" and value is not None and value.startswith(STRUCTURED_PREFIX):
                    kind = schema = None
                    break
        if kind is None:
            return self.decode_first
        route = self._routes.get((kind, schema))
        return route if route is not None else self._find(kind, schema, record)

    def _find(self, kind: bytes | None, schema: bytes | None, record: Received) -> Route:
        """Find the route of a type and version for the first time, and remember it."""
        try:
            envelope = Context(record).envelope
        except Exception as error:  # noqa: BLE001 a header of this record, not of its type
            return Route(None, None, error=error)
        try:
            cls = self._catalogue.lookup(envelope.type, envelope.version, topic=record.topic)
        except (UnknownEventError, UnsupportedVersionError) as error:
            policy = self._policy_for(error)
            route = Route(None, None, error=error if policy == "dead-letter" else None)
            log.log(
                logging.INFO if policy == "skip" else logging.WARNING, "unknown_event: %s, policy %s", error, policy
            )
        else:
            route = self._by_class.get(newest(cls)) or Route(None, None)
            if route.subscription is not None and cls is not route.cls:
                route = Route(route.subscription, cls, batch=route.batch, numbered=route.numbered)
        if len(self._routes) < MOST_ROUTES:
            self._routes[kind, schema] = route
        return route

    def _policy_for(self, error: ContractError) -> str:
        if isinstance(error, UnknownEventError):
            policy = self._settings.unknown_event
        elif isinstance(error, UnsupportedVersionError):
            policy = self._settings.unknown_version
        else:
            return "dead-letter"
        if policy == "fail":
            raise StopReading(error)
        return policy

    async def resolve(self, item: Item) -> Route | None:
        """The route of a record whose headers did not give it one; None when no handler here wants it.

        Raises:
            StageError: It is no event, or the registry was asked and did not answer.
            StopReading: Its type or version is unknown, and the policy is `fail`.
        """
        if item.route.error is not None:
            raise StageError(Stage.DECODE, item.route.error)
        if self._schemas is not None:
            try:
                item.record = await self._schemas.identified(item.record, self._catalogue)
            except Exception as error:
                raise StageError(Stage.IDENTIFY, error) from error
        try:
            envelope = Context(item.record).envelope
            cls = self._catalogue.lookup(envelope.type, envelope.version, topic=item.record.topic)
        except ContractError as error:
            if self._policy_for(error) == "skip":
                return None
            raise StageError(Stage.DECODE, error) from error
        except Exception as error:
            raise StageError(Stage.DECODE, error) from error
        route = self._by_class.get(newest(cls))
        if route is not None and route.cls is not cls:
            route = Route(route.subscription, cls, batch=route.batch, numbered=route.numbered)
        return route

    def route_for(self, record: Received) -> Route | None:
        """The route of a record that was parked before; None when no handler here wants it any more.

        Raises:
            StageError: It can no longer be read.
        """
        try:
            envelope = Context(record).envelope
            cls = self._catalogue.lookup(envelope.type, envelope.version, topic=record.topic)
        except Exception as error:
            raise StageError(Stage.DECODE, error) from error
        return self._by_class.get(newest(cls))

    def event_of(self, route: Route, record: Received, *, structured: bool) -> Event | None:
        """The typed event in its newest version; None for a tombstone, which has nothing to hand to a handler.

        Raises:
            StageError: It cannot be decoded, validated or upcast.
        """
        assert route.cls is not None
        value = record.value
        if value is None:
            return None
        try:
            if structured:
                return decode(record, self._catalogue)[0]
            event = decode_value(route.cls, value, topic=record.topic)
            return event if route.is_newest else upcasted(event)
        except BaseException as error:
            # Whatever it is: a validator may raise a KeyError, an upcaster a CancelledError.
            if is_fatal(error):
                raise
            raise StageError(Stage.DECODE, error) from error
