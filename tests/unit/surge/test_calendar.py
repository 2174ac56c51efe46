"""Which time of the week a slot is in the city, and what a holiday does to the forecasts."""

from datetime import UTC, datetime

import numpy as np
import pytest
from surge.adapters.calendars import calendar_of
from surge.domain.calendar import SLOT_S, SLOTS_PER_DAY, SLOTS_PER_WEEK
from surge.domain.forecast import CountModel

HOUR = 3600 // SLOT_S


def slot(text: str) -> int:
    """The slot that begins then; the time is UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // SLOT_S


def of_the_week(time_zone: str, places: str, *moments: str) -> list[tuple[int, float]]:
    """Weekday, 0 on Monday, and hour of the day in the city."""
    slots = calendar_of(time_zone, places).slots_of_the_week(np.array([slot(moment) for moment in moments]))
    return [(int(each) // SLOTS_PER_DAY, float(each % SLOTS_PER_DAY) / HOUR) for each in slots]


def test_a_week_begins_on_monday_at_midnight_of_the_city() -> None:
    moments = ("2014-05-26T00:00", "2014-05-26T03:55", "2014-05-26T04:00", "2014-05-31T23:30")
    assert of_the_week("UTC", "", *moments) == [(0, 0), (0, 47 / HOUR), (0, 4), (5, 23.5)]
    assert of_the_week("America/New_York", "", *moments) == [(6, 20), (6, 20 + 47 / HOUR), (0, 0), (5, 19.5)]


def test_the_time_of_day_follows_the_clocks_of_the_city() -> None:
    """At 7:00 UTC on 9 March 2014 New York went from 2:00 to 3:00, and back at 6:00 UTC on 2 November."""
    spring = ("2014-03-09T06:55", "2014-03-09T07:00")
    autumn = ("2014-11-02T05:55", "2014-11-02T06:00")
    assert [hour for _, hour in of_the_week("America/New_York", "", *spring)] == [23 / HOUR, 3]
    assert [hour for _, hour in of_the_week("America/New_York", "", *autumn)] == [23 / HOUR, 1]


def test_a_holiday_is_a_sunday_from_midnight_to_midnight_of_the_city() -> None:
    memorial_day = ("2014-05-26T03:55", "2014-05-26T04:00", "2014-05-27T03:55", "2014-05-27T04:00")
    days = [day for day, _ in of_the_week("America/New_York", "US-NY", *memorial_day)]
    assert days == [6, 6, 6, 1]
    assert [day for day, _ in of_the_week("UTC", "US", "2014-05-25T23:55", "2014-05-26T00:00")] == [6, 6]
    assert [day for day, _ in of_the_week("UTC", "DE", "2014-05-26T00:00", "2014-05-29T00:00")] == [0, 6]


@pytest.mark.parametrize(
    ("time_zone", "places", "said"),
    [("New York", "", "IANA name"), ("../x", "", "IANA name"), ("UTC", "XX", "ISO 3166"), ("UTC", "US-XX", "US-XX")],
)
def test_what_is_no_place_is_refused(time_zone: str, places: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        calendar_of(time_zone, places)


def test_a_holiday_brings_what_sundays_bring_and_no_monday_learns_from_it() -> None:
    """A city with 20 pickups in each slot of a Sunday, and 2 in those of other days; 26 May 2014 is a holiday."""
    monday = slot("2014-04-28T00:00")
    holiday = monday + 4 * SLOTS_PER_WEEK
    noon = SLOTS_PER_DAY // 2
    usual = {}
    for places in ("", "US"):
        model = CountModel(["872a100d6ffffff"], calendar=calendar_of("UTC", places))
        model.start_at(monday)
        for number in range(monday, holiday + SLOTS_PER_WEEK + noon):
            if number == holiday + noon:
                usual[places] = [float(model.usual()[0])]
            is_quiet = (number - monday) % SLOTS_PER_WEEK < 6 * SLOTS_PER_DAY and number // SLOTS_PER_DAY != (
                holiday // SLOTS_PER_DAY
            )
            model.observe(np.array([2.0 if is_quiet else 20.0]))
        usual[places].append(float(model.usual()[0]))
    (unaware, after), (aware, after_aware) = usual[""], usual["US"]
    assert unaware < 6
    assert aware == pytest.approx(20, rel=0.1)
    assert after > 1.5 * after_aware
