"""Recorded rides as a stream in order of time, with bounded memory, from a file or a folder of files.

A file whose times already rise is read batch by batch. Any other is sorted through temporary files, `RUN_ROWS` rows
at a time. Files are merged by time. A row that cannot be a ride goes to the rejects file with its line and the reason.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import json
import math
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import IO, Any

from hailbus_demo.city.plan import RidePlan, to_datetime, to_ms
from hailbus_demo.city.simulate import Riders
from hailbus_demo.city.table import METRES_PER_MILE
from hailbus_demo.ride_files.layouts import NAMES, Layout, recognise

MINUTE_MS = 60_000
BATCH_ROWS = 8_192
RUN_ROWS = 100_000
"""Rows that are sorted in memory at a time."""
LONGEST_TRIP_MS = 6 * 3_600_000
SOUTH, NORTH, WEST, EAST = 39.5, 42.0, -75.5, -72.0
"""A place outside this box is no place of a New York ride (TLC files hold many at 0, 0)."""
UNKNOWN_ZONES = frozenset({264, 265})
"""TLC's numbers for "unknown" and "outside of New York City"."""
CSV_TIMES = ("%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %H:%M", "%Y-%m-%dT%H:%M:%S")
SUFFIXES = (".parquet", ".csv")
BROKEN = "\0reason"
"""Key under which the CSV reader says why a line is no row; no column has this name."""


class RideFileError(Exception):
    """A file or folder that no rides can be read from; the message says what to do."""


class RejectedRowError(Exception):
    """A row that cannot be a ride; the message is the reason."""


@dataclass(slots=True)
class ReadCounts:
    """What became of the rows read. `rejected` counts reasons; `outside` rows lie outside of the asked period."""

    read: int = 0
    taken: int = 0
    outside: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One recorded ride. Ordered by time, then file and line, so that equal times keep the file's order."""

    at_ms: int
    file: int
    line: int
    pickup: tuple[float, float] | int
    dropoff: tuple[float, float] | int | None
    passengers: int | None
    distance_m: int | None
    duration_s: int | None
    base: str | None


