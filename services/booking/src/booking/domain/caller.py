"""Who calls: a role, and the id of the rider, driver or program that has it."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a caller is.

    `ANYONE` is the only caller when authentication is off; no token can carry it.
    """

    RIDER = "rider"
    DRIVER = "driver"
    FLEET = "fleet"
    """A gateway that authenticates its drivers itself and sends their updates."""
    OPERATOR = "operator"
    """Reads everything and moves the event clock. It changes no ride, quote or driver."""
    ANYONE = "anyone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller. `subject` is the rider's or driver's id."""

    role: Role
    subject: str

    def __str__(self) -> str:
        """Return the caller as error messages name it."""
        return f"{self.role} {self.subject!r}"


ANYONE = Caller(role=Role.ANYONE, subject="")
"""The caller of every request when authentication is off."""
