"""`surge-score`: score the demand forecast and the models that it must beat on recorded rides.

At every multiple of five minutes of the period, knowing only the pickups before, each model forecasts the pickups of
the next 5, 15 and 30 minutes in every listed cell; then it learns the five minutes that followed. Nothing is fitted
beforehand. The service's model runs as in the service: it learns every cell of the recording, and the listed ones are
judged.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import h3
import numpy as np

try:
    import polars as pl
except ModuleNotFoundError as error:
    raise SystemExit("surge-score needs polars: install surge[scoring]") from error

from surge.adapters.calendars import calendar_of
from surge.app.city import CellForecasts, Expected
from surge.domain.baselines import Ewma, HourOfWeekAverage, LastValue, Model, SeasonalNaive
from surge.domain.calendar import SLOT_S, SLOTS_PER_DAY, Calendar
from surge.domain.cells import resolution_of, ring
from surge.domain.forecast import HORIZON_SLOTS, HORIZONS_MIN, UTC_CALENDAR
from surge.domain.numbers import Floats
from surge.domain.pricing import CellPrice, PricingRules, reprice
from surge.domain.quantiles import LEVELS, quantiles, randomised_pit
from surge.domain.windows import Activity

GAP_SLOTS = SLOTS_PER_DAY
"""A stretch without any pickup that is longer than this is a hole in the recording, not a quiet city."""
TLC_COLUMNS = {"Date/Time": "pickup_time", "Lat": "lat", "Lon": "lon", "Base": "base"}


class InputError(Exception):
    """What was given cannot be scored; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Pickups counted per slot and cell.

    `counts` has shape (slots, cells) and holds the listed cells; its first row is slot number `first_slot` since the
    epoch, in local wall time. `pickups` has the pickups of every cell of the recording by slot, as the service learns.
    """

    first_slot: int
    counts: Floats
    pickups: Mapping[int, Mapping[str, int]]
    cells: tuple[str, ...]
    rides: int
    rejected: int
    count_us: float


def read_cells(path: Path, resolution: int) -> tuple[str, ...]:
    """The cells of a list file, one per line, in order.

    Raises:
        InputError: The file is not readable, or names something else than distinct cells of this resolution.
    """
    try:
        names = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the cells of {path} ({error}); give a text file of one H3 cell per line"
        ) from error
    if not names:
        raise InputError(f"{path} lists no cell; give one H3 cell per line")
    for name in names:
        if not h3.is_valid_cell(name) or h3.get_resolution(name) != resolution:
            raise InputError(f"{path} lists {name!r}, which is no H3 cell of resolution {resolution}")
    if len(set(names)) != len(names):
        raise InputError(f"{path} lists a cell twice; list each once")
    return tuple(names)


def read_rides(paths: Sequence[Path], cells: tuple[str, ...], resolution: int) -> Recording:
    """Count the pickups of recorded rides: Parquet with `pickup_time, lat, lon`, or the TLC's own CSV of the same.

    Raises:
        InputError: A file is not readable, lacks a column, or holds no usable ride.
    """
    frames = []
    for path in paths:
        try:
            frame = pl.read_csv(path) if path.suffix.lower() == ".csv" else pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"cannot read rides from {path} ({error}); give Parquet or the TLC's CSV") from error
        frame = frame.rename({old: new for old, new in TLC_COLUMNS.items() if old in frame.columns})
        missing = {"pickup_time", "lat", "lon"} - set(frame.columns)
        if missing:
            raise InputError(f"{path} lacks {', '.join(sorted(missing))}; give rides with pickup_time, lat and lon")
        frame = frame.select("pickup_time", pl.col("lat", "lon").cast(pl.Float64, strict=False))
        if frame["pickup_time"].dtype == pl.String:
            moment = pl.col("pickup_time")
            frame = frame.with_columns(
                moment.str.to_datetime("%m/%d/%Y %H:%M:%S", strict=False).fill_null(
                    moment.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
                )
            )
        frames.append(frame.with_columns(pl.col("pickup_time").cast(pl.Datetime("ms"))))
    everything = pl.concat(frames)
    usable = everything.drop_nulls().filter(pl.col("lat").is_between(-90, 90), pl.col("lon").is_between(-180, 180))
    if usable.is_empty():
        raise InputError("the files hold no ride with a time and a place; check the columns pickup_time, lat, lon")
    began = time.thread_time()
    # Records give places to about ten metres, so the same one comes often: one look-up per place, not per ride.
    places = usable.select("lat", "lon").unique()
    places = places.with_columns(
        pl.Series("cell", [h3.latlng_to_cell(lat, lon, resolution) for lat, lon in places.iter_rows()], dtype=pl.String)
    )
    placed = usable.join(places, on=["lat", "lon"], how="left", maintain_order="left").select(
        "cell", (pl.col("pickup_time").dt.epoch("s") // SLOT_S).alias("slot")
    )
    pickups: dict[int, dict[str, int]] = {}
    for slot, cell, count in placed.group_by("slot", "cell").len().sort("slot", "cell").iter_rows():
        pickups.setdefault(slot, {})[cell] = count
    first, last = min(pickups), max(pickups)
    counts = np.array(
        [[pickups.get(slot, {}).get(cell, 0) for cell in cells] for slot in range(first, last + 1)], float
    )
    spent_us = (time.thread_time() - began) * 1e6
    return Recording(
        first_slot=first,
        counts=counts,
        pickups=pickups,
        cells=cells,
        rides=len(usable),
        rejected=len(everything) - len(usable),
        count_us=spent_us / len(usable),
    )


@dataclass(slots=True)
class Score:
    """Running sums of one model's errors, per horizon, and of the processor time that it took."""

    name: str
    count: Floats = field(default_factory=lambda: np.zeros(len(HORIZONS_MIN)))
    absolute: Floats = field(default_factory=lambda: np.zeros(len(HORIZONS_MIN)))
    square: Floats = field(default_factory=lambda: np.zeros(len(HORIZONS_MIN)))
    came: Floats = field(default_factory=lambda: np.zeros(len(HORIZONS_MIN)))
    pinball: Floats = field(default_factory=lambda: np.zeros(len(HORIZONS_MIN)))
    covered: Floats = field(default_factory=lambda: np.zeros(len(HORIZONS_MIN)))
    tenths: Floats = field(default_factory=lambda: np.zeros((len(HORIZONS_MIN), 10)))
    learn_s: float = 0.0
    forecast_s: float = 0.0

    def add(self, horizon: int, came: Floats, point: Floats, spread: Floats) -> None:
        """Count errors: `came` and `point` have shape (times, cells), `spread` (times, levels, cells)."""
        error = came - point
        self.count[horizon] += came.size
        self.absolute[horizon] += np.abs(error).sum()
        self.square[horizon] += (error**2).sum()
        self.came[horizon] += came.sum()
        for index, level in enumerate(LEVELS):
            miss = came - spread[:, index]
            self.pinball[horizon] += np.maximum(level * miss, (level - 1) * miss).sum() / len(LEVELS)
        self.covered[horizon] += ((came >= spread[:, 0]) & (came <= spread[:, -1])).sum()

    def add_pit(self, horizon: int, places: Floats) -> None:
        """Count in which tenths of their forecast distributions the counts lay that came."""
        self.tenths[horizon] += np.histogram(places, bins=10, range=(0.0, 1.0))[0]


