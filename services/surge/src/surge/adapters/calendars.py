"""The city's calendar: its time zone, and the public holidays of its country."""

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import holidays

from surge.domain.calendar import Calendar


def calendar_of(time_zone: str, places: str) -> Calendar:
    """Make the calendar of a city.

    Args:
        time_zone: By its IANA name, such as America/New_York.
        places: Whose public holidays are holidays: a country, or a country and one of its states, by their ISO 3166
            codes, such as US or US-NY. Without any no day is one.

    Raises:
        ValueError: There is no such time zone, country or state; the text says so.
    """
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        message = f"{time_zone!r} is no time zone; give an IANA name such as America/New_York"
        raise ValueError(message) from error
    if not places:
        return Calendar(time_zone, zone)
    country, _, state = places.partition("-")
    try:
        days = holidays.country_holidays(country, subdiv=state or None)
    except NotImplementedError as error:
        message = f"no holidays are known of {places!r}; give ISO 3166 codes such as US or US-NY"
        raise ValueError(message) from error
    return Calendar(f"{time_zone} {places}", zone, days.__contains__)
