"""deviations.md and the tests agree: no difference without its reason, no reason without a test."""

import re
from pathlib import Path

from .deviations import deviations

USED = re.compile(r'deviation="([a-z0-9-]+)"')


def test_each_deviation_has_a_reason_and_a_test() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.rglob("test_*.py")]
    used = {name for source in sources for name in USED.findall(source)}
    listed = deviations()
    assert used == set(listed)
    assert all(len(reason.split()) >= 10 for reason in listed.values())
