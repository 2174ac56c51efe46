"""From options to plans: recorded rides or the simulator, with drivers, limited as asked."""

from __future__ import annotations

from collections.abc import Iterator

from hailbus_demo.city.plan import Plan, RidePlan, to_datetime, to_ms
from hailbus_demo.city.simulate import Riders, Simulator, with_company, with_drivers
from hailbus_demo.city.table import City
from hailbus_demo.errors import UsageError
from hailbus_demo.options import DEFAULT_START, RideOptions
from hailbus_demo.ride_files import RideFileError, RideFiles
from hailbus_demo.supervise.state import DataDir

NEXT_MINUTE_MS = 60_000


class RideSource:
    """The plans of a run, in order of time.

    Args:
        options: What was asked for.
        data_dir: Where rejected rows are kept.
        clock_ms: The event time that the city has reached; the simulator continues from there.

    Raises:
        UsageError: The file or folder cannot be read, or its rides lie before the city's clock.
    """

    def __init__(self, options: RideOptions, *, data_dir: DataDir, clock_ms: int | None) -> None:
        self.options = options
        self.city = City()
        self.taken = 0
        self._invented = 0
        self._rejects = data_dir.rejects
        self.files: RideFiles | None = None
        self._first_ride: RidePlan | None = None
        riders = Riders(self.city, options.seed)
        if options.rides is not None:
            for option, value in (("--rate", options.rate), ("--cells", options.cells)):
                if value is not None:
                    raise UsageError(f"{option} is for the simulator: leave it out with --rides")
            try:
                self.files = RideFiles(
                    options.rides,
                    riders=riders,
                    first_ms=options.first_ms,
                    until_ms=options.until_ms,
                    rejects=data_dir.rejects,
                )
            except RideFileError as error:
                raise UsageError(str(error)) from error
            self._rides = with_company(self._checked(self.files.rides(), clock_ms), riders)
            self._look_at_first()
        else:
            start_ms = options.first_ms if options.first_ms is not None else to_ms(DEFAULT_START)
            if clock_ms is not None and start_ms <= clock_ms:
                if options.first_ms is not None:
                    raise UsageError(_too_early(start_ms, clock_ms))
                start_ms = (clock_ms // NEXT_MINUTE_MS + 2) * NEXT_MINUTE_MS
            simulator = Simulator(self.city, seed=options.seed, rides_per_minute=options.rate, cells=options.cells)
            self._rides = simulator.rides(start_ms, options.until_ms)

    def _look_at_first(self) -> None:
        """Draw the first ride now: an empty or impossible file should be told before anything is started."""
        self._first_ride = next(self._rides, None)
        if self._first_ride is None:
            assert self.files is not None
            counts = self.files.counts
            rejected = sum(counts.rejected.values())
            if rejected and not counts.outside:
                raise UsageError(
                    f"none of the {rejected:,} rows of {self.options.rides} can be a ride, see {self._rejects}: mend "
                    "the file, or name another"
                )
            raise UsageError(
                f"{self.options.rides} has no rides in this period: choose another --day, --from or --until"
            )

    def _checked(self, rides: Iterator[RidePlan], clock_ms: int | None) -> Iterator[RidePlan]:
        first = next(rides, None)
        if first is None:
            return
        if clock_ms is not None and first.asks_at_ms <= clock_ms:
            raise UsageError(_too_early(first.asks_at_ms, clock_ms))
        yield first
        yield from rides

    def plans(self) -> Iterator[Plan]:
        """Yield the plans; call it once."""
        return with_drivers(self._limited(), seed=self.options.seed, supply=self.options.supply)

    def _limited(self) -> Iterator[RidePlan]:
        if self._first_ride is not None:
            yield from self._count(self._first_ride)
        for ride in self._rides:
            if self.options.limit is not None and self.taken >= self.options.limit:
                return
            yield from self._count(ride)

    def _count(self, ride: RidePlan) -> Iterator[RidePlan]:
        """Count the rides that the limit means: recorded ones of a file, booked ones of the simulator."""
        if not ride.simulated if self.files is not None else ride.accepts:
            self.taken += 1
        elif ride.accepts:
            self._invented += 1
        yield ride

    def describe(self) -> str | None:
        """Say in a line what became of a file's rows; None for the simulator."""
        if self.files is None:
            return None
        counts = self.files.counts
        rides = f"{self.taken:,} rides of the file"
        if self.taken == self.options.limit:
            rides += ", as --limit says"
        if self._invented:
            rides += f", and {self._invented:,} of riders who cancel, of whom no recording tells"
        others = []
        rejected = sum(counts.rejected.values())
        if rejected:
            why = ", ".join(f"{count:,} {reason}" for reason, count in counts.rejected.most_common(3))
            others.append(f"{rejected:,} rejected ({why})")
        if counts.outside:
            others.append(f"{counts.outside:,} outside of the period")
        not_needed = counts.read - rejected - counts.outside - self.taken
        if not_needed:
            others.append(f"{not_needed:,} not needed: a file is read in large pieces")
        return f"{rides}; {counts.read:,} rows were read{': ' if others else ''}{'; '.join(others)}"


def _too_early(asked_ms: int, clock_ms: int) -> str:
    return (
        f"the city's clock already stands at {to_datetime(clock_ms):%Y-%m-%d %H:%M:%S} and these rides begin at "
        f"{to_datetime(asked_ms):%Y-%m-%d %H:%M:%S}: start a new city with --fresh, or choose a later --from"
    )
