"""Generations and epochs of groups: int32 numbers that grow by one."""

from __future__ import annotations

from typing import Final

LARGEST: Final = 2**31 - 1


def following(number: int) -> int:
    """The next generation or epoch. After the largest comes 1: members with the old one are fenced and join again.

    No group gets so far, but a stored record may say that it has.
    """
    return 1 if number >= LARGEST else number + 1
