"""Which slots of the week those of a city are, where the riders live."""

from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from typing import Final

import numpy as np
from numpy.typing import NDArray

SLOT_S: Final = 300
SLOTS_PER_DAY: Final = 86_400 // SLOT_S
SLOTS_PER_WEEK: Final = 7 * SLOTS_PER_DAY
SUNDAY: Final = 6


class Calendar:
    """Weekdays and times of day in the city's own time; a holiday is a Sunday.

    Args:
        name: Tells calendars apart: what was learnt by one of them means something else by another.
        zone: The city's time zone.
        is_holiday: Whether a day of the city is a public holiday.
    """

    def __init__(self, name: str = "UTC", zone: tzinfo = UTC, is_holiday: Callable[[date], bool] | None = None) -> None:
        self.name: Final = name
        self._zone = zone
        self._is_holiday = is_holiday

    def slots_of_the_week(self, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        """For slots since the epoch, how many slots since the beginning of Monday they are, below `SLOTS_PER_WEEK`."""
        return np.array([self._slot_of_the_week(int(slot)) for slot in slots], dtype=np.intp)

    def _slot_of_the_week(self, slot: int) -> int:
        moment = datetime.fromtimestamp(slot * SLOT_S, self._zone)
        is_holiday = self._is_holiday is not None and self._is_holiday(moment.date())
        weekday = SUNDAY if is_holiday else moment.weekday()
        return weekday * SLOTS_PER_DAY + (moment.hour * 3600 + moment.minute * 60 + moment.second) // SLOT_S
