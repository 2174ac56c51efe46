"""`recommender-score`: judge the models on recorded trips, by time order only.

A recommendation for a trip may know the trips completed before its pickup, and nothing else.
"""

import argparse
import heapq
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import perf_counter_ns
from typing import IO, Final, NoReturn

import h3
import numpy as np

try:
    import polars as pl
except ModuleNotFoundError as error:
    raise SystemExit("recommender-score needs polars: install recommender[scoring]") from error

from recommender.domain.areas import Area, Areas
from recommender.domain.baselines import BASELINES, Baseline
from recommender.domain.destinations import DestinationModel, DestinationSettings
from recommender.domain.metrics import RankMetrics
from recommender.domain.pooling import OpenRide, OpenRides
from recommender.domain.spots import BLOCK_RESOLUTION, SPOT_RESOLUTION, PickupSpots
from recommender.domain.trips import Trip, wall_seconds
from recommender.zoning import city_areas

_LIMIT: Final = 10
_TRIP_COLUMNS: Final = ("trip_id", "pickup_time", "dropoff_time", "pu_zone", "do_zone")
_RIDE_COLUMNS: Final = ("pickup_time", "lat", "lon")
_POOL_DESTINATIONS: Final = 3


class InputError(Exception):
    """Something the caller gave does not work; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrip:
    """A row of a trips file, with its zones as areas."""

    trip_id: int | str
    completed_s: float
    trip: Trip


@dataclass(slots=True, kw_only=True)
class PoolingScore:
    """How often a pooled-ride match named a ride of the same zones that started at most five minutes before."""

    pairs: int = 0
    trips: int = 0
    found: int = 0


@dataclass(slots=True, kw_only=True)
class TripScore:
    """The judgement of a period: per model its metrics; the time per recommendation of the online model."""

    metrics: dict[str, RankMetrics]
    pooling: PoolingScore = field(default_factory=PoolingScore)
    microseconds: list[float] = field(default_factory=list)


def score_trips(
    records: Sequence[RecordedTrip],
    areas: Areas,
    *,
    train_until_s: float,
    test_until_s: float,
    predictions: IO[str] | None = None,
    settings: DestinationSettings | None = None,
    is_alone: bool = False,
) -> TripScore:
    """Judge the model, frozen and online, and every baseline on the trips with train_until ≤ pickup < test_until.

    Args:
        records: Trips by rising pickup.
        areas: Where their areas are.
        train_until_s: Baselines and the frozen model know the trips completed before this.
        test_until_s: End of the period, exclusive.
        predictions: Gets a JSON line per judged trip: trip_id, recs (zones, best first), us (microseconds).
        settings: Other strengths and widths than the default.
        is_alone: Judge the online model only.
    """
    known = [record.trip for record in records if record.completed_s < train_until_s]
    baselines: list[Baseline] = [] if is_alone else [baseline(areas, known) for baseline in BASELINES]
    frozen = DestinationModel(areas, settings)
    if not is_alone:
        for trip in known:
            frozen.observe(trip)
    online = DestinationModel(areas, settings)
    rides = OpenRides()
    online_name = "the same, updated online"
    names = [baseline.name for baseline in baselines] + ["back-off: zone × time → zone → around → gravity", online_name]
    score = TripScore(metrics={name: RankMetrics() for name in names if not is_alone or name == online_name})
    under_way: list[tuple[float, int]] = []
    for index, record in enumerate(records):
        trip = record.trip
        if trip.started_s >= test_until_s:
            break
        while under_way and under_way[0][0] < trip.started_s:
            online.observe(records[heapq.heappop(under_way)[1]].trip)
        heapq.heappush(under_way, (record.completed_s, index))
        if trip.started_s >= train_until_s:
            began_ns = perf_counter_ns()
            answer = online.best(trip.origin, trip.started_s, limit=_LIMIT)
            microseconds = (perf_counter_ns() - began_ns) / 1000
            score.microseconds.append(microseconds)
            score.metrics[online_name].add(_rank(answer, trip.destination))
            if not is_alone:
                for baseline in baselines:
                    best = _top(baseline.scores(trip.origin, trip.started_s)[: len(areas)])
                    score.metrics[baseline.name].add(_rank(best, trip.destination))
                frozen_answer = frozen.best(trip.origin, trip.started_s, limit=_LIMIT)
                score.metrics[names[-2]].add(_rank(frozen_answer, trip.destination))
            _score_pooling(score.pooling, rides, trip, answer)
            if predictions is not None:
                zones = [areas[area].key for area in answer]
                line = {"trip_id": record.trip_id, "recs": zones, "us": round(microseconds, 1)}
                predictions.write(json.dumps(line, separators=(",", ":")) + "\n")
        rides.open(
            OpenRide(
                ride_id=str(index),
                rider_id="",
                origin=trip.origin,
                destination=trip.destination,
                requested_s=trip.started_s,
            )
        )
    if not score.microseconds:
        raise InputError(
            "no trip starts in the test period: give --train-until and --test-until inside the file's time"
        )
    return score


def _score_pooling(score: PoolingScore, rides: OpenRides, trip: Trip, answer: Sequence[int]) -> None:
    """Count the earlier rides of the same zones, and whether they are found with and without a known destination."""
    same = rides.matches(trip.origin, trip.destination, trip.started_s, limit=1000)
    score.pairs += len(same)
    if same:
        score.trips += 1
        offered = {
            match.ride.ride_id
            for destination in answer[:_POOL_DESTINATIONS]
            for match in rides.matches(trip.origin, destination, trip.started_s, limit=1)
        }
        score.found += any(match.ride.ride_id in offered for match in same)


def _top(scores: "np.typing.NDArray[np.float64]") -> list[int]:
    return [int(area) for area in np.argsort(-scores, kind="stable")[:_LIMIT]]


def _rank(answer: Sequence[int], truth: int) -> int | None:
    return answer.index(truth) + 1 if truth in answer else None


@dataclass(slots=True, kw_only=True)
class SpotScore:
    """Hit rates of pickup spots at 1, 3 and 5; `busiest` is the same by plain counts, `centre` by nearness to it."""

    count: int = 0
    model: list[int] = field(default_factory=lambda: [0, 0, 0])
    busiest: list[int] = field(default_factory=lambda: [0, 0, 0])
    centre: list[int] = field(default_factory=lambda: [0, 0, 0])


def score_spots(pickups: Iterator[tuple[float, str]], *, train_until_s: float) -> SpotScore:
    """Judge pickup spots on (seconds, res-11 cell) by rising time; each pickup is learned after it was judged."""
    spots, score = PickupSpots(), SpotScore()
    plain: dict[str, dict[str, int]] = {}
    by_distance: dict[str, list[str]] = {}
    for at_s, cell in pickups:
        block = h3.cell_to_parent(cell, BLOCK_RESOLUTION)
        counts = plain.setdefault(block, {})
        if at_s >= train_until_s:
            score.count += 1
            if block not in by_distance:
                centre = h3.cell_to_center_child(block, SPOT_RESOLUTION)
                children = h3.cell_to_children(block, SPOT_RESOLUTION)
                by_distance[block] = sorted(children, key=lambda child: (h3.grid_distance(centre, child), child))[:5]
            ranked = (
                (score.model, [spot.cell for spot in spots.rank(block, at_s, limit=5)]),
                (score.busiest, sorted(counts, key=lambda spot: (-counts[spot], spot))[:5]),
                (score.centre, by_distance[block]),
            )
            for hits, cells in ranked:
                rank = _rank_of_cell(cells, cell)
                for position, limit in enumerate((1, 3, 5)):
                    hits[position] += rank is not None and rank <= limit
        counts[cell] = counts.get(cell, 0) + 1
        spots.observe(cell, at_s)
    if not score.count:
        raise InputError("no ride starts after --rides-train-until: give a time inside the rides' files")
    return score


def _rank_of_cell(cells: Sequence[str], truth: str) -> int | None:
    return cells.index(truth) + 1 if truth in cells else None


def read_trips(paths: Sequence[Path], areas: Areas) -> list[RecordedTrip]:
    """Return the trips of files by rising pickup, in the schema of the trips files (Parquet).

    Raises:
        InputError: A file is missing, is no Parquet file or lacks a column.
    """
    frame = _read(paths, _TRIP_COLUMNS).drop_nulls(list(_TRIP_COLUMNS)).sort("pickup_time", maintain_order=True)
    pickups = frame["pickup_time"].cast(pl.Datetime("ms")).to_physical().to_numpy() / 1000
    dropoffs = frame["dropoff_time"].cast(pl.Datetime("ms")).to_physical().to_numpy() / 1000
    index = {int(zone): _zone_index(areas, int(zone)) for zone in {*frame["pu_zone"], *frame["do_zone"]}}
    rows = zip(frame["trip_id"], frame["pu_zone"], frame["do_zone"], pickups.tolist(), dropoffs.tolist(), strict=True)
    return [
        RecordedTrip(
            trip_id=trip_id,
            completed_s=completed_s,
            trip=Trip(origin=index[origin], destination=index[destination], started_s=started_s),
        )
        for trip_id, origin, destination, started_s, completed_s in rows
    ]


def _zone_index(areas: Areas, zone_id: int) -> int:
    """Return the index of a zone; one that the table does not know gets an area of its own, far from all others."""
    known = areas.find(zone_id)
    return areas.index_of(Area(key=zone_id, lat=0.0, lng=0.0)) if known is None else known


def read_pickups(paths: Sequence[Path]) -> Iterator[tuple[float, str]]:
    """Yield (seconds, res-11 cell) of rides files by rising time.

    Raises:
        InputError: A file is missing, is no Parquet file or lacks a column.
    """
    frame = _read(paths, _RIDE_COLUMNS).drop_nulls(list(_RIDE_COLUMNS)).sort("pickup_time", maintain_order=True)
    times = frame["pickup_time"].cast(pl.Datetime("ms")).to_physical()
    for at_ms, lat, lng in zip(times, frame["lat"], frame["lon"], strict=True):
        yield at_ms / 1000, h3.latlng_to_cell(lat, lng, SPOT_RESOLUTION)


def _read(paths: Sequence[Path], columns: Sequence[str]) -> pl.DataFrame:
    frames = []
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} is not there: give a Parquet file")
        try:
            present = pl.read_parquet_schema(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(
                f"{path} is no Parquet file that can be read: give one with {', '.join(columns)}"
            ) from error
        missing = [column for column in columns if column not in present]
        if missing:
            raise InputError(f"{path} has no column {', '.join(missing)}: give a file with {', '.join(columns)}")
        frames.append(pl.read_parquet(path, columns=list(columns)))
    return pl.concat(frames, how="vertical_relaxed")


def _print_trips(score: TripScore) -> None:
    print(f"{'model':<48}{'HR@1':>7}{'HR@5':>7}{'HR@10':>7}{'MRR@10':>8}{'NDCG@10':>9}")
    for name, metrics in score.metrics.items():
        rates = "".join(f"{metrics.hit_rate(at):>7.3f}" for at in (1, 5, 10))
        print(f"{name:<48}{rates}{metrics.mrr:>8.3f}{metrics.ndcg:>9.3f}")
    fifty, last = np.percentile(score.microseconds, [50, 99])
    print(f"{len(score.microseconds):,} trips; {fifty:.0f} µs per recommendation (p50), {last:.0f} µs (p99)")
    pooling = score.pooling
    if pooling.trips:
        print(
            f"\nshared rides: {pooling.pairs:,} pairs of equal zones within 5 min; of {pooling.trips:,} trips with an "
            f"earlier partner, {pooling.found / pooling.trips:.3f} are offered one before they name a destination "
            f"(first {_POOL_DESTINATIONS} guesses)"
        )
    else:
        print("\nshared rides: no pair of equal zones within 5 min in this period")


def _print_spots(score: SpotScore) -> None:
    print(f"\n{'pickup spot (res 11 in res 9)':<48}{'HR@1':>7}{'HR@3':>7}{'HR@5':>7}")
    rows = (("nearest to the centre", score.centre), ("busiest so far", score.busiest), ("by time of day", score.model))
    for name, hits in rows:
        print(f"{name:<48}" + "".join(f"{hit / score.count:>7.3f}" for hit in hits))
    print(f"{score.count:,} pickups")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"recommender-score: {message}; see --help\n")


def _time(text: str) -> float:
    try:
        return wall_seconds(datetime.fromisoformat(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write it as 2023-03-01 or 2023-03-01T06:00") from None


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="recommender-score", description="Judge the recommender on recorded trips, by time order.")
    parser.add_argument(
        "trips", type=Path, nargs="+", metavar="TRIPS.parquet", help="trips with zones, one file or more"
    )
    parser.add_argument("--train-until", type=_time, required=True, metavar="TIME", help="start of the judged period")
    parser.add_argument(
        "--test-until", type=_time, metavar="TIME", help="its end, exclusive (default: end of the files)"
    )
    parser.add_argument("--predictions", type=Path, metavar="FILE", help="write one JSON line per judged trip")
    parser.add_argument(
        "--rides", type=Path, nargs="+", metavar="FILE", help="pickups with coordinates: judge spots too"
    )
    parser.add_argument(
        "--rides-train-until",
        type=_time,
        metavar="TIME",
        help="start of the judged pickups (default: half of the time)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; exit with 2 and one sentence when the input does not work."""
    options = _arguments(arguments)
    try:
        areas = city_areas()
        records = read_trips(options.trips, areas)
        test_until_s = options.test_until if options.test_until is not None else float("inf")
        if test_until_s <= options.train_until:
            raise InputError("--test-until must be later than --train-until")
        with ExitStack() as stack:
            predictions = None
            if options.predictions is not None:
                try:
                    predictions = stack.enter_context(options.predictions.open("w", encoding="utf-8"))
                except OSError as error:
                    raise InputError(f"{options.predictions} cannot be written: {error.strerror}") from error
            score = score_trips(
                records,
                areas,
                train_until_s=options.train_until,
                test_until_s=test_until_s,
                predictions=predictions,
            )
        _print_trips(score)
        if options.rides:
            pickups = list(read_pickups(options.rides))
            half_s = (pickups[0][0] + pickups[-1][0]) / 2 if pickups else 0.0
            train_until_s = options.rides_train_until if options.rides_train_until is not None else half_s
            _print_spots(score_spots(iter(pickups), train_until_s=train_until_s))
    except InputError as error:
        sys.exit(_refuse(error))


def _refuse(error: InputError) -> int:
    print(f"recommender-score: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
