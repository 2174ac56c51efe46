"""Refusals: the provider understood the request and does not do it. Each carries what it is about as attributes."""


class Refusal(Exception):  # noqa: N818 a refusal is an answer, not a fault
    """Base of all refusals."""


class NotFound(Refusal):
    """There is no such authorisation."""

    def __init__(self, authorisation_id: str) -> None:
        self.authorisation_id = authorisation_id
        super().__init__(f"there is no authorisation {authorisation_id!r}; create one by POST /authorisations")


class Declined(Refusal):
    """The card's issuer refused. `reason` is the issuer's."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class TooMuch(Refusal):
    """The amount is above what is left of the authorisation."""

    def __init__(self, authorisation_id: str, what: str, asked_minor: int, left_minor: int) -> None:
        self.authorisation_id = authorisation_id
        self.asked_minor = asked_minor
        self.left_minor = left_minor
        super().__init__(
            f"{asked_minor} cannot be {what} of authorisation {authorisation_id}: {left_minor} is left; ask for less"
        )


class OtherCurrency(Refusal):
    """The authorisation is in another currency."""

    def __init__(self, authorisation_id: str, currency: str, asked: str) -> None:
        self.authorisation_id = authorisation_id
        super().__init__(f"authorisation {authorisation_id} is in {currency}, not in {asked}; use its currency")
