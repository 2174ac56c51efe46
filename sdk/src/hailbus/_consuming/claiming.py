"""Claims of handlers that commit in a transaction of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hailbus._consuming.sequenced import Name, Numbering, Place, Unhandled, name_of, place_of
from hailbus._consuming.work import Early
from hailbus.context import Claim, Context, Delivery
from hailbus.delivery import Done, Reject, Skip, Verdict
from hailbus.event import Event

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from hailbus.inbox import Inbox
    from hailbus.sequence import Position

__all__ = ["Claiming"]

NOT_OURS = Skip("not for this process")


class Claiming:
    """One call of a handler with a transaction of its own: gives it claims, and knows what it has stored.

    Attributes:
        is_stored: Whether the handler has stored a claim. The last one counts.
    """

    def __init__(
        self,
        inbox: Inbox,
        numbered: Numbering | None,
        deliveries: Sequence[Delivery[Event]],
        *,
        may_skip: bool,
    ) -> None:
        self._inbox = inbox
        self._numbered = numbered
        self._deliveries = deliveries
        self._may_skip = may_skip
        self.is_stored = False
        self._verdicts: Mapping[Place, Verdict | Early] | None = None

    @property
    def handled(self) -> Sequence[Delivery[Event]]:
        """The deliveries without those that stand for events without a handler, which only numbered topics have."""
        if self._numbered is None:
            return self._deliveries
        return [d for d in self._deliveries if not isinstance(d.event, Unhandled)]

    async def claim(self, tx: AsyncConnection | AsyncSession, of: Callable[[Context], bool] | None) -> Claim:
        """Claim what is new and due; see `Batch.claim`."""
        ours = [d for d in self._deliveries if of is None or of(d.ctx)]
        is_plain = of is None and self._numbered is None
        positions: Mapping[Name, Position] = {}
        if self._numbered is not None:
            positions = await self._numbered.sequences.positions(tx, [name_of(d.ctx) for d in ours])
        made = StoredClaim(
            tx,
            self._inbox,
            self._numbered,
            ours,
            positions,
            is_plain=is_plain,
            may_skip=self._may_skip,
            note=self._note,
        )
        await made.begin()
        return made

    def _note(self, verdicts: Mapping[Place, Verdict | Early] | None) -> None:
        self.is_stored, self._verdicts = True, verdicts

    def verdicts(self) -> list[Verdict | Early] | None:
        """What follows for each delivery of the call; None when all are done."""
        assert self.is_stored
        if self._verdicts is None:
            return None
        return [self._verdicts.get(place_of(d.ctx), NOT_OURS) for d in self._deliveries]


class StoredClaim:
    """What a handler applies; see `hailbus.Claim`."""

    def __init__(
        self,
        tx: AsyncConnection | AsyncSession,
        inbox: Inbox,
        numbered: Numbering | None,
        ours: Sequence[Delivery[Event]],
        positions: Mapping[Name, Position],
        *,
        is_plain: bool,
        may_skip: bool,
        note: Callable[[Mapping[Place, Verdict | Early] | None], None],
    ) -> None:
        self._tx = tx
        self._inbox = inbox
        self._numbered = numbered
        self._ours = ours
        self._positions = positions
        self._is_plain = is_plain
        """All deliveries of the call are done, unless one is refused: none is numbered, none for another process."""
        self._may_skip = may_skip
        # Told the verdicts, not the claim: the two would refer to each other, and with them a whole batch would wait
        # for the garbage collector.
        self._note = note
        self._is_stored = False
        self._refused: dict[Place, str] = {}
        self._claimed: list[Context] = []
        """Events that have a row in the inbox by this claim."""
        self._repeated: set[Place] = set()
        self._verdicts: dict[Place, Verdict | Early] = {}
        self._advanced: dict[Name, int] = {}

    async def begin(self) -> None:
        """Find out what is due, and claim that in the inbox."""
        if self._is_plain:
            due = self._ours
        else:
            self._judge()
            due = [d for d in self._ours if isinstance(self._verdicts[place_of(d.ctx)], Done)]
        fresh = await self._inbox.claim(self._tx, due)
        for delivery in due:
            if delivery.ctx.envelope.id in fresh:
                fresh.discard(delivery.ctx.envelope.id)  # an id that comes twice is applied once
                self._claimed.append(delivery.ctx)
            else:
                self._repeated.add(place_of(delivery.ctx))

    def _judge(self) -> None:
        events = [(d.event, d.ctx) for d in self._ours]
        judged: list[Verdict | Early]
        if self._numbered is not None:
            judged, self._advanced = self._numbered.judge(
                self._positions, events, may_skip=self._may_skip, refused=self._refused
            )
        else:
            judged = [
                Reject(self._refused[place]) if (place := place_of(ctx)) in self._refused else Done()
                for _, ctx in events
            ]
        self._verdicts = {place_of(d.ctx): verdict for d, verdict in zip(self._ours, judged, strict=True)}

    def __contains__(self, delivery: Delivery[Any]) -> bool:
        if self._is_plain and not self._repeated:
            return True
        place = place_of(delivery.ctx)
        return place not in self._repeated and (self._is_plain or isinstance(self._verdicts.get(place), Done))

    def refuse(self, delivery: Delivery[Any], reason: str) -> None:
        assert delivery in self, f"{delivery!r} is not in the claim, so there is nothing to refuse"
        assert not self._is_stored, "the claim is stored; refuse events before claim.store()"
        self._refused[place_of(delivery.ctx)] = reason
        self._is_plain = False
        self._judge()

    async def store(self) -> None:
        if not self._is_plain:
            applied = self._verdicts
            await self._inbox.release(
                self._tx, [ctx for ctx in self._claimed if not isinstance(applied[place_of(ctx)], Done)]
            )
        if self._numbered is not None:
            await self._numbered.sequences.advance(self._tx, self._advanced)
        self._is_stored = True
        self._note(None if self._is_plain else self._verdicts)
