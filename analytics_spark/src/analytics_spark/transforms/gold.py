"""Silver to gold: what the city asked for, paid, took and was recommended, per quarter of an hour of event time.

Each frame is a pure function of silver. A window depends only on events of its own day and of the next one (UTC), so a
window that is computed again, alone or together with other days, gets the same figures. `lake verify` computes the same
definitions independently of this module.
"""

from typing import Any

__all__ = ["FOLLOW_UP_MINUTES", "OUTCOME_DAYS", "conversion", "demand", "payments", "recommendations", "revenue"]

WINDOW = "15 minutes"
FOLLOW_UP_MINUTES = 30
"""How long after a recommendation a booking counts as its consequence."""
OUTCOME_DAYS = 2
"""What became of a quote or recommendation counts on the day of its offer and on the next one, in UTC."""


def _window(column: str) -> Any:
    from pyspark.sql import functions as f

    return f.window(f.col(column), WINDOW)["start"].alias("window_start")


def _day(column: str) -> Any:
    from pyspark.sql import functions as f

    return f.date_trunc("day", f.col(column)).alias("day")


def _is_outcome(column: str) -> Any:
    """Whether a time counts for an offer of `day`; see `OUTCOME_DAYS`."""
    from pyspark.sql import functions as f

    at, day = f.col(column), f.col("day")
    return (at >= day) & (at < day + f.expr(f"INTERVAL {OUTCOME_DAYS} DAYS"))


def demand(quotes: Any, rides: Any) -> Any:
    """Demand per cell.

    *In:* `silver.quotes`, `silver.rides`.
    *Out:* one row per `window_start` and `cell` with `requested_count, rider_count` (distinct), `quoted_count,
    unmatched_count long ≥ 0, mean_multiplier double` (of the requests, null without one).
    """
    from pyspark.sql import functions as f

    columns = ("ce_time", "ce_type", "pickup_cell", "rider_id", "multiplier")
    wanted = ("ride.requested", "ride.unmatched", "quote.offered")
    events = quotes.select(*columns).unionByName(rides.select(*columns)).where(f.col("ce_type").isin(*wanted))
    is_request = f.col("ce_type") == "ride.requested"
    return (
        events.groupBy(_window("ce_time"), f.col("pickup_cell").alias("cell"))
        .agg(
            f.count_if(is_request).alias("requested_count"),
            f.count_distinct(f.when(is_request, f.col("rider_id"))).alias("rider_count"),
            f.count_if(f.col("ce_type") == "quote.offered").alias("quoted_count"),
            f.count_if(f.col("ce_type") == "ride.unmatched").alias("unmatched_count"),
            f.avg(f.when(is_request, f.col("multiplier"))).alias("mean_multiplier"),
        )
        .select(
            "window_start",
            "cell",
            "requested_count",
            "rider_count",
            "quoted_count",
            "unmatched_count",
            "mean_multiplier",
        )
    )


def revenue(rides: Any) -> Any:
    """Fares of completed rides per pickup cell.

    *In:* `silver.rides`.
    *Out:* one row per `window_start` (of completion), `cell` and `currency` with `completed_count long ≥ 1, fares_minor
    long` (smallest unit of the currency), `distance_m, duration_s long, mean_multiplier double`.
    """
    from pyspark.sql import functions as f

    return (
        rides.where(f.col("ce_type") == "ride.completed")
        .groupBy(_window("ce_time"), f.col("pickup_cell").alias("cell"), f.col("fare.currency").alias("currency"))
        .agg(
            f.count("*").alias("completed_count"),
            f.sum("fare.amount_minor").alias("fares_minor"),
            f.sum("distance_m").alias("distance_m"),
            f.sum("duration_s").alias("duration_s"),
            f.avg("multiplier").alias("mean_multiplier"),
        )
        .select(
            "window_start",
            "cell",
            "currency",
            "completed_count",
            "fares_minor",
            "distance_m",
            "duration_s",
            "mean_multiplier",
        )
    )


