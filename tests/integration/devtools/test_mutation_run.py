"""Mutants run in a copy of the repository, and the tests are shown to import that copy."""

from dataclasses import replace

import pytest
from hailbus_devtools.check import ROOT
from hailbus_devtools.mutation.targets import Target
from hailbus_devtools.mutation.workshop import Workshop, WorkshopError

FARE = "services/booking/src/booking/domain/fare.py"
TARGET = Target(name="fares", files=(FARE,), tests=("tests/unit/booking/test_fare.py",))


def test_a_planted_mutant_is_noticed_and_a_wrong_sum_is_caught() -> None:
    source = (ROOT / FARE).read_text()
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "fare.quantize" in text)
    with Workshop(TARGET) as workshop:
        workshop.record()
        workshop.plant(FARE)
        caught = workshop.judge(FARE, source.replace("ROUND_HALF_UP))", "'ROUND_DOWN'))"), line)
        assert caught.caught
        assert "test_fare.py::" in caught.by
        survived = workshop.judge(FARE, source.replace("Decimal(1)", "Decimal(2)"), line)
        assert (survived.caught, survived.by) == (False, "")
        assert not workshop.control(FARE, line).caught
        workshop.spare_s = 1.0
        endless = workshop.judge(
            FARE, source.replace("        metered =", "        while True: pass\n        metered ="), line
        )
        assert (endless.caught, endless.by) == (True, "time-out")
        assert (workshop.root / FARE).read_text() == source
    assert (ROOT / FARE).read_text() == source


def test_tests_that_do_not_import_the_module_are_refused() -> None:
    other = replace(TARGET, tests=("tests/unit/devtools/test_derive_reference.py",))
    with Workshop(other) as workshop, pytest.raises(WorkshopError, match="imports from the copy: services/booking"):
        workshop.record()
