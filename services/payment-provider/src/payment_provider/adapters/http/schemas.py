"""Bodies of requests and responses."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from payment_provider.adapters.storage.books import Transaction
from payment_provider.domain.authorisation import Authorisation
from payment_provider.domain.faults import Faults, Kind, Outage

Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class Amount(BaseModel):
    """An amount in the smallest unit of a currency: 1250 USD minor units are 12.50 dollars."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount_minor: int = Field(gt=0, lt=2**53)
    currency: str = Field(pattern=r"^[A-Z]{3}$")


class NewAuthorisation(BaseModel):
    """Reserve an amount on a card. `reference` is the merchant's own id, shown in the list of transactions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    card: Token
    amount: Amount
    reference: Token


class Movement(BaseModel):
    """Reserve more, charge or free a part of an authorisation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount: Amount


class NewRefund(BaseModel):
    """Pay back a part of what was charged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    authorisation_id: Id
    amount: Amount


class AuthorisationView(BaseModel):
    """An authorisation. Amounts are minor units of `currency`."""

    authorisation_id: str
    reference: str
    currency: str
    authorised_minor: int
    captured_minor: int
    released_minor: int
    refunded_minor: int

    @classmethod
    def of(cls, authorisation: Authorisation) -> "AuthorisationView":
        """Show an authorisation."""
        return cls(
            authorisation_id=authorisation.authorisation_id,
            reference=authorisation.reference,
            currency=authorisation.currency,
            authorised_minor=authorisation.authorised_minor,
            captured_minor=authorisation.captured_minor,
            released_minor=authorisation.released_minor,
            refunded_minor=authorisation.refunded_minor,
        )


class TransactionView(BaseModel):
    """A movement of money."""

    transaction_id: int
    authorisation_id: str
    reference: str
    kind: Kind
    amount_minor: int
    currency: str
    idempotency_key: str
    at: datetime

    @classmethod
    def of(cls, transaction: Transaction) -> "TransactionView":
        """Show a movement."""
        return cls(
            transaction_id=transaction.transaction_id,
            authorisation_id=transaction.authorisation_id,
            reference=transaction.reference,
            kind=transaction.kind,
            amount_minor=transaction.amount_minor,
            currency=transaction.currency,
            idempotency_key=transaction.key,
            at=transaction.at,
        )


class TransactionList(BaseModel):
    """A page of movements. `next` is the `after` of the next page, null on the last one."""

    transactions: list[TransactionView]
    next: int | None


class FaultsView(BaseModel):
    """The faults that are switched on; a field that is left out of a request keeps its value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decline_percent: float = Field(default=0.0, ge=0, le=100)
    latency_ms: int = Field(default=0, ge=0, le=60_000)
    outage: Outage = Outage.NONE
    hang_s: float = Field(default=30.0, ge=0, le=600)
    only: Kind | None = None

    @classmethod
    def of(cls, faults: Faults) -> "FaultsView":
        """Show the faults."""
        return cls(
            decline_percent=faults.decline_percent,
            latency_ms=faults.latency_ms,
            outage=faults.outage,
            hang_s=faults.hang_s,
            only=faults.only,
        )
