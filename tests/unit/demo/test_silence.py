"""How long booking waits for a next position follows from how often drivers report, and how fast time flies."""

from booking.config import Settings
from hailbus_demo.replay.world import FAST_LOCATIONS_MS, LATE_AT_MOST_S, report_every, silent_after_s


def test_in_real_time_a_driver_is_silent_after_half_a_minute() -> None:
    assert silent_after_s(1, None) == 30


def test_a_report_may_be_late_by_a_time_of_the_machine() -> None:
    assert silent_after_s(30, None) == FAST_LOCATIONS_MS // 1000 + 30 * LATE_AT_MOST_S == 325
    assert silent_after_s(30, 60) == 360
    assert silent_after_s(7.5, 0.5) == 76


def test_every_driver_reports_at_least_twice_before_being_silent_by_a_machine_that_keeps_up() -> None:
    for speed in (1.0, 5.0, 6.0, 30.0, 120.0, 1_000.0):
        every_ms, _ = report_every(speed, None)
        assert silent_after_s(speed, None) * 1000 >= every_ms + speed * 1000


def test_booking_takes_every_value() -> None:
    for speed in (0.1, 5.5, 30.0, 1e9, None):
        Settings(bootstrap_servers="b:1", silent_after_s=silent_after_s(speed, None))
