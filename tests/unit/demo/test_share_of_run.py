"""How much of a run is over."""

from dataclasses import replace
from pathlib import Path

from hailbus import KafkaBus
from hailbus_demo.figures import Figures, Timings
from hailbus_demo.options import RideOptions
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import Traffic
from hailbus_demo.rides import RideSource
from hailbus_demo.supervise.state import DataDir
from hailbus_demo.watch import Watch


def figures_of_a_run() -> Figures:
    return Figures(
        run=1,
        speed=None,
        book=Book(),
        stage=Stage(),
        watch=Watch(KafkaBus(bootstrap_servers="127.0.0.1:9"), topics=(), consumers=(), lake_dir=None),
        supervisor=None,
        traffic=Traffic(),
        timings=Timings(),
    )


def test_plans_that_were_drawn_are_no_progress(tmp_path: Path) -> None:
    source = RideSource(RideOptions(limit=300), data_dir=DataDir(tmp_path), clock_ms=None)
    next(source.plans())
    assert source.taken > 100  # the drivers of a block depend on its rides
    assert figures_of_a_run().share_of(RideOptions(limit=300), ran_s=5.0) == 0


def test_a_run_may_end_after_a_time_or_never() -> None:
    figures = figures_of_a_run()
    assert figures.share_of(RideOptions(duration_s=20.0), ran_s=5.0) == 0.25
    assert figures.share_of(RideOptions(), ran_s=5.0) is None
    assert figures.share_of(RideOptions(first_ms=1000), ran_s=5.0) is None


def test_a_recorded_period_ends_with_its_event_time_or_before() -> None:
    figures, day = figures_of_a_run(), RideOptions(first_ms=1000, until_ms=5000)
    assert figures.share_of(day, ran_s=5.0) == 0
    figures.stage.now_ms = 2000
    assert figures.share_of(day, ran_s=5.0) == 0.25
    assert figures.share_of(replace(day, duration_s=10.0), ran_s=5.0) == 0.5