@dataclass(slots=True)
class Rival:
    """A model, its score, and the forecasts that wait to be scored together."""

    model: Model
    score: Score
    means: list[Floats] = field(default_factory=list)
    spreads: list[Floats] = field(default_factory=list)


def score(
    recording: Recording,
    *,
    start_slot: int,
    end_slot: int,
    calendar: Calendar = UTC_CALENDAR,
    point: str = "median",
    keep: bool = False,
) -> tuple[list[Score], list[pl.DataFrame], int]:
    """Run every model over the recording, and score the forecasts issued in `[start_slot, end_slot)`.

    A forecast whose window the recording does not cover to its end is made, but not scored.

    Returns:
        The scores in the order of the table, the forecasts as frames if `keep`, and the pickups in scored slots.
    """
    counts, first = recording.counts, recording.first_slot
    cells = len(recording.cells)
    totals = np.vstack([np.zeros((1, cells)), np.cumsum(counts, axis=0)])
    rivals = [
        Rival(LastValue(cells), Score("last value")),
        Rival(SeasonalNaive(cells), Score("same window last week (seasonal naive)")),
        Rival(HourOfWeekAverage(cells, first_slot=first), Score("hour-of-week average (smoothed, weekly decay)")),
        Rival(Ewma(cells), Score("EWMA, half-life 10 min")),
    ]
    single = Score("hour-of-week × current level (online)")
    blend_mean, blend_median = Score("blend of levels (online), mean"), Score("blend of levels (online), median")
    floor = Score("Poisson noise floor (of the blend's mean)")
    service = CellForecasts(resolution_of(recording.cells[0]), calendar=calendar)
    service.begin(first)
    chance = np.random.default_rng(2014)
    prices: dict[str, CellPrice] = {}
    rules = PricingRules()
    frames: list[pl.DataFrame] = []
    slots: list[int] = []
    singles: list[tuple[Floats, Floats]] = []
    blends: list[Expected] = []
    multipliers: list[Floats] = []
    events = 0

    def settle() -> None:
        """Score what was forecast since the last time."""
        if not slots:
            return
        rows = np.array(slots) - first
        kept_means, kept_spreads = np.stack([one.mean for one in blends]), np.stack([one.quantiles for one in blends])
        single_means, single_spreads = (np.stack([item[part] for item in singles]) for part in (0, 1))
        for index, length in enumerate(HORIZON_SLOTS):
            known = rows + length <= len(counts)
            came = totals[rows[known] + length] - totals[rows[known]]
            for rival in rivals:
                means, spreads = np.stack(rival.means)[known, index], np.stack(rival.spreads)[known, index]
                rival.score.add(index, came, means, spreads)
            single.add(index, came, single_means[known, index], single_spreads[known, index])
            mean, spread = kept_means[known, index], kept_spreads[known, index]
            blend_mean.add(index, came, mean, spread)
            blend_median.add(index, came, spread[:, 1], spread)
            for made, that_came in zip(itertools.compress(blends, known), came, strict=True):
                above_0 = np.maximum(made.mean[index], 1e-9)
                blend_mean.add_pit(index, randomised_pit(that_came, above_0, made.dispersion[index], chance))
            drawn = chance.poisson(mean).astype(np.float64)
            poisson = np.moveaxis(quantiles(mean.ravel()).reshape(len(LEVELS), *mean.shape), 0, 1)
            floor.add(index, drawn, mean, poisson)
        if keep:
            frames.append(_frame(recording.cells, slots, kept_means, kept_spreads, np.stack(multipliers), point))
        for rival in rivals:
            rival.means.clear()
            rival.spreads.clear()
        for waiting in (slots, singles, blends, multipliers):
            waiting.clear()

    # A hole is left out of learning by every model, so that no one takes it for quiet weeks.
    busy = np.flatnonzero(counts.sum(axis=1))
    holes = {int(left) + 1: int(right - left) - 1 for left, right in itertools.pairwise(busy)}
    holes = {row: length for row, length in holes.items() if length > GAP_SLOTS}
    row = 0
    while row < len(counts):
        if row in holes:
            for rival in rivals:
                rival.model.skip(holes[row])
            row += holes[row]
            continue
        scored = start_slot <= first + row < end_slot
        if scored:
            slots.append(first + row)
            events += int(counts[row].sum())
            for rival in rivals:
                began = time.thread_time()
                mean = rival.model.mean()
                rival.means.append(mean)
                rival.spreads.append(_poisson(mean))
                rival.score.forecast_s += time.thread_time() - began
            began = time.thread_time()
            expected = service.expected(recording.cells)
            spent = time.thread_time() - began
            blend_mean.forecast_s += spent
            blend_median.forecast_s += spent
            blends.append(expected)
            singles.append((expected.level_only, _poisson(expected.level_only)))
            if keep:
                last = counts[row - 1] if row else np.zeros(cells)
                activity = {
                    cell: Activity(demand=float(last[index]), supply=float(expected.usual[index]))
                    for index, cell in enumerate(recording.cells)
                }
                prices = reprice(prices, activity, ring=ring, elapsed_s=SLOT_S, rules=rules)
                multipliers.append(
                    np.array([prices[cell].multiplier if cell in prices else 1.0 for cell in recording.cells])
                )
        for rival in rivals:
            began = time.thread_time()
            rival.model.observe(counts[row])
            rival.score.learn_s += (time.thread_time() - began) * scored
        began = time.thread_time()
        service.observe(first + row, recording.pickups.get(first + row, {}))
        spent = (time.thread_time() - began) * scored
        for mine in (single, blend_mean, blend_median):
            mine.learn_s += spent
        row += 1
        if len(slots) == SLOTS_PER_DAY:
            settle()
    settle()
    scores = [rival.score for rival in rivals]
    return [*scores, single, blend_mean, blend_median, floor], frames, events


