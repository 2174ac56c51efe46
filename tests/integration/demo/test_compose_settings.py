"""The compose file plays rides by the numbers that the simulator would choose."""

import re
from pathlib import Path

from hailbus_demo.replay.world import silent_after_s

COMPOSE = Path(__file__).resolve().parents[3] / "docker-compose.yaml"


def test_booking_waits_as_long_for_a_position_as_the_simulators_speed_asks_for() -> None:
    said = dict(re.findall(r"\$\{(HAILBUS_\w+):-([\d.]+)\}", COMPOSE.read_text()))
    assert int(said["HAILBUS_SILENT_AFTER_S"]) == silent_after_s(float(said["HAILBUS_SPEED"]), None)
