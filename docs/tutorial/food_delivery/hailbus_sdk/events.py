"""The events of the food-delivery app: two topics with one event each, both keyed by city."""

from hailbus import Event, Topic

ORDER_STATUS = Topic("order-status", partitions=2, description="The status of every order")
COURIER_LOCATION = Topic("courier-location", partitions=2, description="The location of every courier")


class OrderStatusChanged(Event, topic=ORDER_STATUS, key="city", type="order.status_changed", version=1):
    """The status of an order changed."""

    order_id: str
    status: str
    city: str


class CourierMoved(Event, topic=COURIER_LOCATION, key="city", type="courier.moved", version=1):
    """A courier reported a new location."""

    courier_id: str
    city: str
    lat: float
    lng: float