class RideFiles:
    """Recorded rides of a file, or of all `.parquet` and `.csv` files of a folder.

    Args:
        path: The file or folder.
        riders: Invents what the records lack: riders, destinations of pickup records, waiting times.
        first_ms: Rides before it are left out.
        until_ms: Rides from it on are left out.
        rejects: Where rejected rows are written, as CSV with file, line, reason and the row; made when there is one.

    Raises:
        RideFileError: Nothing readable there, or a file with a layout that is not known.
    """

    def __init__(
        self,
        path: Path,
        *,
        riders: Riders,
        first_ms: int | None = None,
        until_ms: int | None = None,
        rejects: Path | None = None,
    ) -> None:
        self.riders = riders
        self.first_ms = first_ms
        self.until_ms = until_ms
        self.rejects_path = rejects
        self.counts = ReadCounts()
        self._rejects: IO[str] | None = None
        self.files = _files_of(path)
        self.layouts = [_layout_of(file) for file in self.files]
        self._tags = [hashlib.sha256(file.name.encode()).hexdigest()[:8] for file in self.files]

    def rides(self) -> Iterator[RidePlan]:
        """Yield the rides as plans in order of time. May be called again for a second pass; counts start anew."""
        self.counts = ReadCounts()
        if self.rejects_path is not None:
            self.rejects_path.unlink(missing_ok=True)
        with ExitStack() as stack:
            stack.callback(self._close_rejects)
            streams = [self._spread(self._sorted(i, stack), i) for i in range(len(self.files))]
            for row in heapq.merge(*streams):
                if self.first_ms is not None and row.at_ms < self.first_ms:
                    self.counts.outside += 1
                    continue
                if self.until_ms is not None and row.at_ms >= self.until_ms:
                    self.counts.outside += 1
                    continue
                self.counts.taken += 1
                yield self._plan(row)

    def _plan(self, row: Row) -> RidePlan:
        key = f"f{self._tags[row.file]}-{row.line}"
        random = Random(f"{self.riders.seed}:{key}")
        city = self.riders.city
        pickup = city.place_in_zone(row.pickup, random) if isinstance(row.pickup, int) else row.pickup
        dropoff = city.place_in_zone(row.dropoff, random) if isinstance(row.dropoff, int) else row.dropoff
        return self.riders.plan(
            key=key,
            at_ms=row.at_ms,
            pickup=pickup,
            dropoff=dropoff,
            random=random,
            fleet=row.base,
            passengers=row.passengers,
            distance_m=row.distance_m,
            duration_s=row.duration_s,
            recorded=True,
        )

    def _spread(self, rows: Iterator[Row], file: int) -> Iterator[Row]:
        """Give rows of a file of whole minutes a second and a millisecond of their own, from their line's hash."""
        if not self.layouts[file].whole_minutes:
            yield from rows
            return
        held: list[Row] = []  # bound: the rows of one minute
        for row in rows:
            while held and held[0].at_ms < row.at_ms:
                yield heapq.heappop(held)
            digest = hashlib.blake2b(f"{self._tags[file]}:{row.line}".encode(), digest_size=4).digest()
            at_ms = row.at_ms + int.from_bytes(digest, "big") % MINUTE_MS
            heapq.heappush(
                held,
                Row(
                    at_ms,
                    row.file,
                    row.line,
                    row.pickup,
                    row.dropoff,
                    row.passengers,
                    row.distance_m,
                    row.duration_s,
                    row.base,
                ),
            )
        while held:
            yield heapq.heappop(held)

    def _sorted(self, file: int, stack: ExitStack) -> Iterator[Row]:
        path = self.files[file]
        if path.suffix.lower() == ".parquet":
            from hailbus_demo.ride_files import parquet

            columns = self.layouts[file].columns
            if parquet.times_rise(path, columns.pickup_time):
                return self._rows(file, parquet.rows(path, columns, self._window(file)))
            return _external_sort(self._rows(file, parquet.rows(path, columns, None)), stack)
        return _external_sort(self._rows(file, _csv_rows(path)), stack)

    def _window(self, file: int) -> tuple[int | None, int | None]:
        """Return the raw times that can matter: spreading moves a row up to one minute on."""
        slack = MINUTE_MS if self.layouts[file].whole_minutes else 0
        return (None if self.first_ms is None else self.first_ms - slack), self.until_ms

    def _rows(self, file: int, raw: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[Row]:
        columns = self.layouts[file].columns
        names = {ours: getattr(columns, ours) for ours in NAMES}
        used = [(ours, theirs) for ours, theirs in names.items() if theirs is not None]
        for line, record in raw:
            self.counts.read += 1
            try:
                if BROKEN in record:
                    raise RejectedRowError(str(record[BROKEN]))
                row = _row(
                    file, line, {ours: record.get(theirs) for ours, theirs in used}, self.riders.city.table.zones
                )
            except RejectedRowError as error:
                self._reject(self.files[file], line, str(error), record)
                continue
            slack = MINUTE_MS if self.layouts[file].whole_minutes else 0
            if (self.first_ms is not None and row.at_ms + slack < self.first_ms) or (
                self.until_ms is not None and row.at_ms >= self.until_ms
            ):
                self.counts.outside += 1
                continue
            yield row

    def _reject(self, path: Path, line: int, reason: str, record: Mapping[str, Any]) -> None:
        self.counts.rejected[reason.split(":", 1)[0]] += 1
        if self.rejects_path is None:
            return
        if self._rejects is None:
            self.rejects_path.parent.mkdir(parents=True, exist_ok=True)
            self._rejects = self.rejects_path.open("w", newline="", encoding="utf-8")
            csv.writer(self._rejects, lineterminator="\n").writerow(("file", "line", "reason", "row"))
        content = json.dumps({str(k): v for k, v in record.items()}, default=str, ensure_ascii=False)
        csv.writer(self._rejects, lineterminator="\n").writerow((path.name, line, reason, content))

    def _close_rejects(self) -> None:
        if self._rejects is not None:
            self._rejects.close()
            self._rejects = None


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
        if not files:
            raise RideFileError(f"{path} holds no .parquet or .csv file: name a file or folder with recorded rides")
        return files
    if not path.exists():
        raise RideFileError(f"{path} does not exist: name a file or folder with recorded rides")
    if path.suffix.lower() not in SUFFIXES:
        raise RideFileError(f"{path} is neither .parquet nor .csv: convert it, or name another file")
    return [path]


def _layout_of(path: Path) -> Layout:
    try:
        if path.suffix.lower() == ".parquet":
            from hailbus_demo.ride_files import parquet  # only who reads such files needs pyarrow, and waits for it

            columns = parquet.column_names(path)
        else:
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                columns = next(csv.reader(file), [])
    except ModuleNotFoundError as error:
        raise RideFileError(f"{path} needs pyarrow: install hailbus-demo[parquet], or convert it to CSV") from error
    except OSError as error:
        raise RideFileError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): check the file, or name another"
        ) from error
    layout = recognise(columns)
    if layout is None:
        shown = ", ".join(columns[:8]) or "no columns"
        raise RideFileError(
            f"{path} has a layout that is not known (it begins with: {shown}): it needs a pickup time and "
            "a pickup place or zone, named as in the TLC's files"
        )
    return layout


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and row; a line with too few or too many fields shows as such in the row."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield reader.line_num, {BROKEN: f"line cannot be read: {error}"}
                continue
            if not fields:
                continue  # TLC files have an empty line after the header
            if len(fields) < len(header):
                reason = f"line has too few fields: {len(fields)} of {len(header)}"
                yield reader.line_num, {BROKEN: reason, **dict(zip(header, fields, strict=False))}
            else:
                yield reader.line_num, dict(zip(header, fields, strict=False))


