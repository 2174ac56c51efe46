"""The provider's refusals as problem responses."""

from typing import Final

from hailbus.fastapi import ProblemKind, Problems

from payment_provider.domain import errors

PROBLEMS: Final = Problems(
    {
        "declined": ProblemKind(
            status=402,
            title="The card was declined",
            advice="`detail` is the issuer's reason. Take a new key to retry.",
        ),
        "too-much": ProblemKind(
            status=409, title="Amount above what is left", advice="GET the authorisation, and ask for less."
        ),
        "other-currency": ProblemKind(
            status=409, title="Another currency", advice="Use the currency of the authorisation."
        ),
    },
    errors={
        errors.NotFound: "not-found",
        errors.Declined: "declined",
        errors.TooMuch: "too-much",
        errors.OtherCurrency: "other-currency",
    },
)
documented: Final = PROBLEMS.documented
