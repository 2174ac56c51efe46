"""What the images of the example leave out is not imported by what runs in them."""

import subprocess
import sys

LARGE = "pyarrow", "pyiceberg", "polars"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_services_and_simulator_import_no_library_of_scoring_files_or_lake() -> None:
    modules = "surge.main, recommender.main, hailbus_demo.remote, hailbus_demo.cli"
    done = run(f"import sys, {modules}; print([name for name in {LARGE} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


def test_what_is_missing_is_said_with_the_extra_that_has_it() -> None:
    for service in ("surge", "recommender"):
        done = run(f"import sys; sys.modules['polars'] = None; import {service}.scoring")
        assert done.returncode == 1
        assert done.stderr == f"{service}-score needs polars: install {service}[scoring]\n"
    read = "RideFiles(pathlib.Path('rides.parquet'), riders=None)"
    modules = "import pathlib, sys; sys.modules['pyarrow'] = None; from hailbus_demo.ride_files.reader import RideFiles"
    done = run(f"{modules}; pathlib.Path.exists = lambda _: True; {read}")
    assert "needs pyarrow: install hailbus-demo[parquet], or convert it to CSV" in done.stderr
