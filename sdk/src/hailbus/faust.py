"""A bridge to faust: typed topics and agents over the same events. Needs `faust-streaming` installed.

::

    app = faust.App("surge", broker="kafka://127.0.0.1:9092")
    rides = TypedTopic(app, CATALOGUE, RideRequested, RideCompleted)

    @app.agent(rides.topic)
    async def demand(stream):
        async for delivery in rides.events(stream):          # Delivery[RideRequested | RideCompleted]
            table[delivery.event.pickup_cell] += 1

    surge = TypedSender(app, "/surge", SurgeUpdated)
    await surge.send(SurgeUpdated(...), cause=delivery.ctx)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from hailbus._transport import Received
from hailbus.catalogue import Catalogue
from hailbus.clock import Clock, utc_now
from hailbus.codec import decode, encode, envelope_for
from hailbus.context import Context, Delivery
from hailbus.envelope import Envelope
from hailbus.errors import ConfigurationError, ContractError, NotInContractError, UnknownEventError
from hailbus.event import Event, event_info
from hailbus.partitioner import Murmur2
from hailbus.plain import adopted_by

__all__ = ["TypedSender", "TypedTopic", "record_of"]

log = logging.getLogger("hailbus.faust")
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaustRecord:
    """The raw record behind a faust event."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


OnError = Callable[[Context, ContractError], Any]


def record_of(event: Any) -> FaustRecord:  # Any: a faust Event; faust is untyped
    """The raw record behind a faust event."""
    message = event.message
    headers = message.headers or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return FaustRecord(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp=round((message.timestamp or 0) * 1000),  # faust has seconds
        timestamp_type=message.timestamp_type or 0,
        key=message.key,
        value=message.value,
        headers=tuple((name, value if isinstance(value, bytes) else str(value).encode()) for name, value in pairs),
    )


class TypedTopic(Generic[E]):
    """A faust topic of raw bytes, read as typed events.

    Args:
        app: The faust app.
        catalogue: All events of the published language.
        events: Classes to hand out; all must live on one topic. Other types on it are passed over.
        on_error: Told of records that cannot be decoded; they are logged anyway and never end the agent.

    Raises:
        ConfigurationError: The classes live on different topics.
    """

    def __init__(self, app: Any, catalogue: Catalogue, *events: type[E], on_error: OnError | None = None) -> None:
        names = {event_info(cls).topic.name for cls in events}
        if len(names) != 1:
            message = f"a faust topic carries events of one topic, not of {sorted(names) or 'none'}"
            raise ConfigurationError(message)
        info = event_info(events[0])
        self.topic: Any = app.topic(
            info.topic.name, partitions=info.topic.partitions, key_type=bytes, value_type=bytes, value_serializer="raw"
        )
        """For `@app.agent(typed.topic)`."""
        self._wanted = tuple(events)
        self._catalogue = catalogue | Catalogue.of(*events)
        self._on_error = on_error
        self.undecodable_count = 0
        """Records that could not be decoded since the start."""

    def decode(self, event: Any) -> Delivery[E] | None:
        """One faust event as a typed delivery; None for a type that is not wanted, a tombstone, or a broken record."""
        record: Received = adopted_by(record_of(event), self._catalogue)
        if record.value is None:
            return None
        ctx = Context(record)
        try:
            found, _ = decode(record, self._catalogue)
        except UnknownEventError:
            return None
        except ContractError as error:
            self.undecodable_count += 1
            log.warning("record_passed_over: %s-%d@%d: %s", record.topic, record.partition, record.offset, error)
            if self._on_error is not None:
                self._on_error(ctx, error)
            return None
        return Delivery(found, ctx) if isinstance(found, self._wanted) else None

    async def events(self, stream: Any) -> AsyncIterator[Delivery[E]]:
        """The typed events of an agent's stream. Acknowledgement stays faust's: after the loop body."""
        async for event in stream.events():
            delivery = self.decode(event)
            if delivery is not None:
                yield delivery


class TypedSender(Generic[E]):
    """Sends typed events from a faust app, with the same envelope and partitioner as every other publisher."""

    def __init__(self, app: Any, source: str, *events: type[E], clock: Clock = utc_now) -> None:
        self._app = app
        self._source = source
        self._clock = clock
        self._partitioner = Murmur2()
        self._topics: dict[str, Any] = {}
        self._events = events
        for cls in events:
            topic = event_info(cls).topic
            self._topics.setdefault(
                topic.name,
                app.topic(topic.name, partitions=topic.partitions, key_serializer="raw", value_serializer="raw"),
            )

    async def send(
        self,
        event: E,
        *,
        id: str | None = None,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
    ) -> Any:
        """Send one event; returns faust's future of the record's metadata.

        Raises:
            NotInContractError: The sender did not declare the event's class.
        """
        if not isinstance(event, self._events):
            raise NotInContractError(event=type(event), allowed=self._events)
        envelope = envelope_for(
            event,
            source=self._source,
            id=id,
            time=time if time is not None else self._clock(),
            cause=cause.envelope if isinstance(cause, Context) else cause,
        )
        key, value, headers = encode(event, envelope)
        topic = event_info(event).topic
        return await self._topics[topic.name].send(
            key=key,
            value=value,
            headers=headers,
            partition=None if key is None else self._partitioner(topic.name, key, topic.partitions),
        )
