"""What the food-delivery app says: two topics, one event each, both keyed by city."""

from hailbus import Event, Topic

ORDER_STATUS = Topic("order-status", partitions=2, description="Where every order stands")
COURIER_LOCATION = Topic("courier-location", partitions=2, description="Where every courier is")


class OrderStatusChanged(Event, topic=ORDER_STATUS, key="city", type="order.status_changed", version=1):
    """An order moved on."""

    order_id: str
    status: str
    city: str


class CourierMoved(Event, topic=COURIER_LOCATION, key="city", type="courier.moved", version=1):
    """A courier is at a new place."""

    courier_id: str
    city: str
    lat: float
    lng: float
