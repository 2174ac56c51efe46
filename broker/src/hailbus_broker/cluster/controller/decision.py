"""What a controller has decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from hailbus_broker.protocol.schema import Message

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Decision(Generic[ResponseT]):
    """Records to append as one atomic batch, and the response to send when they are committed.

    Without records the response may still rest on records that are not committed yet: it waits for those.
    """

    records: list[Message]
    response: ResponseT
