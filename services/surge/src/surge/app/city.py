"""One city: facts go in, prices and forecasts come out at the end of each minute of event time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from surge.domain.calendar import SLOT_S, SLOTS_PER_WEEK, Calendar
from surge.domain.cells import PRICING_RESOLUTION, ROLL_UP_RESOLUTION, parent, resolution_of, ring
from surge.domain.dispersion import Dispersion
from surge.domain.forecast import HORIZONS_MIN, LONGEST, UTC_CALENDAR, CountModel, Quantity
from surge.domain.numbers import Arrays, Floats
from surge.domain.pricing import CALM, CellPrice, PricingRules, reprice
from surge.domain.quantiles import LEVELS
from surge.domain.score import ScoreKeeper
from surge.domain.windows import MINUTE_MS, WINDOW_MS, CellDemand, Fact, Minute, Seen, Windows

SLOT_MS: Final = SLOT_S * 1000
IDLE_MINUTES: Final = 60
"""A city without any fact for this long is asleep: minutes are skipped until the next fact."""
KEPT_SLOTS: Final = 5 * SLOTS_PER_WEEK
"""Counts that the forecast is rebuilt from where there is no snapshot; then a longer history is lost."""
DRIVER_SHARES: Final = 16
"""A minute's drivers are kept in this many rows, so that no row grows large and few rows change per batch."""

_MEDIAN: Final = LEVELS.index(0.5)

Row = dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """A multiplier to publish. `version` counts minutes since the epoch, so it grows with every one of the cell."""

    cell: str
    multiplier: float
    version: int
    window_end_ms: int
    demand: float
    supply: float
    valid_until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellForecast:
    """Pickups expected in a cell in the `horizon_min` minutes after `issued_at_ms`, or free drivers at their end."""

    cell: str
    horizon_min: int
    mean: float
    p10: float
    p50: float
    p90: float
    issued_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScore:
    """How far the forecasts of a resolution that were made at `issued_at_ms` for `horizon_min` minutes were off.

    `absolute_error` sums |median − pickups| over `forecasts` cells, `naive_absolute_error` |pickups before − pickups|,
    before being the `horizon_min` minutes until `issued_at_ms`. Of supply, it is free drivers at the end and at
    `issued_at_ms`.
    """

    resolution: int
    horizon_min: int
    forecasts: int
    absolute_error: float
    naive_absolute_error: float
    issued_at_ms: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected in the cells, and how far what was expected before was off."""

    forecasts: tuple[CellForecast, ...] = ()
    scores: tuple[ForecastScore, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The counts of a slot of five minutes that has ended.

    `pickups` per pricing cell and per roll-up cell, `drivers` that were free at its end per pricing cell.
    """

    number: int
    pickups: Mapping[str, int]
    drivers: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteClosed:
    """What the end of a minute brought.

    `demand` and `supply` are forecasts and scores to publish.
    """

    end_ms: int
    prices: tuple[PriceChange, ...]
    demand: Outlook
    supply: Outlook
    slot: Slot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Pickups expected in some cells.

    `mean` and `level_only`, the mean by the first model, have shape (horizons, cells), `quantiles` (horizons, levels,
    cells), and `usual`, what the next slot usually brings, (cells,). `dispersion` is that of each horizon.
    """

    mean: Floats
    quantiles: Floats
    dispersion: tuple[Dispersion, ...]
    level_only: Floats
    usual: Floats


class CellForecasts:
    """The model of demand or supply at one resolution, with a column for every cell that ever had any."""

    def __init__(
        self, resolution: int, quantity: Quantity = Quantity.FLOW, *, calendar: Calendar = UTC_CALENDAR
    ) -> None:
        self._resolution = resolution
        self._columns: dict[str, int] = {}
        self._model = CountModel(quantity=quantity, calendar=calendar)
        self._scores = ScoreKeeper(quantity)

    def observe(self, slot: int, counted: Mapping[str, int]) -> list[ForecastScore]:
        """Learn the counts of one slot; return the scores of the forecasts that end with it.

        Of a slot that has no counts of this resolution, those of its cells' parents are taken.
        """
        summed = {cell: count for cell, count in counted.items() if resolution_of(cell) == self._resolution}
        if not summed:  # it was kept by a version that counted pricing cells alone
            for cell, count in counted.items():
                summed[parent(cell, self._resolution)] = summed.get(parent(cell, self._resolution), 0) + count
        unknown = sorted(summed.keys() - self._columns.keys())
        for cell in unknown:
            self._columns[cell] = len(self._columns)
        self._model.grow(unknown)
        if self._model.next_slot != slot:
            self._model.start_at(slot)
            self._scores.forget()
        counts = np.zeros(len(self._columns))
        for cell, count in summed.items():
            counts[self._columns[cell]] = count
        self._model.observe(counts)
        return [
            ForecastScore(
                resolution=self._resolution,
                horizon_min=HORIZONS_MIN[score.horizon],
                forecasts=score.forecasts,
                absolute_error=score.absolute_error,
                naive_absolute_error=score.naive_absolute_error,
                issued_at_ms=score.slot * SLOT_MS,
            )
            for score in self._scores.observe(slot, counts)
        ]

    def begin(self, slot: int) -> None:
        """The first slot is this one."""
        self._model.start_at(slot)

    def snapshot(self) -> Arrays | None:
        """All that was learnt, by name; None before the first slot. Arrays are not copied."""
        if self._model.next_slot is None:
            return None
        return {
            "cells": np.array(list(self._columns), dtype=np.str_),
            **self._model.snapshot(),
            **{f"scores/{name}": array for name, array in self._scores.snapshot().items()},
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue where another one was when `snapshot` was called; nothing may have been observed yet."""
        cells = [str(cell) for cell in arrays["cells"]]
        self._columns = {cell: column for column, cell in enumerate(cells)}
        self._model.grow(cells)
        self._model.restore(arrays)
        self._scores.restore(_under("scores/", arrays))

    def expected(self, cells: Sequence[str]) -> Expected:
        """What is expected in these cells from the end of the last slot on; 0 in one that was never asked from."""
        made = self._model.forecast()
        columns = np.array([self._columns.get(cell, self._model.cells) for cell in cells], dtype=np.intp)
        mean, spread, level, usual = (
            np.concatenate([array, np.zeros((*array.shape[:-1], 1))], axis=-1)[..., columns]
            for array in (made.mean, made.quantiles, self._model.level_only(), self._model.usual())
        )
        return Expected(mean=mean, quantiles=spread, dispersion=made.dispersion, level_only=level, usual=usual)

    def forecast(self, *, least: float) -> list[CellForecast]:
        """Forecasts to publish from the end of the last slot on, of cells whose recent counts are at least `least`."""
        made = self._model.forecast()
        slot = self._model.next_slot
        assert slot is not None, "a forecast needs a slot before it"
        columns = np.flatnonzero(self._model.recent_counts() >= least)
        self._scores.published(slot, columns, made.quantiles[:, _MEDIAN, columns])
        known = list(self._columns)
        cells = [known[column] for column in columns]
        return [
            CellForecast(
                cell=cell, horizon_min=horizon_min, mean=mean, p10=p10, p50=p50, p90=p90, issued_at_ms=slot * SLOT_MS
            )
            for horizon_min, means, spread in zip(
                HORIZONS_MIN, made.mean[:, columns].round(4), made.quantiles[:, :, columns], strict=True
            )
            for cell, mean, (p10, p50, p90) in zip(cells, means.tolist(), spread.T.tolist(), strict=True)
        ]


