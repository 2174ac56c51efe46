"""Which names a topic may have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.names import INTERNAL_TOPICS
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME_LENGTH: Final = 249
"""The longest directory name is 255, and `-` and the partition number follow the topic's name."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Refuse a name that no directory could have.

    Raises:
        ApiError: INVALID_TOPIC_EXCEPTION with the rule that it breaks.
    """
    if not name:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed")
    if name in {".", ".."}:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > MAX_NAME_LENGTH:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}",
        )
    if not _LEGAL_NAME.fullmatch(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        )


def is_protected(name: str) -> bool:
    """Whether clients may not delete or write a topic."""
    return name in INTERNAL_TOPICS


def check_collision(name: str, others: Iterable[str]) -> None:
    """Refuse a name whose metrics could not be told from those of another topic.

    Raises:
        ApiError: INVALID_TOPIC_EXCEPTION with the name of the other topic.
    """
    # Metric names write `_` for `.`: two topics that differ only in this have the same metrics.
    flat = name.replace(".", "_")
    if "_" in flat:
        for other in others:
            if other.replace(".", "_") == flat:
                raise ApiError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
                )
