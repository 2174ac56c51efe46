"""Outbox and inbox in Django's own transactions. Needs the extra `django`.

::

    orders = SyncPublisher(shop, shop.publishes(OrderPlaced))

    with transaction.atomic():                                        # `hailbus relay` publishes what it commits
        Order.objects.create(id="a")
        orders.publish(OrderPlaced(order_id="a"), tx=django_tx())     # stored with the row

SQLAlchemy is installed for its SQL, and never connects: statements run on Django's connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hailbus._extras import extra

with extra("django"):
    from django.db import connections, transaction

with extra("sql"):
    from sqlalchemy import ClauseElement
    from sqlalchemy.dialects import postgresql, sqlite

from hailbus.clock import Clock, micros, utc_now
from hailbus.context import Context, Delivery
from hailbus.errors import ConfigurationError, EventIdError
from hailbus.inbox import PRUNE, PRUNED_AT_ONCE, Claims, Inbox, claim_statement
from hailbus.migrations import STEPS, statements

__all__ = ["DjangoInbox", "DjangoTransaction", "create_tables", "django_tx"]

DEFAULT = "default"
# Django's cursors take `%s` on every database.
_DIALECTS = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


class Answer:
    """What a statement returned."""

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def all(self) -> Sequence[Any]:
        """The rows."""
        return self._rows


class DjangoTransaction:
    """An open transaction of a Django connection, for the statements of outbox and inbox; see `django_tx`."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        vendor = self._connection.vendor
        if vendor not in _DIALECTS:
            message = f"database {using!r} of Django is {vendor}; outbox and inbox need sqlite or postgresql"
            raise ConfigurationError(message)
        self.dialect = _DIALECTS[vendor](paramstyle="format")

    def execute(
        self, statement: ClauseElement, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> Answer:
        """Run one statement for each set of parameters."""
        sets = [parameters or {}] if parameters is None or isinstance(parameters, Mapping) else list(parameters)
        compiled = statement.compile(
            dialect=self.dialect, column_keys=list(sets[0]) or None, for_executemany=len(sets) > 1
        )
        names = compiled.positiontup or ()  # type: ignore[attr-defined]  # of SQL compilers, which this is
        rows = [[{**compiled.params, **given}[name] for name in names] for given in sets]
        with self._connection.cursor() as cursor:
            if len(rows) > 1:
                cursor.executemany(str(compiled), rows)
                return Answer((), cursor.rowcount)
            cursor.execute(str(compiled), rows[0])
            found = cursor.fetchall() if cursor.description else ()
            return Answer(found, cursor.rowcount)


def django_tx(using: str = DEFAULT) -> DjangoTransaction:
    """The transaction that `transaction.atomic()` has opened, for `publish(..., tx=django_tx())`.

    Args:
        using: The alias of the database in Django's settings.

    Raises:
        ConfigurationError: No transaction is open, or the database is neither SQLite nor PostgreSQL.
    """
    if not connections[using].in_atomic_block:
        message = (
            f"no transaction is open on Django's database {using!r}, so the event would be stored without the state "
            "that it tells of; use `with transaction.atomic():`"
        )
        raise ConfigurationError(message)
    return DjangoTransaction(using)


def create_tables(using: str = DEFAULT) -> None:
    """Create the tables of hailbus where they are missing; also for `migrations.RunPython` in a migration of yours.

    ::

        operations = [migrations.RunPython(lambda apps, editor: create_tables(editor.connection.alias))]
    """
    connection = connections[using]
    dialect = DjangoTransaction(using).dialect.name
    with transaction.atomic(using=using), connection.cursor() as cursor:
        for step in STEPS:
            for statement in statements(dialect, step):
                cursor.execute(statement)


class DjangoInbox:
    """The inbox of one consumer in Django's database.

    ::

        def take(event: OrderPlaced, ctx: Context) -> None:
            with transaction.atomic():
                if inbox.claim([ctx]):
                    ...                                                       # apply; a repetition does not come here

    Args:
        consumer: Name of the consumer, by convention its group.
        using: The alias of the database in Django's settings.
        clock: Gives the time of the claim.
    """

    def __init__(self, consumer: str, *, using: str = DEFAULT, clock: Clock = utc_now) -> None:
        self.consumer = consumer
        self._using = using
        self._clock = clock

    @staticmethod
    def refusal_of(delivery: Delivery[Any] | Context) -> EventIdError | None:
        """Why an event cannot be claimed, None when it can; see `hailbus.Inbox`."""
        return Inbox.refusal_of(delivery)

    def claim(self, deliveries: Iterable[Delivery[Any] | Context]) -> set[str]:
        """Record events in the open transaction; the ids of those that were never applied before.

        Raises:
            EventIdError: An id or source is too long for the table or holds control characters; nothing was claimed.
            ConfigurationError: No transaction is open.
        """
        tx = django_tx(self._using)
        claims = Claims(deliveries)
        if not claims.rows:
            return set()
        found = tx.execute(claim_statement(tx.dialect.name), claims.parameters(self.consumer, self._clock()))
        return claims.fresh(found.all())

    def prune(self, keep: timedelta) -> int:
        """Forget events that were applied longer ago than this; how many."""
        old = {"consumer": self.consumer, "before": micros(self._clock() - keep), "most": PRUNED_AT_ONCE}
        pruned_count = 0
        while True:
            with transaction.atomic(using=self._using):
                count = django_tx(self._using).execute(PRUNE, old).rowcount
            pruned_count += count
            if count < PRUNED_AT_ONCE:
                return pruned_count
