"""The recommender's refusals as problem responses."""

from typing import Final

from hailbus.fastapi import ProblemKind, Problems

from recommender.app.serving import (
    OtherOptionChosenError,
    UnavailableError,
    UnknownOptionError,
    UnknownRecommendationError,
)

BODY_LIMIT_BYTES: Final = 64 * 1024
PROBLEMS: Final = Problems(
    {
        "other-option-chosen": ProblemKind(
            status=409,
            title="Another option was chosen before",
            advice="The first choice holds; ask for new recommendations to choose anew.",
        ),
        "unknown-option": ProblemKind(
            status=422, title="Unknown option", advice="Choose an option_id of this recommendation."
        ),
    },
    errors={
        UnknownRecommendationError: "not-found",
        UnknownOptionError: "unknown-option",
        OtherOptionChosenError: "other-option-chosen",
        UnavailableError: "unavailable",
    },
)
documented: Final = PROBLEMS.documented
