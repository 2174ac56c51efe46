"""An authorisation: money that is reserved on a card, then charged or freed. Amounts are minor units (cents)."""

from dataclasses import dataclass, replace

from payment_provider.domain.errors import TooMuch


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorisation:
    """Money reserved on one card. `held_minor + captured_minor + released_minor == authorised_minor`, always."""

    authorisation_id: str
    reference: str
    card: str
    currency: str
    authorised_minor: int
    captured_minor: int = 0
    released_minor: int = 0
    refunded_minor: int = 0

    @property
    def held_minor(self) -> int:
        """What is reserved and neither charged nor freed."""
        return self.authorised_minor - self.captured_minor - self.released_minor

    def increment(self, amount_minor: int) -> "Authorisation":
        """Reserve more."""
        return replace(self, authorised_minor=self.authorised_minor + amount_minor)

    def capture(self, amount_minor: int) -> "Authorisation":
        """Charge a part of what is reserved.

        Raises:
            TooMuch: Less is reserved.
        """
        self._check("captured", amount_minor, self.held_minor)
        return replace(self, captured_minor=self.captured_minor + amount_minor)

    def release(self, amount_minor: int) -> "Authorisation":
        """Free a part of what is reserved.

        Raises:
            TooMuch: Less is reserved.
        """
        self._check("released", amount_minor, self.held_minor)
        return replace(self, released_minor=self.released_minor + amount_minor)

    def refund(self, amount_minor: int) -> "Authorisation":
        """Pay back a part of what was charged.

        Raises:
            TooMuch: Less was charged, or it was paid back already.
        """
        self._check("refunded", amount_minor, self.captured_minor - self.refunded_minor)
        return replace(self, refunded_minor=self.refunded_minor + amount_minor)

    def _check(self, what: str, asked_minor: int, left_minor: int) -> None:
        if asked_minor > left_minor:
            raise TooMuch(self.authorisation_id, what, asked_minor, left_minor)
