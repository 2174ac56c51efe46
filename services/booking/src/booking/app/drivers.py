"""Drivers come, move and go."""

from dataclasses import dataclass, replace

from ride_events.drivers import DriverLocationReported, DriverWentOffline, DriverWentOnline

from booking.app import story
from booking.app.dispatch import seek_ride
from booking.app.ports import Needs, Work
from booking.domain.driver import Driver, DriverStatus
from booking.domain.errors import DriverElsewhere, NotFound
from booking.domain.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOnline:
    """A driver is ready for rides, at a position. A driver who is online already only moves there."""

    driver_id: str
    position: Place
    simulated: bool = False

    def needs(self) -> Needs:
        """The driver, and that no other region has the driver online."""
        return Needs(drivers=(self.driver_id,), online=(self.driver_id,))

    def decide(self, work: Work) -> Driver:
        """Be free, and take a waiting ride nearby at once; `DriverElsewhere` in two regions at once.

        The number of the driver's events continues from one region to the next, so it gives no event the id of another.
        """
        known = work.driver(self.driver_id)
        if known is not None and known.status is not DriverStatus.OFFLINE:
            return move(work, known, self.position)
        if (region := work.online_elsewhere(self.driver_id)) is not None:
            raise DriverElsewhere(self.driver_id, region)
        before = known or Driver(
            driver_id=self.driver_id,
            status=DriverStatus.OFFLINE,
            position=None,
            seq=0,
            updated_at=work.now,
            heard_at=work.now,
            simulated=self.simulated,
        )
        seq = max(before.seq, work.last_seq(self.driver_id))
        driver = replace(before, seq=seq).go_online(self.position, at=work.now)
        work.put_driver(driver)
        work.record(
            DriverWentOnline(
                driver_id=driver.driver_id,
                seq=driver.seq,
                simulated=driver.simulated,
                position=story.lat_lng(self.position),
                cell=self.position.cell,
            ),
            aggregate=driver.driver_id,
            seq=driver.seq,
            at=driver.updated_at,
        )
        return seek_ride(work, driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLocation:
    """A driver is elsewhere. Published at most once: the next report replaces a lost one."""

    driver_id: str
    position: Place

    def needs(self) -> Needs:
        """The driver."""
        return Needs(drivers=(self.driver_id,))

    def decide(self, work: Work) -> Driver:
        """Move, or raise `NotFound` or `DriverOffline`."""
        driver = work.driver(self.driver_id)
        if driver is None:
            raise NotFound("driver", self.driver_id)
        return move(work, driver, self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class HearPosition:
    """A driver app has published a position by itself, so booking publishes nothing."""

    driver_id: str
    position: Place

    def needs(self) -> Needs:
        """Nothing: drivers who are online are always at hand, and the others have no position."""
        return Needs()

    def decide(self, work: Work) -> bool:
        """Move the driver; return False for a driver who is not online, and for an old position."""
        driver = work.driver(self.driver_id)
        if driver is None or driver.status is DriverStatus.OFFLINE:
            return False
        return _moved(work, driver, self.position) is not driver


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOffline:
    """A driver takes no more rides."""

    driver_id: str

    def needs(self) -> Needs:
        """The driver."""
        return Needs(drivers=(self.driver_id,))

    def decide(self, work: Work) -> Driver:
        """Be offline, or raise `NotFound` or `DriverBusy`."""
        known = work.driver(self.driver_id)
        if known is None:
            raise NotFound("driver", self.driver_id)
        driver = known.go_offline(at=work.now)
        if driver is not known:
            work.put_driver(driver)
            work.record(
                DriverWentOffline(driver_id=driver.driver_id, seq=driver.seq, simulated=driver.simulated),
                aggregate=driver.driver_id,
                seq=driver.seq,
                at=driver.updated_at,
            )
        return driver


def move(work: Work, driver: Driver, position: Place) -> Driver:
    """Move an online driver, tell of it, and let a free one take a waiting ride nearby. An old position is ignored."""
    moved = _moved(work, driver, position)
    if moved is driver:
        return driver
    driver = moved
    work.report(
        DriverLocationReported(
            driver_id=driver.driver_id,
            position=story.lat_lng(position),
            cell=position.cell,
            free=driver.status is DriverStatus.FREE,
            ride_id=driver.ride_id,
            simulated=driver.simulated,
        ),
        at=work.now,
    )
    return driver


def _moved(work: Work, driver: Driver, position: Place) -> Driver:
    moved = driver.move(position, at=work.now)
    if moved is driver:
        return driver
    work.put_driver(moved)
    return seek_ride(work, moved) if moved.status is DriverStatus.FREE else moved