def payments(events: Any) -> Any:
    """Money that moved.

    *In:* `silver.payments`.
    *Out:* one row per `window_start` and `currency` with `authorised_minor, captured_minor, failed_minor,
    released_minor, refunded_minor long ≥ 0, captured_count long ≥ 0`.
    """
    from pyspark.sql import functions as f

    def total(kind: str) -> Any:
        amount = f.when(f.col("ce_type") == f"payment.{kind}", f.col("amount.amount_minor")).otherwise(0)
        return f.sum(amount).alias(f"{kind}_minor")

    return (
        events.groupBy(_window("ce_time"), f.col("amount.currency").alias("currency"))
        .agg(
            *(total(kind) for kind in ("authorised", "captured", "failed", "released", "refunded")),
            f.count_if(f.col("ce_type") == "payment.captured").alias("captured_count"),
        )
        .select(
            "window_start",
            "currency",
            "authorised_minor",
            "captured_minor",
            "failed_minor",
            "released_minor",
            "refunded_minor",
            "captured_count",
        )
    )


def conversion(quotes: Any, rides: Any) -> Any:
    """What became of the quotes offered in each window, up to the end of the next day.

    *In:* `silver.quotes`, `silver.rides`.
    *Out:* one row per `window_start` (of the offer) and `cell` with `offered_count long ≥ 1`, `accepted_count,
    matched_count, completed_count, cancelled_count, unmatched_count long ≥ 0`, each ≤ `offered_count`, and
    `accepted_share, completed_share double` of the offered.
    """
    from pyspark.sql import functions as f

    kinds = ("matched", "completed", "cancelled", "unmatched")
    offered = quotes.where(f.col("ce_type") == "quote.offered").select(
        # The coordinates name the row: two offers may carry one quote id.
        "partition",
        "offset",
        f.col("quote_id").alias("offered_id"),
        f.col("pickup_cell").alias("cell"),
        _window("ce_time"),
        _day("ce_time"),
    )
    accepted = quotes.where(f.col("ce_type") == "quote.accepted").select(
        "quote_id", "ride_id", f.col("ce_time").alias("accepted_at")
    )
    outcomes = rides.where(f.col("ce_type").isin(*(f"ride.{kind}" for kind in kinds))).select(
        f.col("ride_id").alias("outcome_ride"), f.col("ce_type").alias("outcome"), f.col("ce_time").alias("outcome_at")
    )
    key = ("partition", "offset", "cell", "window_start", "day")
    rode = (
        offered.join(accepted, on=(f.col("offered_id") == f.col("quote_id")) & _is_outcome("accepted_at"), how="left")
        .groupBy(*key)
        .agg(f.max("ride_id").alias("ride_id"))
    )

    def total(kind: str) -> Any:
        return f.sum(f.col(f"is_{kind}").cast("bigint")).alias(f"{kind}_count")

    return (
        rode.join(outcomes, on=(f.col("ride_id") == f.col("outcome_ride")) & _is_outcome("outcome_at"), how="left")
        .groupBy(*key, "ride_id")
        .agg(
            *(
                f.max(f.coalesce(f.col("outcome") == f"ride.{kind}", f.lit(False)).cast("int")).alias(f"is_{kind}")
                for kind in kinds
            )
        )
        .groupBy("window_start", "cell")
        .agg(
            f.count("*").alias("offered_count"),
            f.count("ride_id").alias("accepted_count"),
            *(total(kind) for kind in kinds),
        )
        .select(
            "window_start",
            "cell",
            "offered_count",
            "accepted_count",
            "matched_count",
            "completed_count",
            "cancelled_count",
            "unmatched_count",
            (f.col("accepted_count") / f.col("offered_count")).alias("accepted_share"),
            (f.col("completed_count") / f.col("offered_count")).alias("completed_share"),
        )
    )


