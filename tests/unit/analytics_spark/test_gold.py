"""Gold against figures that duckdb computes from silver, with silver in memory and gold counted by hand."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import h3
import pyarrow as pa
import pytest
from analytics_spark.verify.gold import check_gold, unchecked_line
from analytics_spark.verify.report import Finding, GoldReport, LineReport

Row = dict[str, Any]
DUCKDB = duckdb.connect(":memory:", config={"threads": 1})  # to start one takes longer than most tests
TIME = pa.timestamp("us", tz="UTC")
SCHEMAS = {
    "silver.quotes": {
        "ce_time": TIME,
        "ce_type": pa.string(),
        "quote_id": pa.string(),
        "pickup_cell": pa.string(),
        "rider_id": pa.string(),
        "ride_id": pa.string(),
        "multiplier": pa.float64(),
    },
    "silver.rides": {
        "ce_time": TIME,
        "ce_type": pa.string(),
        "ride_id": pa.string(),
        "pickup_cell": pa.string(),
        "rider_id": pa.string(),
        "multiplier": pa.float64(),
        "dropoff_cell": pa.string(),
        "distance_m": pa.int64(),
        "duration_s": pa.int64(),
        "fare": pa.struct({"amount_minor": pa.int64(), "currency": pa.string()}),
    },
    "silver.payments": {
        "ce_time": TIME,
        "ce_type": pa.string(),
        "amount": pa.struct({"amount_minor": pa.int64(), "currency": pa.string()}),
    },
    "silver.recommendations": {
        "ce_time": TIME,
        "ce_type": pa.string(),
        "recommendation_id": pa.string(),
        "rider_id": pa.string(),
        "model": pa.string(),
        "rank": pa.int64(),
        "options": pa.list_(pa.struct({"kind": pa.string(), "rank": pa.int64(), "cell": pa.string()})),
    },
    "gold.demand": {
        "window_start": TIME,
        "cell": pa.string(),
        **dict.fromkeys(("requested_count", "rider_count", "quoted_count", "unmatched_count"), pa.int64()),
        "mean_multiplier": pa.float64(),
    },
    "gold.revenue": {
        "window_start": TIME,
        "cell": pa.string(),
        "currency": pa.string(),
        **dict.fromkeys(("completed_count", "fares_minor", "distance_m", "duration_s"), pa.int64()),
        "mean_multiplier": pa.float64(),
    },
    "gold.payments": {
        "window_start": TIME,
        "currency": pa.string(),
        **dict.fromkeys(("authorised_minor", "captured_minor", "failed_minor"), pa.int64()),
        **dict.fromkeys(("released_minor", "refunded_minor", "captured_count"), pa.int64()),
    },
    "gold.conversion": {
        "window_start": TIME,
        "cell": pa.string(),
        **dict.fromkeys(("offered_count", "accepted_count", "matched_count", "completed_count"), pa.int64()),
        **dict.fromkeys(("cancelled_count", "unmatched_count"), pa.int64()),
        **dict.fromkeys(("accepted_share", "completed_share"), pa.float64()),
    },
    "gold.recommendations": {
        "window_start": TIME,
        "model": pa.string(),
        **dict.fromkeys(("served_count", "chosen_count", "chosen_top1_count", "chosen_top3_count"), pa.int64()),
        **dict.fromkeys(("followed_count", "hit_top1_count", "hit_top3_count", "hit_count"), pa.int64()),
        **dict.fromkeys(("chosen_share", "hit_share"), pa.float64()),
    },
}
GOLD = [name for name in SCHEMAS if name.startswith("gold.")]
AT = datetime(2014, 5, 1, 8, 0, tzinfo=UTC)
LATER = AT + timedelta(minutes=15)
PARIS, ROME, OSLO, ATHENS = (
    h3.latlng_to_cell(lat, lng, 8) for lat, lng in ((48.86, 2.35), (41.9, 12.5), (59.91, 10.75), (37.98, 23.73))
)


def fine(cell: str) -> str:
    return str(h3.cell_to_center_child(cell, 9))


def coarse(cell: str) -> str:
    return str(h3.cell_to_parent(cell, 7))


def _option(rank: int, cell: str | None, kind: str = "destination") -> Row:
    return {"kind": kind, "rank": rank, "cell": cell}


def _rides(count: int, window: datetime) -> list[Row]:
    """Rides of one window: all are requested and matched, the first is completed, the second cancelled."""
    rows = []
    for number in range(count):
        ride: Row = {"ride_id": f"ride-{window:%M}-{number}", "rider_id": f"rider-{number}", "pickup_cell": PARIS}
        at = window + timedelta(seconds=number)
        rows += [
            ride | {"ce_time": at, "ce_type": "ride.requested", "multiplier": 1.0 + number, "dropoff_cell": ROME},
            ride | {"ce_time": at, "ce_type": "ride.matched"},
        ]
        if number < 2:
            rows.append(ride | {"ce_time": at, "ce_type": ("ride.completed", "ride.cancelled")[number]})
    return rows


def tables() -> dict[str, list[Row]]:
    """Silver of two windows, and the gold that is counted by hand from it."""
    fare = {"amount_minor": 500, "currency": "USD"}
    done = {"fare": fare, "distance_m": 7_000, "duration_s": 600, "multiplier": 1.5}
    rides = _rides(3, AT) + _rides(2, LATER)
    for row in rides:
        if row["ce_type"] == "ride.completed":
            row.update(done)
    lost = {"ride_id": "ride-lost", "rider_id": "rider-9", "pickup_cell": OSLO, "ce_type": "ride.unmatched"}
    rides.append(lost | {"ce_time": AT})
    quotes: list[Row] = []
    for number in range(4):
        offered = {"quote_id": f"quote-{number}", "rider_id": f"rider-{number}", "pickup_cell": PARIS, "ce_time": AT}
        quotes.append(offered | {"ce_type": "quote.offered", "multiplier": 2.0})
        if number < 3:
            quotes.append(offered | {"ce_type": "quote.accepted", "ride_id": f"ride-00-{number}"})
    payments = [
        {"ce_time": AT, "ce_type": f"payment.{what}", "amount": {"amount_minor": amount, "currency": currency}}
        for what, amount, currency in (
            *(("captured", 100, "USD"), ("captured", 50, "USD"), ("authorised", 30, "USD")),
            *(("released", 40, "USD"), ("refunded", 20, "USD"), ("failed", 10, "EUR")),
        )
    ]
    served = {"ce_type": "recommendation.served", "model": "counts", "ce_time": AT - timedelta(minutes=1)}
    chosen = {"ce_type": "recommendation.chosen", "ce_time": AT}
    recommendations = [
        # Rider 0 is served the cell of Rome in the finer resolution, rider 1 in the coarser one, rider 2 another place
        # in the first ranks and Rome itself in the fourth, and rider 8 never travels.
        served | {"recommendation_id": "0", "rider_id": "rider-0", "options": [_option(1, fine(ROME))]},
        served | {"recommendation_id": "1", "rider_id": "rider-1", "options": [_option(3, coarse(ROME))]},
        served
        | {
            "recommendation_id": "2",
            "rider_id": "rider-2",
            "options": [_option(1, OSLO), _option(2, ROME, "pickup"), _option(3, None), _option(4, ROME)],
        },
        served | {"recommendation_id": "8", "rider_id": "rider-8", "options": [_option(1, ATHENS)]},
        chosen | {"recommendation_id": "0", "rank": 1},
        chosen | {"recommendation_id": "1", "rank": 3},
        chosen | {"recommendation_id": "2", "rank": 4},
    ]
    return {
        "silver.quotes": quotes,
        "silver.rides": rides,
        "silver.payments": payments,
        "silver.recommendations": recommendations,
        "gold.demand": [
            _row("gold.demand", AT, PARIS, 3, 3, 4, 0, 2.0),
            _row("gold.demand", AT, OSLO, 0, 0, 0, 1, None),
            _row("gold.demand", LATER, PARIS, 2, 2, 0, 0, 1.5),
        ],
        "gold.revenue": [
            _row("gold.revenue", AT, PARIS, "USD", 1, 500, 7_000, 600, 1.5),
            _row("gold.revenue", LATER, PARIS, "USD", 1, 500, 7_000, 600, 1.5),
        ],
        "gold.payments": [
            _row("gold.payments", AT, "USD", 30, 150, 0, 40, 20, 2),
            _row("gold.payments", AT, "EUR", 0, 0, 10, 0, 0, 0),
        ],
        "gold.conversion": [_row("gold.conversion", AT, PARIS, 4, 3, 3, 1, 1, 0, 0.75, 0.25)],
        "gold.recommendations": [
            _row("gold.recommendations", AT - timedelta(minutes=15), "counts", 4, 3, 1, 2, 3, 1, 2, 3, 0.75, 1.0)
        ],
    }


def _row(table: str, *values: object) -> Row:
    return dict(zip(SCHEMAS[table], values, strict=True))


def check(
    rows: dict[str, list[Row]], schemas: dict[str, dict[str, pa.DataType]] = SCHEMAS
) -> tuple[LineReport, dict[str, GoldReport]]:
    with DUCKDB.cursor() as connection:
        connection.execute("SET TimeZone='UTC'")
        for name, schema in schemas.items():
            kept = [{column: row.get(column) for column in schema} for row in rows.get(name, ())]
            connection.register(name.replace(".", "__"), pa.Table.from_pylist(kept, schema=pa.schema(dict(schema))))
        return check_gold(connection, [name for name in schemas if name.startswith("gold.")])


def kinds(line: LineReport) -> list[tuple[str, str | None, str | None]]:
    return [(one.kind, one.table, one.column) for one in line.findings]


def test_gold_that_was_counted_by_hand_agrees() -> None:
    rows = tables()
    line, reports = check(rows)
    assert [one.message for one in line.findings] == []
    assert (line.verdict, line.detail) == ("agrees", "9 rows in 5 tables: equal in every column")
    counts = {name: (report.rows, report.recomputed) for name, report in reports.items()}
    assert counts == {name: (len(rows[name]), len(rows[name])) for name in GOLD}
    money = {"authorised_minor": 30, "captured_minor": 150, "failed_minor": 10, "released_minor": 40}
    assert reports["gold.payments"].money == money | {"refunded_minor": 20}
    assert reports["gold.demand"].money == {}


def test_a_lake_that_cannot_be_compared_is_not_checked() -> None:
    line = unchecked_line("the reason")
    assert (line.verdict, line.findings) == ("not_checked", (Finding(kind="unread", message="the reason"),))


FIGURES = {
    table: [name for name, kind in SCHEMAS[table].items() if kind in {pa.int64(), pa.float64()}] for table in GOLD
}


@pytest.mark.parametrize("number", range(max(len(figures) for figures in FIGURES.values())))
def test_each_altered_figure_is_named_with_both_values(number: int) -> None:
    """One figure of each table is altered at a time."""
    rows = tables()
    expected = {}
    for table, figures in FIGURES.items():
        if number < len(figures):
            row, column = rows[table][0], figures[number]
            silver = row[column]
            row[column] += 1
            expected["altered", table, column] = (
                f"{table}: window_start {row['window_start'].isoformat()}, ",
                f" has {column} = {row[column]}, and silver gives {silver}",
            )
    line, _ = check(rows)
    assert kinds(line) == sorted(expected)
    for one in line.findings:
        begins, ends = expected[one.kind, one.table or "", one.column or ""]
        assert one.message.startswith(begins)
        assert one.message.endswith(ends)


def test_altered_and_lost_figures_of_one_row_are_all_named() -> None:
    for change in (lambda figure: figure + 1, lambda _: None):
        rows = tables()
        expected = []
        for table in sorted(GOLD):
            row = rows[table][0]
            for column in FIGURES[table]:
                row[column] = change(row[column])
                expected.append(("altered", table, column))
        line, _ = check(rows)
        assert line.findings_count == len(expected)
        assert kinds(line) == expected[:20]


@pytest.mark.parametrize("table", GOLD)
def test_rows_too_many_and_too_few_are_named_and_hide_no_other(table: str) -> None:
    rows = tables()
    invented = rows[table][0] | {"window_start": AT - timedelta(days=30)}
    rows[table].append(invented)
    line, reports = check(rows)
    assert kinds(line) == [("invented", table, None)]
    assert line.findings[0].message.startswith(f"{table}: window_start {invented['window_start'].isoformat()}, ")
    assert line.findings[0].message.endswith(" has no events in silver")
    assert (reports[table].rows, reports[table].recomputed) == (len(rows[table]), len(rows[table]) - 1)

    rows = tables()
    del rows[table][0]
    line, _ = check(rows)
    assert kinds(line) == [("missing", table, None)]
    assert line.findings[0].message.endswith(" is not there, and silver has events for it: gold is behind, or lost it")

    rows = tables()
    rows[table] += [dict(rows[table][-1]), dict(rows[table][-1])]
    line, _ = check(rows)
    assert kinds(line) == [("doubled", table, None)]
    assert line.findings[0].message.endswith(" is there 3 times")


def test_the_rows_of_one_table_are_named_in_the_order_of_their_keys() -> None:
    rows = tables()
    for row in rows["gold.demand"]:
        row["requested_count"] += 1
    rows["gold.demand"].append(_row("gold.demand", LATER, OSLO, 0, 0, 0, 1, None))
    line, _ = check(rows)
    order = sorted((row["window_start"], row["cell"]) for row in rows["gold.demand"])
    assert order != sorted(order, key=lambda key: key[1])
    assert [one.message.split(" has ")[0] for one in line.findings] == [
        f"gold.demand: window_start {at.isoformat()}, cell {cell}" for at, cell in order
    ]


def test_many_rows_that_differ_are_all_counted() -> None:
    rows = tables()
    rows["gold.demand"] = [
        rows["gold.demand"][0] | {"window_start": AT + timedelta(days=1 + number)} for number in range(2_500)
    ]
    line, _ = check(rows)
    assert line.findings_count == 2_500 + 3


def test_sums_in_another_order_are_the_same_and_larger_differences_are_not() -> None:
    for column, table in (("mean_multiplier", "gold.demand"), ("accepted_share", "gold.conversion")):
        rows = tables()
        rows[table][0][column] *= 1 + 2e-10
        assert check(rows)[0].verdict == "agrees"
        rows[table][0][column] *= 1 + 1e-8
        assert kinds(check(rows)[0]) == [("altered", table, column)]
    # The difference is relative: a billionth of a large sum is more than one.
    rows = tables()
    for row in rows["silver.rides"]:
        row["multiplier"] = None if row.get("multiplier") is None else row["multiplier"] * 1e12
    for table in ("gold.demand", "gold.revenue"):
        for row in rows[table]:
            row["mean_multiplier"] = None if row["mean_multiplier"] is None else row["mean_multiplier"] * 1e12 + 100
    assert check(rows)[0].verdict == "agrees"


def test_a_table_that_the_lake_lacks_and_one_that_nobody_computes_are_not_checked() -> None:
    schemas = {name: schema for name, schema in SCHEMAS.items() if name != "gold.payments"}
    line, reports = check(tables(), schemas | {"gold.tips": {"tip": pa.int64()}})
    assert line.verdict == "not_checked"
    assert line.findings == (
        Finding(kind="unread", message="gold.payments: the lake does not have it yet", table="gold.payments"),
        Finding(kind="unread", message="gold.tips: nothing here computes it independently", table="gold.tips"),
    )
    assert set(reports) == {*GOLD} - {"gold.payments"}


def test_columns_too_many_and_too_few_are_named() -> None:
    schemas = copy.deepcopy(SCHEMAS)
    del schemas["gold.demand"]["rider_count"]
    schemas["gold.demand"]["extra"] = pa.int64()
    line, reports = check(tables(), schemas)
    assert line.findings == (
        Finding(
            kind="missing",
            message="gold.demand: column rider_count is not in the lake's table",
            table="gold.demand",
            column="rider_count",
        ),
        Finding(
            kind="unread",
            message="gold.demand: column extra is not computed independently",
            table="gold.demand",
            column="extra",
        ),
    )
    # What is there is compared all the same.
    rows = tables()
    rows["gold.demand"][0]["quoted_count"] += 1
    assert ("altered", "gold.demand", "quoted_count") in kinds(check(rows, schemas)[0])
    assert (reports["gold.demand"].rows, reports["gold.demand"].recomputed) == (3, 3)


def test_a_table_without_a_column_of_its_key_is_counted_only() -> None:
    schemas = copy.deepcopy(SCHEMAS)
    del schemas["gold.revenue"]["currency"]
    rows = tables()
    rows["gold.revenue"][0]["fares_minor"] += 1
    line, reports = check(rows, schemas)
    assert kinds(line) == [("missing", "gold.revenue", "currency")]
    assert (reports["gold.revenue"].rows, reports["gold.revenue"].recomputed) == (2, 2)


@pytest.mark.parametrize(
    ("served", "gone", "is_hit"),
    [
        (ROME, ROME, True),
        (fine(ROME), ROME, True),
        (coarse(ROME), ROME, True),
        (ROME, fine(ROME), True),
        (ROME, coarse(ROME), True),
        (fine(ROME), coarse(ROME), True),
        (coarse(ROME), fine(ROME), True),
        (OSLO, ROME, False),
        (fine(OSLO), ROME, False),
        (coarse(OSLO), fine(ROME), False),
        (fine(ROME), str(h3.cell_to_children(ROME, 9)[1]), False),
    ],
)
def test_a_destination_is_hit_when_one_cell_contains_the_other(served: str, gone: str, *, is_hit: bool) -> None:
    rows = tables()
    rows["silver.recommendations"] = [
        row | {"options": [_option(1, served)]} for row in rows["silver.recommendations"][:1]
    ]
    for row in rows["silver.rides"]:
        if row.get("dropoff_cell"):
            row["dropoff_cell"] = gone
    hits = int(is_hit)
    rows["gold.recommendations"] = [
        _row(
            "gold.recommendations",
            *(AT - timedelta(minutes=15), "counts", 1, 0, 0, 0, 1, hits, hits, hits, 0.0, float(hits)),
        )
    ]
    assert [one.message for one in check(rows)[0].findings] == []


def test_only_the_first_ride_of_the_half_hour_after_an_offer_counts() -> None:
    rows = tables()
    first = next(row for row in rows["silver.rides"] if row["ce_type"] == "ride.requested")
    # Rider 0 travels to Oslo before, and again two minutes after; rider 8 travels half an hour after the offer.
    rows["silver.rides"] += [
        first | {"ride_id": "ride-before", "ce_time": AT - timedelta(minutes=2), "dropoff_cell": OSLO},
        first | {"ride_id": "ride-after", "ce_time": AT + timedelta(minutes=2), "dropoff_cell": OSLO},
        first | {"ride_id": "ride-late", "ce_time": AT + timedelta(minutes=29), "rider_id": "rider-8"},
    ]
    line, _ = check(rows)
    assert {one.table for one in line.findings} == {"gold.demand"}


def test_what_becomes_of_an_offer_counts_until_the_end_of_the_next_day() -> None:
    for hours, counts in ((39, True), (40, False)):
        rows = tables()
        for row in (*rows["silver.quotes"], *rows["silver.rides"]):
            if row["ce_type"] == "quote.accepted" or row["ce_type"] in {"ride.matched", "ride.completed"}:
                row["ce_time"] = AT + timedelta(hours=hours)
        line, _ = check(rows)
        assert ("gold.conversion" not in {one.table for one in line.findings}) is counts
