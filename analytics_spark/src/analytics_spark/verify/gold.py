"""Gold against a computation of its own: SQL in duckdb over silver, written from the tables' definitions.

Nothing of `transforms.gold` is used. H3 cells are compared by the h3 library, where Spark computes on their bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import h3

from analytics_spark.verify.report import Finding, Findings, GoldReport, LineReport

__all__ = ["LINE", "SOURCES", "check_gold", "unchecked_line"]

LINE = "gold = recomputed"
_ACCOUNTS = ("gold, as Spark wrote it", "the same figures by duckdb over silver")
SOURCES = ("silver.payments", "silver.quotes", "silver.recommendations", "silver.rides")
"""Silver tables that gold is computed from."""
_TOLERANCE = 1e-9
"""Relative difference of two doubles that count as equal: sums of the same numbers in another order."""

_WINDOW = "to_timestamp(floor(epoch(ce_time) / 900) * 900)"
_DAY = "date_trunc('day', ce_time)"
# What became of an offer counts on its own day and on the next one.
_COUNTS = "{at} >= {day} AND {at} < {day} + INTERVAL 2 DAY"

_DEMAND = f"""
WITH events AS (
  SELECT ce_time, ce_type, pickup_cell, rider_id, multiplier FROM silver__quotes WHERE ce_type = 'quote.offered'
  UNION ALL
  SELECT ce_time, ce_type, pickup_cell, rider_id, multiplier FROM silver__rides
  WHERE ce_type IN ('ride.requested', 'ride.unmatched')
)
SELECT {_WINDOW} AS window_start, pickup_cell AS cell,
  count(*) FILTER (ce_type = 'ride.requested') AS requested_count,
  count(DISTINCT rider_id) FILTER (ce_type = 'ride.requested') AS rider_count,
  count(*) FILTER (ce_type = 'quote.offered') AS quoted_count,
  count(*) FILTER (ce_type = 'ride.unmatched') AS unmatched_count,
  avg(multiplier) FILTER (ce_type = 'ride.requested') AS mean_multiplier
FROM events GROUP BY 1, 2
"""  # noqa: S608 our own expressions

_REVENUE = f"""
SELECT {_WINDOW} AS window_start, pickup_cell AS cell, fare.currency AS currency,
  count(*) AS completed_count, sum(fare.amount_minor) AS fares_minor, sum(distance_m) AS distance_m,
  sum(duration_s) AS duration_s, avg(multiplier) AS mean_multiplier
FROM silver__rides WHERE ce_type = 'ride.completed' GROUP BY 1, 2, 3
"""  # noqa: S608 our own expressions

_PAYMENTS = f"""
SELECT {_WINDOW} AS window_start, amount.currency AS currency,
  coalesce(sum(amount.amount_minor) FILTER (ce_type = 'payment.authorised'), 0) AS authorised_minor,
  coalesce(sum(amount.amount_minor) FILTER (ce_type = 'payment.captured'), 0) AS captured_minor,
  coalesce(sum(amount.amount_minor) FILTER (ce_type = 'payment.failed'), 0) AS failed_minor,
  coalesce(sum(amount.amount_minor) FILTER (ce_type = 'payment.released'), 0) AS released_minor,
  coalesce(sum(amount.amount_minor) FILTER (ce_type = 'payment.refunded'), 0) AS refunded_minor,
  count(*) FILTER (ce_type = 'payment.captured') AS captured_count