class City:
    """Windows, prices and forecasts of one city, with the rows that it can be rebuilt from.

    Everything is a deterministic function of the facts: a city that is restored from its rows and hears some facts
    again continues exactly as the one before. Three kinds of rows hold it:

    - `demand/…` and `supply/…`: who was seen in a minute, by cell or by share of the drivers; newest values only, so
      that rows that were written by half before a crash are completed by hearing the facts again.
    - the state: up to when minutes are closed, and all prices: one row, so that a minute is closed wholly or not.
    - slots: pickups per cell of both resolutions and five minutes, and free drivers at their end, from which the
      forecasts are learnt again.

    A snapshot holds what the forecast has learnt from all slots until some moment, also from those whose rows are gone.
    """

    def __init__(self, *, rules: PricingRules, least_counts: float = 3.0, calendar: Calendar = UTC_CALENDAR) -> None:
        self._rules = rules
        self._least_counts = least_counts
        self._windows = Windows()
        self._prices: dict[str, CellPrice] = {}
        self._demand = {
            number: CellForecasts(number, calendar=calendar) for number in (PRICING_RESOLUTION, ROLL_UP_RESOLUTION)
        }
        self._supply = CellForecasts(PRICING_RESOLUTION, Quantity.STOCK, calendar=calendar)
        self._by_name = {**{str(number): each for number, each in self._demand.items()}, "supply": self._supply}
        self._changed: set[tuple[str, int, str | int]] = set()
        self._rows_of_minute: dict[int, set[str]] = {}

    @property
    def late_count(self) -> int:
        """Facts that came after their minute was closed."""
        return self._windows.late_count

    @property
    def closed_until_ms(self) -> int | None:
        """Minutes before this are closed; None before the first one is."""
        return self._windows.closed_until_ms

    @property
    def surging(self) -> int:
        """How many cells have a multiplier above 1.0."""
        return sum(price.multiplier > 1.0 for price in self._prices.values())

    def apply(self, fact: Fact) -> bool:
        """Count a fact; False when it is late."""
        if not self._windows.apply(fact):
            return False
        minute = fact.at_ms - fact.at_ms % MINUTE_MS
        if isinstance(fact, Seen):
            self._changed.add(("supply", minute, _share_of(fact.driver_id)))
        else:
            self._changed.add(("demand", minute, fact.cell))
        return True

    def _wake_at(self, at_ms: int) -> int:
        # Aligned to a slot, so that the first slot is counted whole; nothing happened in the part before.
        closed_until_ms = at_ms - at_ms % SLOT_MS
        self._windows.close(closed_until_ms)
        return closed_until_ms

    def next_end(self, watermark_ms: int) -> int | None:
        """The end of the next minute that can be closed, None when the watermark has not come so far."""
        closed_until_ms = self._windows.closed_until_ms
        if closed_until_ms is None:
            # Time begins with the earliest fact, not with the one that happened to be read first.
            first = min(self._windows.minutes, default=watermark_ms)
            if first + MINUTE_MS > watermark_ms:
                return None
            closed_until_ms = self._wake_at(first)
        if not self._prices:
            first = min(self._windows.minutes, default=watermark_ms)
            next_ms = min(first, watermark_ms)
            if next_ms - closed_until_ms > IDLE_MINUTES * MINUTE_MS:
                closed_until_ms = self._wake_at(next_ms)
        end_ms = closed_until_ms + MINUTE_MS
        return end_ms if end_ms <= watermark_ms else None

    def close_minute(self, end_ms: int) -> MinuteClosed:
        """Close the minute that ends at `end_ms`, and say what to publish."""
        rules = self._rules
        activity = self._windows.activity(end_ms, also=self._prices, ring=ring)
        before = self._prices
        after = reprice(before, activity, ring=ring, elapsed_s=60, rules=rules)
        changes = []
        for cell, price in after.items():
            left_s = (price.valid_until_ms - end_ms) / 1000
            stays = price.multiplier == before.get(cell, CALM).multiplier
            if stays and (price.multiplier == 1.0 or left_s > rules.refresh_s):
                continue
            valid_until_ms = end_ms + rules.valid_s * 1000
            after[cell] = CellPrice(
                average=price.average, level=price.level, multiplier=price.multiplier, valid_until_ms=valid_until_ms
            )
            counted = activity.get(cell)
            if counted is None:
                counted = self._windows.activity(end_ms, also=(cell,), ring=ring)[cell]
            changes.append(
                PriceChange(
                    cell=cell,
                    multiplier=price.multiplier,
                    version=end_ms // MINUTE_MS,
                    window_end_ms=end_ms,
                    demand=round(counted.demand, 6),
                    supply=round(counted.supply, 6),
                    valid_until_ms=valid_until_ms,
                )
            )
        self._prices = after
        self._windows.close(end_ms)
        slot = None
        demand = supply = Outlook()
        if end_ms % SLOT_MS == 0:
            began_ms = end_ms - SLOT_MS
            slot = Slot(
                number=end_ms // SLOT_MS - 1,
                pickups=self._windows.rides(began_ms, end_ms) | self._windows.areas(began_ms, end_ms),
                drivers=dict(sorted(self._windows.free_drivers(end_ms).items())),
            )
            demand = self._outlook(slot.number, slot.pickups, self._demand.values())
            supply = self._outlook(slot.number, slot.drivers, [self._supply])
        self._windows.forget_before(end_ms + MINUTE_MS - WINDOW_MS)
        return MinuteClosed(end_ms=end_ms, prices=tuple(changes), demand=demand, supply=supply, slot=slot)

    def _outlook(self, slot: int, counted: Mapping[str, int], models: Iterable[CellForecasts]) -> Outlook:
        """Learn a slot, and say what is expected after it."""
        made: list[CellForecast] = []
        scores: list[ForecastScore] = []
        for model in models:
            scores.extend(model.observe(slot, counted))
            made.extend(model.forecast(least=self._least_counts))
        return Outlook(tuple(made), tuple(scores))

    # ------------------------------------------------------------------------------------------------ rows

    def changed_rows(self) -> dict[str, Row]:
        """The window rows that changed since the last call."""
        rows: dict[str, Row] = {}
        for kind, start_ms, part in sorted(self._changed, key=str):
            minute = self._windows.minutes.get(start_ms)
            if minute is None:
                continue
            key = f"{kind}/{start_ms}/{part}"
            if kind == "demand":
                who = minute.demand[str(part)]
                rows[key] = {"rides": who.rides, "quoted": sorted(who.quoted)} | (
                    {"areas": who.areas} if who.areas else {}
                )
            else:
                rows[key] = {}
            self._rows_of_minute.setdefault(start_ms, set()).add(key)
        for start_ms in {start_ms for kind, start_ms, _ in self._changed if kind == "supply"}:
            minute = self._windows.minutes.get(start_ms)
            for driver, sighting in minute.sightings.items() if minute is not None else ():
                row = rows.get(f"supply/{start_ms}/{_share_of(driver)}")
                if row is not None:
                    row[driver] = list(sighting)
        self._changed.clear()
        return rows

    def obsolete_rows(self) -> list[str]:
        """The window rows that no window reaches back to any more; each is named once."""
        if self._windows.closed_until_ms is None:
            return []
        oldest = self._windows.closed_until_ms + MINUTE_MS - WINDOW_MS
        gone = sorted(start for start in self._rows_of_minute if start < oldest)
        return [key for start in gone for key in sorted(self._rows_of_minute.pop(start))]

    def state_row(self) -> Row:
        """The state as one row."""
        return {
            "closed_until_ms": self._windows.closed_until_ms,
            "late_count": self._windows.late_count,
            "prices": {
                cell: [price.average, price.level, price.multiplier, price.valid_until_ms]
                for cell, price in self._prices.items()
            },
        }

    def snapshot(self) -> Arrays | None:
        """What the forecasts have learnt from the slots that are closed, by name; None before the first one is.

        Arrays are not copied: they change with the next slot.
        """
        found: Arrays = {}
        for kind, forecasts in self._by_name.items():
            learnt = forecasts.snapshot()
            if learnt is None:
                return None
            found |= {f"{kind}/{name}": array for name, array in learnt.items()}
        return found

    def restore(
        self,
        *,
        state: Row | None,
        windows: Mapping[str, Row],
        slots: Mapping[int, Mapping[str, int]],
        drivers: Mapping[int, Mapping[str, int]],
        snapshot: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Become the city that these rows were taken from.

        Args:
            state: The state.
            windows: The rows of the windows.
            slots: Pickups in the slots that are kept; those that the snapshot has learnt are not needed.
            drivers: Free drivers at their ends; a version that did not forecast supply kept none.
            snapshot: Taken from a city with this history, when no more minutes were closed than in `state`.
        """
        if state is not None:
            self._windows.closed_until_ms = state["closed_until_ms"]
            self._windows.late_count = state["late_count"]
            self._prices = {
                cell: CellPrice(average=average, level=level, multiplier=multiplier, valid_until_ms=valid_until_ms)
                for cell, (average, level, multiplier, valid_until_ms) in state["prices"].items()
            }
        for key, row in windows.items():
            kind, start, part = key.split("/")
            start_ms = int(start)
            minute = self._windows.minutes.setdefault(start_ms, Minute())
            if kind == "demand":
                minute.demand[part] = CellDemand(
                    rides=dict(row["rides"]), areas=dict(row.get("areas", {})), quoted=set(row["quoted"])
                )
            else:
                minute.sightings.update({driver: (at, busy, cell) for driver, (at, busy, cell) in row.items()})
            self._rows_of_minute.setdefault(start_ms, set()).add(key)
        closed_until_ms = self._windows.closed_until_ms
        learnt_until = dict.fromkeys(self._by_name, -1)
        if snapshot is not None:
            for kind, forecasts in self._by_name.items():
                own = _under(f"{kind}/", snapshot)
                if not own:
                    continue  # it was taken by a version that did not forecast supply
                forecasts.restore(own)
                learnt_until[kind] = int(own["next_slot"])
        if closed_until_ms is None:
            return
        next_slot = closed_until_ms // SLOT_MS
        for kind, forecasts in self._by_name.items():
            kept = drivers if forecasts is self._supply else slots
            # A slot may have been written and its minute not: it is counted again when the minute is closed again.
            for number in sorted(number for number in kept if learnt_until[kind] <= number < next_slot):
                forecasts.observe(number, kept[number])
                if number >= next_slot - 1 - LONGEST:
                    forecasts.forecast(least=self._least_counts)  # it may still wait for its score


def _share_of(driver_id: str) -> int:
    return crc32(driver_id.encode()) % DRIVER_SHARES


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
