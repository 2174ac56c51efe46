"""The provider's books: one request, one transaction, with its answer under its idempotency key."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from hailbus.clock import EPOCH, Clock, micros
from hailbus.database import READ_ONLY
from hailbus.idempotency import Answer, AnswerBook, StoredAnswer
from sqlalchemy import RowMapping, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from payment_provider.adapters.storage import tables
from payment_provider.domain.authorisation import Authorisation
from payment_provider.domain.errors import NotFound, OtherCurrency, Refusal
from payment_provider.domain.faults import Faults, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A movement of money, as an auditor reads it."""

    transaction_id: int
    authorisation_id: str
    reference: str
    kind: Kind
    amount_minor: int
    currency: str
    key: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a request asks for. `authorisation_id` is that of a new authorisation for `opens`."""

    kind: Kind
    authorisation_id: str
    amount_minor: int
    currency: str
    opens: bool = False
    reference: str = ""
    card: str = ""


Present = Callable[[Authorisation | Refusal], tuple[int, bytes]]
"""Makes status and JSON of a result or a refusal."""


class Books:
    """Does orders, each once per idempotency key. All of one process take turns."""

    def __init__(self, engine: AsyncEngine, *, answers: AnswerBook, clock: Clock) -> None:
        self._engine = engine
        self._answers = answers
        self._clock = clock
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Create the tables where they are missing."""
        await self._answers.create_tables()
        async with self._engine.begin() as connection:
            await connection.run_sync(tables.metadata.create_all)

    async def once(self, order: Order, *, key: str, fingerprint: str, faults: Faults, present: Present) -> Answer:
        """Do an order once per key. A refusal is an answer, too, and moves no money.

        Raises:
            KeyReusedError: The key was used for another request.
        """
        async with self._turn, self._engine.begin() as connection:
            known = (await self._answers.find(connection, [key])).get(key)
            if known is not None:
                return known.replay(fingerprint)
            try:
                status, body = present(await self._do(connection, order, key=key, faults=faults))
            except Refusal as refusal:
                status, body = present(refusal)
            stored = StoredAnswer(key=key, fingerprint=fingerprint, status=status, body=body)
            await self._answers.add(connection, [stored])
        return stored.answer()

    async def authorisation(self, authorisation_id: str) -> Authorisation:
        """Return an authorisation, or raise `NotFound`."""
        async with self._engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            return await _authorisation(connection, authorisation_id)

    async def transactions(self, *, after: int, limit: int, reference: str | None) -> Sequence[Transaction]:
        """Return movements of money in their order, from behind the id `after`."""
        table = tables.transactions
        query = select(table).where(table.c.transaction_id > after).order_by(table.c.transaction_id).limit(limit)
        if reference is not None:
            query = query.where(table.c.reference == reference)
        async with self._engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            return [_transaction_of(row) for row in (await connection.execute(query)).mappings()]

    async def _do(self, connection: AsyncConnection, order: Order, *, key: str, faults: Faults) -> Authorisation:
        if order.opens:
            faults.check(order.kind, card=order.card, key=key)
            after = Authorisation(
                authorisation_id=order.authorisation_id,
                reference=order.reference,
                card=order.card,
                currency=order.currency,
                authorised_minor=order.amount_minor,
            )
            await connection.execute(insert(tables.authorisations), asdict(after))
        else:
            before = await _authorisation(connection, order.authorisation_id, for_update=True)
            if order.currency != before.currency:
                raise OtherCurrency(before.authorisation_id, before.currency, order.currency)
            after = _changed(before, order)
            faults.check(order.kind, card=before.card, key=key)
            table = tables.authorisations
            await connection.execute(
                update(table).where(table.c.authorisation_id == after.authorisation_id).values(**asdict(after))
            )
        await connection.execute(
            insert(tables.transactions),
            {
                "authorisation_id": after.authorisation_id,
                "reference": after.reference,
                "kind": order.kind.value,
                "amount_minor": order.amount_minor,
                "currency": after.currency,
                "key": key,
                "at": micros(self._clock()),
            },
        )
        return after


def _changed(before: Authorisation, order: Order) -> Authorisation:
    match order.kind:
        case Kind.AUTHORISE:
            return before.increment(order.amount_minor)
        case Kind.CAPTURE:
            return before.capture(order.amount_minor)
        case Kind.RELEASE:
            return before.release(order.amount_minor)
        case Kind.REFUND:
            return before.refund(order.amount_minor)


async def _authorisation(
    connection: AsyncConnection, authorisation_id: str, *, for_update: bool = False
) -> Authorisation:
    query = select(tables.authorisations).where(tables.authorisations.c.authorisation_id == authorisation_id)
    row = (await connection.execute(query.with_for_update() if for_update else query)).mappings().first()
    if row is None:
        raise NotFound(authorisation_id)
    return Authorisation(**row)


def _transaction_of(row: RowMapping) -> Transaction:
    return Transaction(
        transaction_id=row["transaction_id"],
        authorisation_id=row["authorisation_id"],
        reference=row["reference"],
        kind=Kind(row["kind"]),
        amount_minor=row["amount_minor"],
        currency=row["currency"],
        key=row["key"],
        at=EPOCH + timedelta(microseconds=row["at"]),
    )
