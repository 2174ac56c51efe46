"""What the services of a campaign have done, as an observer writes it down who never dies, and their stores."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hailbus_devtools.simulate.guests.store import Store

if TYPE_CHECKING:
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.history import End, Sent
    from hailbus_broker.testing.simulation.world import World

Place = tuple[int, int]
"""Partition and offset."""
Handler = Literal["at most once", "at least once", "exactly once"]


@dataclass(slots=True, kw_only=True)
class OrderOp:
    """An order that was placed: in the store with its event, or not at all. `fail` was rolled back."""

    number: int
    outcome: End = "unknown"


class Books:
    """The stores of both services, and what their code has seen.

    Attributes:
        orders: Of the shop.
        ticks: What the shop has published without an outbox.
        handled: Where the records were with which each handler was called, in order.
        has_shop: Whether a shop takes part; a scenario that is being shrunk may have lost it.
        has_till: Whether a till takes part.
        is_shop_done: The shop has stopped, and published all that it has committed.
    """

    def __init__(self, world: World, recorder: Recorder) -> None:
        self.shop: Final = Store(world, "shop", recorder.note)
        self.till: Final = Store(world, "till", recorder.note)
        self.shop.create("CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT)")
        self.till.create("CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, customer TEXT)")
        self.orders: Final[list[OrderOp]] = []
        self.ticks: Final[list[Sent]] = []
        self.handled: Final[defaultdict[Handler, list[Place]]] = defaultdict(list)
        self.has_shop = False
        self.has_till = False
        self.is_shop_done = False

    def placed(self) -> OrderOp:
        """Note that an order is about to be stored."""
        order = OrderOp(number=len(self.orders) + 1)
        self.orders.append(order)
        return order

    def is_all_handled(self) -> bool:
        """Whether the till has handled everything that the shop has published."""
        if not self.has_shop:
            return True
        if not self.is_shop_done:
            return False
        last = self.shop.rows("SELECT published_partition, max(published_offset) FROM hailbus_outbox GROUP BY 1")
        unpaid = self.till.rows("SELECT count(*) FROM hailbus_outbox WHERE published_at IS NULL")
        orders = self.shop.rows("SELECT count(*) FROM orders")
        effects = self.till.rows("SELECT count(DISTINCT number) FROM effects")
        if last is None or orders is None or effects is None or unpaid != [(0,)]:
            return False
        reached = all(place in self.handled[handler] for place in last for handler in ("at least once", "exactly once"))
        return reached and effects[0][0] >= orders[0][0]