def recommendations(served: Any, rides: Any) -> Any:
    """How often recommendations hit.

    Two measures: what the rider tapped (`recommendation.chosen`), and where the rider's first booking within
    `FOLLOW_UP_MINUTES` went, compared with the cells of the destinations served. The second needs no click, so the
    order on screen alone cannot flatter it.

    A booking hits a destination when one of the two H3 cells contains the other: both are compared at the coarser of
    their resolutions. The recommender serves cells of resolution 9, booking publishes the drop-off at resolution 8.

    *In:* `silver.recommendations`, `silver.rides`.
    *Out:* one row per `window_start` (of serving) and `model` with `served_count long ≥ 1, chosen_count,
    chosen_top1_count, chosen_top3_count, followed_count` (a booking came), `hit_top1_count, hit_top3_count, hit_count
    long ≥ 0`, and `chosen_share` of the served, `hit_share double` of the followed (null without one).
    """
    from pyspark.sql import functions as f

    shown = served.where(f.col("ce_type") == "recommendation.served").select(
        # The coordinates name the row: two records may carry one recommendation id.
        "partition",
        "offset",
        f.col("recommendation_id").alias("shown_id"),
        f.col("rider_id").alias("shown_to"),
        "model",
        f.col("ce_time").alias("served_at"),
        _window("ce_time"),
        _day("ce_time"),
        f.expr("filter(options, o -> o.kind = 'destination' AND o.cell IS NOT NULL)").alias("destinations"),
    )
    chosen = (
        shown.join(
            served.where(f.col("ce_type") == "recommendation.chosen").select(
                "recommendation_id", "rank", f.col("ce_time").alias("chosen_at")
            ),
            on=(f.col("shown_id") == f.col("recommendation_id")) & _is_outcome("chosen_at"),
            how="inner",
        )
        .groupBy("partition", "offset")
        .agg(f.min("rank").alias("chosen_rank"))
        .select("partition", "offset", "chosen_rank")
    )
    booked = rides.where(f.col("ce_type") == "ride.requested").select(
        "rider_id", "ride_id", f.col("ce_time").alias("booked_at"), "dropoff_cell"
    )
    until = f.col("served_at") + f.expr(f"INTERVAL {FOLLOW_UP_MINUTES} MINUTES")
    follow_ups = (
        shown.join(
            booked,
            on=(f.col("shown_to") == f.col("rider_id"))
            & (f.col("booked_at") >= f.col("served_at"))
            & (f.col("booked_at") < until),
            how="inner",
        )
        .groupBy("partition", "offset")
        # The ride's id decides between two bookings of one instant.
        .agg(f.min_by("dropoff_cell", f.struct("booked_at", "ride_id")).alias("went_to"))
        .select("partition", "offset", "went_to")
    )
    hits = f"filter(destinations, o -> {_one_contains_the_other('o.cell', 'went_to')})"
    return (
        shown.join(chosen, on=["partition", "offset"], how="left")
        .join(follow_ups, on=["partition", "offset"], how="left")
        .withColumn("hit_rank", f.expr(f"array_min(transform({hits}, o -> o.rank))"))
        .groupBy("window_start", "model")
        .agg(
            f.count("*").alias("served_count"),
            f.count("chosen_rank").alias("chosen_count"),
            f.count_if(f.col("chosen_rank") <= 1).alias("chosen_top1_count"),
            f.count_if(f.col("chosen_rank") <= 3).alias("chosen_top3_count"),
            f.count("went_to").alias("followed_count"),
            f.count_if(f.col("hit_rank") <= 1).alias("hit_top1_count"),
            f.count_if(f.col("hit_rank") <= 3).alias("hit_top3_count"),
            f.count("hit_rank").alias("hit_count"),
        )
        .select(
            "window_start",
            "model",
            "served_count",
            "chosen_count",
            "chosen_top1_count",
            "chosen_top3_count",
            "followed_count",
            "hit_top1_count",
            "hit_top3_count",
            "hit_count",
            (f.col("chosen_count") / f.col("served_count")).alias("chosen_share"),
            f.expr("try_divide(hit_count, followed_count)").alias("hit_share"),
        )
    )


def _one_contains_the_other(one: str, other: str) -> str:
    """SQL: whether two H3 cells, as hexadecimal text, are equal at the coarser of their resolutions.

    Computed on the 64 bits of the index: resolution in bits 52 to 55, then 15 digits of 3 bits each; the digits below a
    cell's own resolution are all ones. A UDF would send every row through Python for two comparisons.
    """
    bits = {name: f"CAST(conv({name}, 16, 10) AS BIGINT)" for name in (one, other)}
    coarser = f"least(shiftright({bits[one]}, 52) & 15L, shiftright({bits[other]}, 52) & 15L)"

    def ancestor(name: str) -> str:
        digits_below = f"(shiftleft(1L, CAST(3 * (15 - {coarser}) AS INT)) - 1L)"
        return f"(({bits[name]} & ~shiftleft(15L, 52)) | shiftleft({coarser}, 52) | {digits_below})"

    return f"{ancestor(one)} = {ancestor(other)}"
