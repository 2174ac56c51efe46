"""The provider's tables. Times are microseconds since the epoch."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table

metadata: Final = MetaData()
_ID = String(64)
_KEY = String(128)

authorisations: Final = Table(
    "provider_authorisations",
    metadata,
    Column("authorisation_id", _ID, primary_key=True),
    Column("reference", String(128), nullable=False),
    Column("card", String(128), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("authorised_minor", BigInteger, nullable=False),
    Column("captured_minor", BigInteger, nullable=False),
    Column("released_minor", BigInteger, nullable=False),
    Column("refunded_minor", BigInteger, nullable=False),
)
transactions: Final = Table(
    "provider_transactions",
    metadata,
    # SQLite counts only in a column that is INTEGER exactly.
    Column("transaction_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("authorisation_id", _ID, nullable=False),
    Column("reference", String(128), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("key", _KEY, nullable=False, unique=True),
    Column("at", BigInteger, nullable=False),
)
Index("provider_transactions_reference", transactions.c.reference)
