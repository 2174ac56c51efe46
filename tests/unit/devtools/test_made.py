"""What tests make once is made by the first that asks, and never half."""

from pathlib import Path

import pytest
from hailbus_devtools.mutation import MADE_VARIABLE

from tests.made import made_once
from tests.servers import FOLDER_VARIABLE


def test_a_folder_is_filled_by_the_first_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MADE_VARIABLE, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "text").write_text(f"{len(made)}")

    for _ in range(2):
        folder = made_once("thing", make)
        assert (folder / "text").read_text() == "1"
    assert made_once("other", make) != folder
    assert len(made) == 2
    # Mutation testing names another folder, which outlives the run.
    monkeypatch.setenv(MADE_VARIABLE, str(tmp_path / "kept"))
    assert made_once("thing", make) == tmp_path / "kept" / "thing"
    assert len(made) == 3


def test_what_a_failure_left_behind_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MADE_VARIABLE, str(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made_once("thing", fail)
    folder = made_once("thing", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