FROM silver__payments GROUP BY 1, 2
"""  # noqa: S608 our own expressions

_CONVERSION = f"""
WITH offers AS (
  SELECT row_number() OVER () AS number, quote_id, pickup_cell AS cell, {_WINDOW} AS window_start, {_DAY} AS day
  FROM silver__quotes WHERE ce_type = 'quote.offered'
), accepted AS (
  SELECT number, max(ride_id) AS ride_id FROM offers JOIN silver__quotes AS quotes USING (quote_id)
  WHERE quotes.ce_type = 'quote.accepted' AND {_COUNTS.format(at="quotes.ce_time", day="day")} GROUP BY 1
), outcomes AS (
  SELECT DISTINCT number, rides.ce_type FROM offers JOIN accepted USING (number)
  JOIN silver__rides AS rides ON rides.ride_id = accepted.ride_id
  WHERE {_COUNTS.format(at="rides.ce_time", day="day")}
), counted AS (
  SELECT number, count(*) FILTER (ce_type = 'ride.matched') AS matched,
    count(*) FILTER (ce_type = 'ride.completed') AS completed,
    count(*) FILTER (ce_type = 'ride.cancelled') AS cancelled,
    count(*) FILTER (ce_type = 'ride.unmatched') AS unmatched
  FROM outcomes GROUP BY 1
)
SELECT window_start, cell, count(*) AS offered_count, count(ride_id) AS accepted_count,
  coalesce(sum(matched), 0) AS matched_count, coalesce(sum(completed), 0) AS completed_count,
  coalesce(sum(cancelled), 0) AS cancelled_count, coalesce(sum(unmatched), 0) AS unmatched_count,
  count(ride_id)::DOUBLE / count(*) AS accepted_share,
  coalesce(sum(completed), 0)::DOUBLE / count(*) AS completed_share
FROM offers LEFT JOIN accepted USING (number) LEFT JOIN counted USING (number) GROUP BY 1, 2
"""  # noqa: S608 our own expressions

_RECOMMENDATIONS = f"""
WITH served AS (
  SELECT row_number() OVER () AS number, recommendation_id, rider_id, model, options, ce_time AS served_at,
    {_WINDOW} AS window_start, {_DAY} AS day
  FROM silver__recommendations WHERE ce_type = 'recommendation.served'
), chosen AS (
  SELECT number, min(choices."rank") AS chosen_rank
  FROM served JOIN silver__recommendations AS choices USING (recommendation_id)
  WHERE choices.ce_type = 'recommendation.chosen' AND {_COUNTS.format(at="choices.ce_time", day="day")} GROUP BY 1
), went AS (
  SELECT number, dropoff_cell AS went_to FROM served JOIN silver__rides AS rides USING (rider_id)
  WHERE rides.ce_type = 'ride.requested' AND rides.ce_time >= served_at
    AND rides.ce_time < served_at + INTERVAL 30 MINUTE
  QUALIFY row_number() OVER (PARTITION BY number ORDER BY rides.ce_time, rides.ride_id) = 1
), destinations AS (
  SELECT number, option.cell AS cell, option."rank" AS "rank"
  FROM (SELECT number, unnest(options) AS option FROM served) WHERE option.kind = 'destination'
), hits AS (
  SELECT number, min("rank") AS hit_rank FROM destinations JOIN went USING (number)
  JOIN containing ON cell = one AND went_to = other GROUP BY 1
)
SELECT window_start, model, count(*) AS served_count, count(chosen_rank) AS chosen_count,
  count(*) FILTER (chosen_rank <= 1) AS chosen_top1_count, count(*) FILTER (chosen_rank <= 3) AS chosen_top3_count,
  count(went_to) AS followed_count, count(*) FILTER (hit_rank <= 1) AS hit_top1_count,
  count(*) FILTER (hit_rank <= 3) AS hit_top3_count, count(hit_rank) AS hit_count,
  count(chosen_rank)::DOUBLE / count(*) AS chosen_share,
  CASE WHEN count(went_to) > 0 THEN count(hit_rank)::DOUBLE / count(went_to) END AS hit_share
