"""Clients of campaigns that the broker's package cannot import: aiokafka, and services of the SDK, unmodified.

They stand here because the development tools may import both the broker and the SDK.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, assert_never

from hailbus_devtools.simulate.guests import aiokafka_clients
from hailbus_devtools.simulate.guests.books import Books
from hailbus_devtools.simulate.guests.checks import check_services
from hailbus_devtools.simulate.guests.services import Shop, Till

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.testing.campaign.context import Context
    from hailbus_broker.testing.campaign.guests import RunningClient, TopicContents
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.scenario import GuestKind, PlannedFault
    from hailbus_broker.testing.simulation.world import World

__all__ = ["Guests"]

REFUSED_SHARE: Final = 0.5
SILENT_SHARE: Final = 0.5


class Guests:
    """The guests of one campaign; see `hailbus_broker.testing.campaign.guests`."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        self._recorder: Final = recorder
        self._books: Final = Books(world, recorder)

    def client(self, kind: GuestKind, context: Context) -> RunningClient:
        """Make what runs in a client's process."""
        match kind:
            case "aiokafka producer":
                return aiokafka_clients.IdempotentProducer(context)
            case "aiokafka transactions":
                return aiokafka_clients.TransactionalProducer(context)
            case "aiokafka copier":
                return aiokafka_clients.Copier(context)
            case "aiokafka member":
                return aiokafka_clients.GroupMember(context)
            case "aiokafka reader":
                return aiokafka_clients.AssignedReader(context)
            case "shop service":
                self._books.has_shop = True
                return Shop(context, self._books)
            case "till service":
                self._books.has_till = True
                return Till(context, self._books)
            case _:
                assert_never(kind)

    async def apply(self, fault: PlannedFault) -> None:
        """Let a fault of a store happen, for as long as it lasts."""
        store = self._books.shop if fault.client.startswith("shop") else self._books.till
        try:
            match fault.kind:
                case "store away":
                    store.is_away = True
                    store.note("store away")
                case "store refuses":
                    store.refused_share = REFUSED_SHARE
                case _:
                    store.silent_share = SILENT_SHARE
            await asyncio.sleep(fault.duration_s)
        finally:
            store.is_away = False
            store.refused_share = store.silent_share = 0.0

    async def check(self, contents: TopicContents) -> Mapping[str, list[str]]:
        """Return what the checks of the services found."""
        self._books.shop.is_over = self._books.till.is_over = True
        if not self._books.has_shop:
            return {}
        return await check_services(self._books, contents, self._recorder.note)
