"""Numbered topics: which events of a group are due, which are known, and which must wait for an earlier one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic_core import from_json

from hailbus._consuming.failure import Stage, StageError
from hailbus._consuming.work import Early, Route
from hailbus._transport import Received
from hailbus.codec import STRUCTURED_PREFIX
from hailbus.context import Context
from hailbus.delivery import Done, EffectivelyOnce, ParkKey, Reject, Skip, Verdict
from hailbus.errors import ConfigurationError, SequenceNumberError
from hailbus.event import Event, event_info
from hailbus.schema_id import payload_of
from hailbus.subscription import Subscription

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from hailbus.sequence import Position, Sequences

__all__ = ["Name", "Numbering", "Place", "Unhandled", "name_of", "numbered_topics", "place_of"]

NOT_HANDLED = Skip("no handler here; only its number counts")


class Unhandled(Event):
    """Stands for an event of a numbered topic that has no handler here."""

    number: int


class Numbering:
    """How a group applies the events of a topic by their numbers; topics of one handler share it.

    Attributes:
        field: The field of the events that holds the number.
        passing: The route of records that have no handler here.
        turn: Held while a handler of batches runs: the release of a parked key then waits.
    """

    def __init__(self, subscription: Subscription, sequences: Sequences) -> None:
        delivery = subscription.delivery
        assert isinstance(delivery, EffectivelyOnce)
        assert delivery.sequence is not None
        self.field = delivery.sequence
        self.first = delivery.first_number
        self.sequences = sequences
        self.turn = asyncio.Lock()
        self.passing: Route
        field = subscription.events[0].model_fields[self.field]
        self._json_name = field.serialization_alias or field.alias or self.field

    def number_of(self, event: Event) -> int:
        """The number of an event."""
        number: int = event.number if isinstance(event, Unhandled) else getattr(event, self.field)
        return number

    def unhandled(self, record: Received) -> Unhandled | None:
        """Stand in for a record that has no handler here; None when it has no number or no key."""
        if record.key is None or record.value is None:
            return None
        try:
            document = from_json(payload_of(record.value))
        except ValueError:
            return None
        if _is_structured(record) and isinstance(document, dict):
            document = document.get("data")
        number = document.get(self._json_name) if isinstance(document, dict) else None
        if type(number) is not int or self._is_too_large(number):
            return None
        return Unhandled(number=number)

    def reason(self, number: int, due: int | None) -> str:
        """Why an event is parked that came before its turn."""
        return f"{self.field} {number} came where {due} was due"

    def check(self, event: Event, record: Received) -> None:
        """Refuse an event that has no place in a sequence.

        Raises:
            StageError: It has no key, or the table cannot hold its number.
        """
        number = self.number_of(event)
        if record.key is None or self._is_too_large(number):
            raise StageError(
                Stage.CLAIM,
                SequenceNumberError(
                    field=self.field,
                    number=number,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    has_key=record.key is not None,
                ),
            )

    @staticmethod
    def _is_too_large(number: int) -> bool:
        return not -(2**63) <= number < 2**63

    async def due(self, key: bytes, topic: str) -> tuple[int | None, bool]:
        """The number that is applied next, None for any, and whether somebody has accepted that it will not come."""
        from hailbus.sequence import Position

        async with self.sequences.engine.begin() as tx:
            found = (await self.sequences.positions(tx, [(topic, key)])).get((topic, key), Position())
        return found.due(self.first), found.accepts_gap

    async def begin(self, record: Received, number: int) -> None:
        """Have a key begin with an event that waits, where any event may begin it: later ones must not overtake it."""
        if self.first is None and record.key is not None:
            await self.sequences.begin(record.topic, record.key, number)

    async def admit(
        self, tx: AsyncConnection, events: Sequence[tuple[Event, Context]], *, may_skip: bool = False
    ) -> list[Verdict | Early]:
        """Note the numbers of the events that are due, in the caller's transaction.

        Returns:
            One verdict for each: `Done` for an event that must be applied now.
        """
        positions = await self.sequences.positions(tx, [name_of(ctx) for _, ctx in events])
        verdicts, advanced = self.judge(positions, events, may_skip=may_skip)
        await self.sequences.advance(tx, advanced)
        return verdicts

    def judge(
        self,
        positions: Mapping[Name, Position],
        events: Sequence[tuple[Event, Context]],
        *,
        may_skip: bool = False,
        refused: Mapping[Place, str] | None = None,
    ) -> tuple[list[Verdict | Early], dict[Name, int]]:
        """Say which events are due, by the positions of their keys.

        Args:
            positions: Of the keys of the events.
            events: In the order in which they were read.
            may_skip: Whether the first event may pass over a gap that somebody has accepted.
            refused: Where the events are that are not applied, and why; those behind them are early.

        Returns:
            One verdict for each, `Done` for an event that must be applied now, and the numbers to note.
        """
        from hailbus.sequence import Position, Turn

        now = dict(positions)
        verdicts: list[Verdict | Early] = []
        advanced: dict[Name, int] = {}
        missing: dict[Name, int] = {}  # the numbers of refused events
        for event, ctx in events:
            name = name_of(ctx)
            position, number = now.get(name, Position()), self.number_of(event)
            reason = refused.get(place_of(ctx)) if refused else None
            match position.turn_of(number, first=self.first, may_skip=may_skip):
                case Turn.DUE if reason is not None:
                    missing[name] = number
                    verdicts.append(Reject(reason))
                case Turn.DUE if name in missing and number > missing[name]:
                    verdicts.append(Early(self.reason(number, missing[name])))
                case Turn.DUE:
                    missing.pop(name, None)
                    now[name] = Position(number)
                    advanced[name] = number
                    verdicts.append(NOT_HANDLED if isinstance(event, Unhandled) else Done())
                case Turn.STALE:
                    verdicts.append(Skip(f"{self.field} {number} was applied before"))
                case Turn.EARLY:
                    verdicts.append(Early(self.reason(number, position.due(self.first))))
        return verdicts, advanced


Name = tuple[str, bytes]
"""Topic and key."""
Place = tuple[str, int, int]
"""Topic, partition and offset."""


def name_of(ctx: Context) -> Name:
    """The sequence that an event belongs to."""
    return ctx.topic, ctx.key or b""


def place_of(ctx: Context) -> Place:
    """Where an event was read."""
    return ctx.topic, ctx.partition, ctx.offset


def numbered_topics(group: str, subscriptions: Sequence[Subscription]) -> dict[str, Numbering]:
    """The numbered topics of a group.

    Raises:
        ConfigurationError: Handlers of one topic do not agree on its sequence, or would not keep it.
    """
    by_topic: dict[str, list[Subscription]] = {}
    for subscription in subscriptions:
        for topic in dict.fromkeys(event_info(cls).topic.name for cls in subscription.events):
            by_topic.setdefault(topic, []).append(subscription)
    found: dict[str, Numbering] = {}
    of_handler: dict[int, Numbering] = {}
    for topic, readers in by_topic.items():
        if all(reader.sequence is None for reader in readers):
            continue
        first, *others = readers
        for other in others:
            if _rule_of(first) != _rule_of(other):
                message = (
                    f"group {group!r} reads {topic} by {first.name} and {other.name}, which must number it alike: give "
                    "both the same inbox, sequence, first_number and parking lot, or one of them another group"
                )
                raise ConfigurationError(message)
            if first.batch_handler is not None or other.batch_handler is not None:
                message = (
                    f"group {group!r} reads {topic} by {first.name} and {other.name}, of which one takes batches: "
                    "that keeps no order between them, so a numbered topic has one such handler and no other"
                )
                raise ConfigurationError(message)
        delivery = first.delivery
        assert isinstance(delivery, EffectivelyOnce)
        if id(first) not in of_handler:
            of_handler[id(first)] = Numbering(first, delivery.inbox.sequences)
        found[topic] = of_handler[id(first)]
    return found


def _rule_of(subscription: Subscription) -> tuple[object, ...] | None:
    delivery = subscription.delivery
    if not isinstance(delivery, EffectivelyOnce) or delivery.sequence is None:
        return None
    lot = delivery.then.lot if isinstance(delivery.then, ParkKey) else None
    return delivery.sequence, delivery.first_number, id(delivery.inbox), id(lot)


def _is_structured(record: Received) -> bool:
    return any(
        name == "content-type" and value is not None and value.startswith(STRUCTURED_PREFIX)
        for name, value in record.headers
    )
