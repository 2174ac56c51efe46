"""Booking's refusals as problem responses."""

from typing import Final

from hailbus.fastapi import ProblemKind, Problems

from booking.adapters.storage.writer import UnavailableError
from booking.domain import errors

PROBLEMS: Final = Problems(
    {
        "unauthenticated": ProblemKind(
            status=401,
            title="No valid token",
            advice="Send the header Authorization: Bearer TOKEN; `detail` says what is wrong with the token.",
        ),
        "forbidden": ProblemKind(
            status=403,
            title="Not allowed",
            advice="Send the token of the rider, driver, fleet or operator that this is for.",
        ),
        "rate-limited": ProblemKind(
            status=429, title="Too many requests", advice="Wait as long as Retry-After says, and send it again."
        ),
        "misdirected": ProblemKind(
            status=421,
            title="Of another region",
            advice="Send the request, with the same Idempotency-Key, to `address`, the process of the region `owner`.",
        ),
        "driver-elsewhere": ProblemKind(
            status=409,
            title="Driver is online in another region",
            advice="Go offline in the region in `detail`, then online in this one.",
        ),
        "wrong-state": ProblemKind(
            status=409, title="Not possible in this state", advice="GET the ride; its state says what can come next."
        ),
        "not-your-ride": ProblemKind(
            status=409, title="Ride of another driver", advice="GET the ride; it may have been redispatched."
        ),
        "no-show-too-early": ProblemKind(
            status=409,
            title="The rider may still come",
            advice="Wait at the pickup until the time in `detail`.",
        ),
        "driver-busy": ProblemKind(
            status=409, title="Driver is on a ride", advice="Complete or cancel the ride first."
        ),
        "driver-offline": ProblemKind(status=409, title="Driver is offline", advice="Go online first."),
        "ride-open": ProblemKind(
            status=409,
            title="Rider has a ride already",
            advice="Wait until the ride in `detail` has ended, or cancel it; the quote stays good until it expires.",
        ),
        "payment-due": ProblemKind(
            status=402,
            title="Rider owes money",
            advice="Put the rider's card right and have payment charge it again: POST /payments/{ride_id}/retry, with "
            "the ride in `detail`. Then request the new ride with a new Idempotency-Key.",
        ),
        "ride-pooled": ProblemKind(
            status=409,
            title="Ride is pooled",
            advice="Cancel the ride and request another one; the partner agreed to this way.",
        ),
        "cannot-pool": ProblemKind(
            status=409,
            title="Rides cannot share a driver",
            advice="`detail` says what is in the way. Ask the recommender for another ride to share, or ride alone.",
        ),
        "quote-expired": ProblemKind(status=409, title="Quote has expired", advice="Ask for a new quote."),
        "quote-taken": ProblemKind(status=409, title="Quote was accepted before", advice="Ask for a new quote."),
    },
    errors={
        errors.NotAllowed: "forbidden",
        errors.NotFound: "not-found",
        errors.Misdirected: "misdirected",
        errors.DriverElsewhere: "driver-elsewhere",
        errors.WrongState: "wrong-state",
        errors.NotYourRide: "not-your-ride",
        errors.NoShowTooEarly: "no-show-too-early",
        errors.DriverBusy: "driver-busy",
        errors.DriverOffline: "driver-offline",
        errors.RideOpen: "ride-open",
        errors.PaymentDue: "payment-due",
        errors.RidePooled: "ride-pooled",
        errors.CannotPool: "cannot-pool",
        errors.QuoteExpired: "quote-expired",
        errors.QuoteTaken: "quote-taken",
        UnavailableError: "unavailable",
    },
)
documented: Final = PROBLEMS.documented
