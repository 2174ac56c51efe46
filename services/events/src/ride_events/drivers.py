"""Where drivers are and whether they are free. Owner: booking, but for the locations, which driver apps report."""

from datetime import timedelta

from hailbus import Event, Topic

from ride_events.geo import Cell, LatLng

DRIVERS = Topic("drivers.v1", partitions=6, cleanup_policy="compact", description="The latest state of every driver")
DRIVER_LOCATIONS = Topic(
    "driver-locations.v1",
    partitions=6,
    retention=timedelta(hours=1),
    description="Positions of drivers every 4 s; sent at most once, as the next one replaces a lost one",
)


class DriverEvent(Event, topic=DRIVERS, key="driver_id"):
    """A fact about one driver. `seq` counts 1, 2, 3… per driver."""

    driver_id: str
    seq: int
    simulated: bool = False


class DriverWentOnline(DriverEvent, type="driver.went_online", version=1):
    """The driver is ready for rides."""

    position: LatLng
    cell: Cell


class DriverWentOffline(DriverEvent, type="driver.went_offline", version=1):
    """The driver takes no more rides."""


class DriverBecameBusy(DriverEvent, type="driver.became_busy", version=1):
    """The driver took a ride, or has only the other one of two pooled rides left.

    The first event of a pair names the ride that is picked up first.
    """

    ride_id: str


class DriverBecameFree(DriverEvent, type="driver.became_free", version=1):
    """The driver ended or lost a ride and is ready for the next."""

    position: LatLng
    cell: Cell


class DriverLocationReported(
    Event, topic=DRIVER_LOCATIONS, key="driver_id", type="driver.location_reported", version=1
):
    """Where a driver is, and whether free for a ride."""

    driver_id: str
    position: LatLng
    cell: Cell
    free: bool
    ride_id: str | None = None
    simulated: bool = False