def _external_sort(rows: Iterator[Row], stack: ExitStack) -> Iterator[Row]:
    """Sort any number of rows with `RUN_ROWS` of them in memory: sorted runs in temporary files, then merged."""
    run = sorted(islice(rows, RUN_ROWS))
    following = next(rows, None)
    if following is None:
        return iter(run)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hailbus-rides-")))
    runs: list[Path] = []
    rest = _prepend(following, rows)
    while run:
        target = folder / f"{len(runs)}.run"
        with target.open("wb") as file:
            for i in range(0, len(run), BATCH_ROWS):
                pickle.dump(run[i : i + BATCH_ROWS], file, protocol=pickle.HIGHEST_PROTOCOL)
        runs.append(target)
        run = sorted(islice(rest, RUN_ROWS))
    return heapq.merge(*(_read_run(path) for path in runs))


def _prepend(first: Row, rest: Iterable[Row]) -> Iterator[Row]:
    yield first
    yield from rest


def _read_run(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        while True:
            try:
                yield from pickle.load(file)  # noqa: S301  # written by this process a moment ago
            except EOFError:
                return


def _row(file: int, line: int, record: Mapping[str, Any], zones: Mapping[int, object]) -> Row:
    """Make a row of a record under our names, or say why it cannot be a ride."""
    at = _time(record.get("pickup_time"), "pickup time")
    if at is None:
        raise RejectedRowError("no pickup time")
    pickup = _where(record, "pickup", zones)
    if pickup is None:
        raise RejectedRowError("no pickup place")
    duration_s = None
    ended = _time(record.get("dropoff_time"), "dropoff time")
    if ended is not None:
        if ended <= at:
            raise RejectedRowError("dropoff is not after pickup")
        if ended - at > LONGEST_TRIP_MS:
            raise RejectedRowError(f"trip longer than {LONGEST_TRIP_MS // 3_600_000} hours")
        duration_s = max(1, (ended - at) // 1000)
    miles = _number(record.get("miles"), "distance")
    if miles is not None and not 0 <= miles <= 200:
        raise RejectedRowError(f"distance out of range: {miles:g} miles")
    passengers = _number(record.get("passengers"), "passengers")
    base = record.get("base")
    return Row(
        at_ms=at,
        file=file,
        line=line,
        pickup=pickup,
        dropoff=_where(record, "dropoff", zones),
        passengers=int(passengers) if passengers is not None and 1 <= passengers <= 8 else None,
        distance_m=round(miles * METRES_PER_MILE) if miles else None,
        duration_s=duration_s,
        base=None if base is None else str(base).strip() or None,
    )


def _where(record: Mapping[str, Any], end: str, zones: Mapping[int, object]) -> tuple[float, float] | int | None:
    lat = _number(record.get(f"{end}_lat"), f"{end} latitude")
    lng = _number(record.get(f"{end}_lng"), f"{end} longitude")
    if lat is not None and lng is not None:
        if SOUTH <= lat <= NORTH and WEST <= lng <= EAST:
            return round(lat, 5), round(lng, 5)
        if end == "pickup":
            raise RejectedRowError(f"pickup outside of the city: {lat:g}, {lng:g}")
        return None  # the ride took place; its destination is drawn like that of a pickup record
    number = _number(record.get(f"{end}_zone"), f"{end} zone")
    if number is None:
        return None
    zone = int(number)
    if zone in zones:
        return zone
    if end == "pickup":
        reason = (
            "pickup zone is 'unknown' in the TLC's list"
            if zone in UNKNOWN_ZONES
            else "pickup zone is not in the TLC's list"
        )
        raise RejectedRowError(f"{reason}: {zone}")
    return None


def _number(value: Any, what: str) -> float | None:  # Any: a CSV field or whatever type the Parquet column has
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RejectedRowError(f"{what} is no number: {str(value)[:40]!r}") from None
    if math.isinf(number):
        raise RejectedRowError(f"{what} is no number: {value}")
    return None if math.isnan(number) else number


def _time(value: Any, what: str) -> int | None:  # Any: as in _number
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, datetime):
        return to_ms(value)
    if isinstance(value, date):
        return to_ms(datetime(value.year, value.month, value.day))  # noqa: DTZ001  # wall time, read as UTC
    text = str(value).strip()
    for parse in _PARSERS:
        try:
            return to_ms(parse(text))
        except ValueError:
            continue
    raise RejectedRowError(f"{what} cannot be read: {text[:40]!r}")


def _by_format(pattern: str) -> Callable[[str], datetime]:
    return lambda text: datetime.strptime(text, pattern)  # noqa: DTZ007  # wall time, read as UTC


_PARSERS: tuple[Callable[[str], datetime], ...] = (datetime.fromisoformat, *(_by_format(p) for p in CSV_TIMES[1:]))


def first_time(ms: int) -> str:
    """Return a time for a message."""
    return to_datetime(ms).strftime("%Y-%m-%d %H:%M:%S")
