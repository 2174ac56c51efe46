"""The first process that collects is alone, so that the others find the tests compiled."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.collecting import first_alone, is_compiled


def test_the_first_is_alone_and_the_others_are_side_by_side(tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=60)
    first_is_in, first_may_leave = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with first_alone(tmp_path):
            first_is_in.set()
            assert first_may_leave.wait(60)
            order.append("first")

    def other() -> None:
        assert first_is_in.wait(60)
        with first_alone(tmp_path):
            order.append("other")
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(run) for run in (first, other, other)]
        first_may_leave.set()
        for end in ends:
            end.result()
    assert order == ["first", "other", "other"]


def test_a_first_that_fails_keeps_nobody_out(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), first_alone(tmp_path):
        raise ZeroDivisionError
    with first_alone(tmp_path), first_alone(tmp_path):
        pass


def test_tests_count_as_compiled_when_each_folder_has_been(tmp_path: Path) -> None:
    for name in ("unit", "property"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_one.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "unit" / "__pycache__").mkdir()
    assert not is_compiled(tmp_path)
    (tmp_path / "property" / "__pycache__").mkdir()
    assert is_compiled(tmp_path)