def _poisson(mean: Floats) -> Floats:
    """Poisson quantiles of shape (horizons, levels, cells)."""
    return np.stack([quantiles(row) for row in mean])


def _frame(
    cells: tuple[str, ...], slots: Sequence[int], means: Floats, spreads: Floats, multipliers: Floats, point: str
) -> pl.DataFrame:
    """Forecasts as rows of ts, cell, horizon_min, pred, q10, q50, q90, multiplier."""
    times, horizons, width = means.shape
    points = spreads[:, :, 1] if point == "median" else means
    return pl.DataFrame(
        {
            "ts": np.repeat(np.array(slots, dtype=np.int64) * SLOT_S, horizons * width),
            "cell": np.tile(np.array(cells, dtype=object), times * horizons),
            "horizon_min": np.tile(np.repeat(np.array(HORIZONS_MIN, dtype=np.int32), width), times),
            "pred": points.ravel(),
            "q10": spreads[:, :, 0].ravel(),
            "q50": spreads[:, :, 1].ravel(),
            "q90": spreads[:, :, 2].ravel(),
            "multiplier": np.repeat(multipliers[:, None, :], horizons, axis=1).ravel(),
        },
        schema_overrides={"cell": pl.String},
    )


def table(scores: Sequence[Score], *, events: int) -> str:
    """The scores as a Markdown table; each figure for 5, 15 and 30 minutes."""
    naive = next(one for one in scores if "seasonal naive" in one.name)
    lines = [
        "| model | MAE | RMSE | WAPE | MASE | pinball | cover80 | µs per event | µs per cell-forecast |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in scores:
        count = np.maximum(one.count, 1)
        mae = one.absolute / count
        figures = (
            _pair(mae),
            _pair(np.sqrt(one.square / count)),
            _pair(one.absolute / np.maximum(one.came, 1)),
            _pair(mae / np.maximum(naive.absolute / count, 1e-12)),
            _pair(one.pinball / count),
            _pair(one.covered / count),
        )
        costs = ("", "")
        if one.forecast_s:
            costs = (
                f"{one.learn_s * 1e6 / max(events, 1):.1f}",
                f"{one.forecast_s * 1e6 / max(one.count.sum(), 1):.2f}",
            )
        lines.append(f"| {' | '.join((one.name, *figures, *costs))} |")
    return "\n".join(lines)


def pit_table(scores: Sequence[Score]) -> str:
    """The shares of what came in each tenth of the forecast distributions, of the models that have them, as Markdown.

    A share of .100 in each says that the distributions are right.
    """
    lines = ["| model, minutes | " + " | ".join(f"{tenth / 10:.1f}" for tenth in range(10)) + " |", "|---" * 11 + "|"]
    for one in scores:
        for minutes, tenths in zip(HORIZONS_MIN, one.tenths, strict=True):
            if total := tenths.sum():
                lines.append(f"| {one.name}, {minutes} | {' | '.join(f'{count / total:.3f}' for count in tenths)} |")
    return "\n".join(lines)


def _pair(values: Floats) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no date or time; give one as 2014-05-18 or 2014-05-18T06:00"
        ) from error
    return moment.replace(tzinfo=UTC)