FROM served LEFT JOIN chosen USING (number) LEFT JOIN went USING (number) LEFT JOIN hits USING (number) GROUP BY 1, 2
"""  # noqa: S608 our own expressions

_TABLES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "gold.conversion": (("window_start", "cell"), _CONVERSION),
    "gold.demand": (("window_start", "cell"), _DEMAND),
    "gold.payments": (("window_start", "currency"), _PAYMENTS),
    "gold.recommendations": (("window_start", "model"), _RECOMMENDATIONS),
    "gold.revenue": (("window_start", "cell", "currency"), _REVENUE),
}
"""Table → the columns that name a row, and the query that computes it."""


def check_gold(connection: Any, tables: Sequence[str]) -> tuple[LineReport, dict[str, GoldReport]]:
    """Compare gold with what duckdb computes from silver.

    Args:
        connection: duckdb, with each gold table and each of `SOURCES` registered as its name with `__` for `.`.
        tables: The lake's gold tables.
    """
    findings = Findings()
    reports: dict[str, GoldReport] = {}
    _register_containing(connection)
    for name in sorted({*tables, *_TABLES}):
        if name not in _TABLES:
            findings.add(Finding(kind="unread", message=f"{name}: nothing here computes it independently", table=name))
        elif name not in tables:
            findings.add(Finding(kind="unread", message=f"{name}: the lake does not have it yet", table=name))
        else:
            reports[name] = _compare(connection, name, findings)
    rows = sum(report.rows for report in reports.values())
    agreed = f"{rows:,} rows in {len(reports)} tables: equal in every column"
    return LineReport.of(LINE, _ACCOUNTS, findings, agreed=agreed), reports


def _register_containing(connection: Any) -> None:
    """Register `containing(one, other)`: pairs of a served and a travelled-to cell of which one contains the other."""
    import pyarrow as pa

    served = [
        row[0]
        for row in connection.execute(
            "SELECT DISTINCT option.cell FROM (SELECT unnest(options) AS option FROM silver__recommendations) "
            "WHERE option.cell IS NOT NULL"
        ).fetchall()
    ]
    gone = [
        row[0]
        for row in connection.execute(
            "SELECT DISTINCT dropoff_cell FROM silver__rides WHERE dropoff_cell IS NOT NULL"
        ).fetchall()
    ]
    resolutions = sorted({h3.get_resolution(cell) for cell in (*served, *gone)})
    # Each cell under its ancestors at every resolution that occurs: pairs are looked up, not tried one by one.
    by_ancestor: dict[str, list[str]] = {}
    for cell in gone:
        own = h3.get_resolution(cell)
        for resolution in resolutions:
            if resolution <= own:
                by_ancestor.setdefault(h3.cell_to_parent(cell, resolution), []).append(cell)
    gone_set = set(gone)
    pairs: set[tuple[str, str]] = set()
    for cell in served:
        pairs.update((cell, other) for other in by_ancestor.get(cell, ()))
        own = h3.get_resolution(cell)
        for resolution in resolutions:
            if resolution <= own and (ancestor := h3.cell_to_parent(cell, resolution)) in gone_set:
                pairs.add((cell, ancestor))
    listed = sorted(pairs)
    connection.register(
        "containing",
        pa.table(
            {
                "one": pa.array([one for one, _ in listed], pa.string()),
                "other": pa.array([other for _, other in listed], pa.string()),
            }
        ),
    )


def _compare(connection: Any, name: str, findings: Findings) -> GoldReport:
    key, query = _TABLES[name]
    short = name.partition(".")[2]
    kept = name.replace(".", "__")
    connection.execute(f"CREATE TEMP TABLE recomputed_{short} AS {query}")
    types = {row[0]: row[1] for row in connection.execute(f"DESCRIBE {kept}").fetchall()}
    columns = [row[0] for row in connection.execute(f"DESCRIBE recomputed_{short}").fetchall()]
    names = ", ".join(key)
    lacking = [column for column in columns if column not in types]
    for column in (*lacking, *(column for column in types if column not in columns)):
        where = "is not in the lake's table" if column in lacking else "is not computed independently"
        findings.add(
            Finding(
                kind="missing" if column in lacking else "unread",
                message=f"{name}: column {column} {where}",
                table=name,
                column=column,
            )
        )
    if any(column in lacking for column in key):
        return _counts(connection, kept, short)
    for row in connection.execute(
        f"SELECT {names}, count(*) FROM {kept} GROUP BY {names} HAVING count(*) > 1 ORDER BY {names}"  # noqa: S608 the names are our own
    ).fetchall():
        findings.add(
            Finding(kind="doubled", message=f"{name}: {_row_text(key, row)} is there {row[-1]} times", table=name)
        )
    figures = [column for column in columns if column not in key and column in types]
    differs = {
        column: (
            f"(kept.{column} IS NULL) <> (again.{column} IS NULL) OR abs(kept.{column} - again.{column}) > "
            f"{_TOLERANCE} * greatest(1, abs(again.{column}))"
            if types[column] == "DOUBLE"
            else f"kept.{column} IS DISTINCT FROM again.{column}"
        )
        for column in figures
    }
    matched = " AND ".join(f"kept.{column} IS NOT DISTINCT FROM again.{column}" for column in key)
    shown = ", ".join(f"coalesce(kept.{column}, again.{column})" for column in key)
    pairs = ", ".join(f"kept.{column}, again.{column}, coalesce({differs[column]}, false)" for column in figures)
    any_differs = " OR ".join(f"({one})" for one in differs.values())
    found = connection.execute(
        f"SELECT {shown}, kept.is_there, again.is_there, {pairs} "  # noqa: S608 our names
        f"FROM (SELECT *, true AS is_there FROM {kept}) AS kept "
        f"FULL JOIN (SELECT *, true AS is_there FROM recomputed_{short}) AS again ON {matched} "
        f"WHERE kept.is_there IS NULL OR again.is_there IS NULL OR {any_differs} "
        f"ORDER BY {', '.join(str(index + 1) for index in range(len(key)))}"
    )
    while rows := found.fetchmany(1_000):
        for row in rows:
            _row_findings(findings, name, key, figures, row)
    return _counts(connection, kept, short)


def _row_findings(
    findings: Findings, name: str, key: Sequence[str], figures: Sequence[str], row: Sequence[Any]
) -> None:
    text = _row_text(key, row)
    is_kept, is_again = row[len(key)], row[len(key) + 1]
    if not is_kept:
        findings.add(
            Finding(
                kind="missing",
                message=f"{name}: {text} is not there, and silver has events for it: gold is behind, or lost it",
                table=name,
            )
        )
        return
    if not is_again:
        findings.add(Finding(kind="invented", message=f"{name}: {text} has no events in silver", table=name))
        return
    for index, column in enumerate(figures):
        kept, again, is_different = row[len(key) + 2 + 3 * index : len(key) + 5 + 3 * index]
        if is_different:
            findings.add(
                Finding(
                    kind="altered",
                    message=f"{name}: {text} has {column} = {kept}, and silver gives {again}",
                    table=name,
                    column=column,
                )
            )


def _row_text(key: Sequence[str], row: Sequence[Any]) -> str:
    parts = [
        f"{column} {value.isoformat() if hasattr(value, 'isoformat') else value}"
        for column, value in zip(key, row, strict=False)
    ]
    return ", ".join(parts)


def _counts(connection: Any, kept: str, short: str) -> GoldReport:
    columns = [row[0] for row in connection.execute(f"DESCRIBE {kept}").fetchall() if row[0].endswith("_minor")]
    money: dict[str, int] = {}
    if columns:
        sums = ", ".join(f"coalesce(sum({column}), 0)" for column in columns)
        (found,) = connection.execute(f"SELECT {sums} FROM {kept}").fetchall()  # noqa: S608 our names
        money = {column: int(amount) for column, amount in zip(columns, found, strict=True)}
    return GoldReport(
        money=money,
        rows=connection.execute(f"SELECT count(*) FROM {kept}").fetchall()[0][0],  # noqa: S608 our names
        recomputed=connection.execute(f"SELECT count(*) FROM recomputed_{short}").fetchall()[0][0],  # noqa: S608 the names are our own
    )


def unchecked_line(reason: str) -> LineReport:
    """The line of a lake that cannot be compared."""
    findings = Findings()
    findings.add(Finding(kind="unread", message=reason))
    return LineReport.of(LINE, _ACCOUNTS, findings, agreed="")
