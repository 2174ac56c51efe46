"""The port for clients that the broker's package cannot import: Kafka libraries and the SDK, unmodified.

`run_scenario` takes a factory of them. They run in processes of their own like all other clients, write to the same
recorder, and are hit by the same faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hailbus_broker.testing.campaign.context import Context, Found
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.scenario import GuestKind, PlannedFault
    from hailbus_broker.testing.simulation.world import World


class RunningClient(Protocol):
    """What runs in a client's process."""

    async def run(self) -> None:
        """Work until the campaign stops."""
        ...


class TopicContents(Protocol):
    """Reads a topic of a guest."""

    def __call__(self, topic: str, partition_count: int) -> Awaitable[list[Found]]:
        """Return its committed records, in order per partition; none if there is no such topic."""
        ...


class Guests(Protocol):
    """The guests of one campaign, and what they share."""

    def client(self, kind: GuestKind, context: Context) -> RunningClient:
        """Make what runs in a client's process."""
        ...

    async def apply(self, fault: PlannedFault) -> None:
        """Let a fault of their stores happen, for as long as it lasts."""
        ...

    async def check(self, contents: TopicContents) -> Mapping[str, list[str]]:
        """Return what each check of their own found, after all clients have ended."""
        ...


MakeGuests: TypeAlias = "Callable[[World, Recorder], Guests]"
