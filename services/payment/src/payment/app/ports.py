"""What the saga needs of the world."""

from dataclasses import dataclass
from typing import Protocol

from payment.domain.payment import StepKind


class ProviderAwayError(Exception):
    """The provider did not answer, or said that it cannot: whether the request had an effect is unknown.

    The same request with the same key is safe to repeat.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request to the provider.

    Attributes:
        key: The idempotency key: one payment and step has one, so a repeated request has one effect.
        kind: What is asked for.
        amount_minor: In minor units of `currency`.
        card: The token of the rider's card.
        reference: The ride, as the provider's list of transactions shows it.
        authorisation_id: The provider's; None for the first authorisation.
    """

    key: str
    kind: StepKind
    amount_minor: int
    currency: str
    card: str
    reference: str
    authorisation_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the provider did: `declined` is its reason where it did nothing."""

    authorisation_id: str | None
    declined: str | None = None


class Provider(Protocol):
    """Moves money."""

    async def carry_out(self, order: Order) -> Outcome:
        """Do what is ordered, once per key.

        Raises:
            ProviderAwayError: Nobody knows whether it was done; repeat the order.
        """
        ...
