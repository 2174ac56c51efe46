"""What the demo says of a file of rides: each number on the terminal is explained."""

from pathlib import Path

from hailbus_demo.options import RideOptions
from hailbus_demo.rides import RideSource
from hailbus_demo.supervise.state import DataDir


def described(folder: Path, *, limit: int | None) -> str | None:
    rows = [f'"5/2/2014 20:{i // 4:02}:00",40.7{i % 10}1,-73.98{i % 7},"B02512"' for i in range(200)]
    (folder / "uber.csv").write_text('"Date/Time","Lat","Lon","Base"\n' + "\n".join([*rows, '"5/2/2014",0,0,"B02512"']))
    source = RideSource(RideOptions(rides=folder / "uber.csv", limit=limit), data_dir=DataDir(folder), clock_ms=None)
    plans = list(source.plans())
    assert len(plans) >= source.taken
    return source.describe()


def test_all_rows_of_a_file_are_accounted_for(tmp_path: Path) -> None:
    told = described(tmp_path, limit=None)
    assert told is not None
    assert told.startswith("200 rides of the file, and ")
    assert "riders who cancel, of whom no recording tells; 201 rows were read: 1 rejected (1 " in told
    assert "not needed" not in told


def test_a_limit_says_why_more_was_read_than_played(tmp_path: Path) -> None:
    told = described(tmp_path, limit=50)
    assert told is not None
    assert told.startswith("50 rides of the file, as --limit says, and ")
    assert "201 rows were read: 1 rejected (1 " in told
    assert told.endswith("; 150 not needed: a file is read in large pieces")
