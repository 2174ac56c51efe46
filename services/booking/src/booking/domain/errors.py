"""Refusals: understood, but not possible now. Each carries its facts as attributes."""

from datetime import datetime


class Refusal(Exception):  # noqa: N818 a refusal is an answer, not a fault
    """Base of all refusals."""


class NotFound(Refusal):
    """There is no such thing. `kind` is `quote`, `ride` or `driver`."""

    def __init__(self, kind: str, key: str) -> None:
        self.kind = kind
        self.key = key
        super().__init__(f"there is no {kind} {key!r}")


class Misdirected(Refusal):
    """Another region owns this; its process is at `address`."""

    def __init__(self, what: str, *, owner: str, address: str) -> None:
        self.what = what
        self.owner = owner
        self.address = address
        self.problem_members = {"owner": owner, "address": address}
        super().__init__(f"{what} belongs to region {owner}: send the request to {address}")


class DriverElsewhere(Refusal):
    """The driver is online in another region, or about to be."""

    def __init__(self, driver_id: str, region: str) -> None:
        self.driver_id = driver_id
        self.region = region
        super().__init__(f"driver {driver_id} is online in region {region}: go offline there first")


class NotAllowed(Refusal):
    """The caller may not do this; the message says for whom it is."""


class QuoteExpired(Refusal):
    """The quote was good until `expired_at`."""

    def __init__(self, quote_id: str, expired_at: datetime) -> None:
        self.quote_id = quote_id
        self.expired_at = expired_at
        super().__init__(f"quote {quote_id} was good until {expired_at.isoformat()}; ask for a new one")


class QuoteTaken(Refusal):
    """The quote was accepted before."""

    def __init__(self, quote_id: str, ride_id: str | None) -> None:
        self.quote_id = quote_id
        self.ride_id = ride_id
        super().__init__(f"quote {quote_id} was accepted before, as ride {ride_id}; ask for a new one")


class RideOpen(Refusal):
    """The rider has a ride that has not ended."""

    def __init__(self, rider_id: str, ride_id: str) -> None:
        self.rider_id = rider_id
        self.ride_id = ride_id
        super().__init__(f"rider {rider_id} has ride {ride_id}, which has not ended; complete or cancel it first")


class PaymentDue(Refusal):
    """The rider owes money for a ride that has ended."""

    def __init__(self, rider_id: str, ride_id: str, owed_minor: int) -> None:
        self.rider_id = rider_id
        self.ride_id = ride_id
        self.owed_minor = owed_minor
        super().__init__(
            f"rider {rider_id} owes {owed_minor / 100:.2f} USD for ride {ride_id}; pay that first, then request a ride"
        )


class WrongState(Refusal):
    """The ride's state does not allow the step."""

    def __init__(self, ride_id: str, state: str, step: str) -> None:
        self.ride_id = ride_id
        self.state = state
        self.step = step
        super().__init__(f"ride {ride_id} is {state}: it cannot {step.replace('_', ' ')} now")


class RidePooled(Refusal):
    """The ride is pooled, which the step does not allow."""

    def __init__(self, ride_id: str, partner_ride_id: str) -> None:
        self.ride_id = ride_id
        self.partner_ride_id = partner_ride_id
        super().__init__(
            f"ride {ride_id} is pooled with ride {partner_ride_id}: it can change neither destination nor partner; "
            "cancel it and request another one"
        )


class CannotPool(Refusal):
    """Two rides cannot share a driver; `why` says what is in the way."""

    def __init__(self, ride_id: str, partner_ride_id: str, why: str) -> None:
        self.ride_id = ride_id
        self.partner_ride_id = partner_ride_id
        self.why = why
        super().__init__(f"ride {ride_id} cannot be pooled with ride {partner_ride_id}: {why}")


class NotYourRide(Refusal):
    """The ride belongs to another driver, or to none."""

    def __init__(self, ride_id: str, driver_id: str) -> None:
        self.ride_id = ride_id
        self.driver_id = driver_id
        super().__init__(f"ride {ride_id} is not with driver {driver_id}")


class NoShowTooEarly(Refusal):
    """The rider may still come until `waits_until`."""

    def __init__(self, ride_id: str, waits_until: datetime) -> None:
        self.ride_id = ride_id
        self.waits_until = waits_until
        super().__init__(f"the rider of ride {ride_id} has until {waits_until.isoformat()} to come")


class DriverBusy(Refusal):
    """The driver has a ride, so cannot go offline."""

    def __init__(self, driver_id: str, ride_id: str | None) -> None:
        self.driver_id = driver_id
        self.ride_id = ride_id
        super().__init__(f"driver {driver_id} is on ride {ride_id}; complete or cancel it first")


class DriverOffline(Refusal):
    """The driver is offline, so has no position to report."""

    def __init__(self, driver_id: str) -> None:
        self.driver_id = driver_id
        super().__init__(f"driver {driver_id} is offline; go online first")
