"""Refusals: understood, but not possible now."""


class Refusal(Exception):  # noqa: N818 a refusal is an answer, not a fault
    """Base of all refusals."""


class NotFound(Refusal):
    """There is no such bike or hire."""

    def __init__(self, kind: str, key: str) -> None:
        self.kind = kind
        self.key = key
        super().__init__(f"there is no {kind} {key!r}")


class BikeTaken(Refusal):
    """The bike is reserved or on the way."""

    def __init__(self, bike_id: str) -> None:
        self.bike_id = bike_id
        super().__init__(f"bike {bike_id} is taken; choose another one")


class WrongState(Refusal):
    """The hire's state does not allow the step."""

    def __init__(self, hire_id: str, state: str, step: str) -> None:
        self.hire_id = hire_id
        self.state = state
        self.step = step
        super().__init__(f"hire {hire_id} is {state}: it cannot be {step} now")
