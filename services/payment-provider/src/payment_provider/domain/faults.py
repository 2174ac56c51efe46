"""What can go wrong with the provider, to order: declines by card or by chance, latency and outages."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from payment_provider.domain.errors import Declined

INSUFFICIENT_FUNDS: Final = "insufficient_funds"
CARD_EXPIRED: Final = "card_expired"


class Kind(StrEnum):
    """What a transaction does with money."""

    AUTHORISE = "authorise"
    CAPTURE = "capture"
    RELEASE = "release"
    REFUND = "refund"


class Outage(StrEnum):
    """How the provider is away.

    Attributes:
        NONE: It is there.
        REFUSE: Requests are answered by 503 and have no effect.
        HANG: Requests get no answer for `hang_s`, then 503; they have no effect.
        LOSE_ANSWERS: Requests have their effect, and are answered by 503.
        HANG_AFTER: Requests have their effect, get no answer for `hang_s`, then 503.
    """

    NONE = "none"
    REFUSE = "refuse"
    HANG = "hang"
    LOSE_ANSWERS = "lose_answers"
    HANG_AFTER = "hang_after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults that are switched on.

    Attributes:
        decline_percent: How many of a hundred authorisations and captures are declined.
        seed: Decides with the idempotency key which: a repeated request has the same outcome, also after a restart.
        latency_ms: How long each request takes.
        outage: How the provider is away.
        hang_s: How long a request hangs.
        only: The outage hits requests of this kind only; all unless given.
    """

    decline_percent: float = 0.0
    seed: int = 1
    latency_ms: int = 0
    outage: Outage = Outage.NONE
    hang_s: float = 30.0
    only: Kind | None = None

    def outage_of(self, kind: Kind) -> Outage:
        """Return how the provider is away for requests of a kind."""
        return self.outage if self.only is None or self.only is kind else Outage.NONE

    def check(self, kind: Kind, *, card: str, key: str) -> None:
        """Let the issuer of the card decide.

        A card whose token ends with `-declined` is declined for everything; one that ends with
        `-declined-on-<kind>` for that kind only. Releases and refunds are never declined by chance.

        Raises:
            Declined: It refuses.
        """
        if card.endswith(("-declined", f"-declined-on-{kind}")):
            raise Declined(CARD_EXPIRED)
        if kind in {Kind.AUTHORISE, Kind.CAPTURE} and self.decline_percent > 0:
            digest = hashlib.sha256(f"{self.seed}/{key}".encode()).digest()
            if int.from_bytes(digest[:8]) % 10_000 < self.decline_percent * 100:
                raise Declined(INSUFFICIENT_FUNDS)
