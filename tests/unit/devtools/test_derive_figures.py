"""Pages quote the runs that are kept, and nothing else."""

import json
from pathlib import Path

import pytest
from hailbus_devtools.derive_figures import ROOT, Run, derived, load_runs, page, shown, with_blocks

RUN = {
    "command": "just bench-x",
    "date": "2026-01-02",
    "commit": "abc",
    "machine": "2 cores",
    "python": "3.11",
    "rounds": 3,
    "tables": [
        {
            "title": "T",
            "condition": "synced",
            "columns": ["ours", "theirs"],
            "load": 0.5,
            "rows": [{"what": "speed", "unit": "MB/s", "values": [[1.0, 9.0, 2.0], [4.0]]}],
        }
    ],
}


def test_every_page_says_what_its_runs_say() -> None:
    for path, text in derived().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)}: run `uv run derive-figures`"


def test_a_table_has_its_condition_load_command_and_commit() -> None:
    text = page({"city": Run(name="city", content=RUN)})
    assert "Condition: synced. Load: 0.5." in text
    assert "`just bench-x`, commit abc, 2026-01-02" in text
    assert "| speed | 2.0 | 4.0 | MB/s |" in text


def test_a_quantity_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(KeyError, match="did not measure 'weight'"):
        Run(name="x", content=RUN).value("weight")


def test_a_block_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        with_blocks("<!-- figures nothing -->\n<!-- /figures -->", {})


def test_runs_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "sdk.json").write_text(json.dumps(RUN))
    assert list(load_runs(tmp_path)) == ["sdk"]


@pytest.mark.parametrize(("value", "text"), [(0.111, "0.11"), (4.66, "4.7"), (1234.5, "1,234"), (0, "0")])
def test_values_are_shown_by_their_size(value: float, text: str) -> None:
    assert shown(value) == text