def _slot(moment: datetime) -> int:
    return -(-int(moment.timestamp()) // SLOT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="surge-score", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("rides", nargs="+", type=Path, help="recorded rides, Parquet or the TLC's CSV; all history too")
    parser.add_argument(
        "--from", dest="start", type=_moment, help="first moment to forecast at (default: 14 days before the end)"
    )
    parser.add_argument("--until", dest="end", type=_moment, help="first moment not to forecast at (default: the end)")
    parser.add_argument("--cells", type=Path, required=True, help="file of the H3 cells to forecast, one per line")
    parser.add_argument("--res", type=int, choices=(7, 8), required=True, help="H3 resolution of the cells")
    parser.add_argument(
        "--holidays",
        default="",
        help="whose public holidays the service's model takes for Sundays, such as US or US-NY (default: nobody's)",
    )
    parser.add_argument("--predictions", type=Path, help="write the blend's forecasts to this .parquet or .jsonl file")
    parser.add_argument(
        "--point",
        choices=("median", "mean"),
        default="median",
        help="what stands as `pred`: the median has the smaller absolute error, the mean the smaller squared one",
    )
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except InputError as error:
        print(f"surge-score: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    target: Path | None = options.predictions
    if target is not None and target.suffix not in {".parquet", ".jsonl"}:
        raise InputError(f"{target} ends in neither .parquet nor .jsonl; name the predictions file so")
    if target is not None and not target.parent.is_dir():
        raise InputError(f"the folder of {target} does not exist; create it first")
    try:
        calendar = calendar_of("UTC", options.holidays)  # rides have local times without a zone
    except ValueError as error:
        raise InputError(str(error)) from error
    began = time.perf_counter()
    recording = read_rides(options.rides, read_cells(options.cells, options.res), options.res)
    end_of_data = recording.first_slot + len(recording.counts)
    end_slot = min(_slot(options.end), end_of_data) if options.end else end_of_data
    start_slot = _slot(options.start) if options.start else max(recording.first_slot, end_slot - 14 * SLOTS_PER_DAY)
    if start_slot >= end_slot or start_slot < recording.first_slot:
        first = datetime.fromtimestamp(recording.first_slot * SLOT_S, UTC)
        last = datetime.fromtimestamp(end_of_data * SLOT_S, UTC)
        raise InputError(f"no moment to score in that period; the rides run from {first:%F %R} to {last:%F %R}")
    scores, frames, events = score(
        recording,
        start_slot=start_slot,
        end_slot=end_slot,
        calendar=calendar,
        point=options.point,
        keep=target is not None,
    )
    begin, end = (datetime.fromtimestamp(slot * SLOT_S, UTC) for slot in (start_slot, end_slot))
    print(
        f"Forecasts issued from {begin:%F %R} to {end:%F %R}, {len(recording.cells)} cells of resolution {options.res};"
    )
    print(f"each figure for {' / '.join(map(str, HORIZONS_MIN))} min; {events:,} pickups in these cells.\n")
    print(table(scores, events=events))
    print("\nShare of what came by tenths of its forecast distribution (randomised PIT; .100 in each is right):\n")
    print(pit_table(scores))
    print(f"\nCounting a ride into its cell took {recording.count_us:.1f} µs more, for every model.", end=" ")
    print(
        f"{recording.rides:,} rides read, {recording.rejected:,} rejected; {time.perf_counter() - began:.1f} s in all."
    )
    if target is not None:
        predictions = pl.concat(frames)
        if target.suffix == ".parquet":
            predictions.write_parquet(target)
        else:
            predictions.write_ndjson(target)
        print(f"{len(predictions):,} forecasts written to {target}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
