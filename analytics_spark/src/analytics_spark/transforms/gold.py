"""Silver to gold: what the city asked for, paid, took and was recommended, per quarter of an hour of event time.

Each frame is a pure function of silver over some days: computing it again after late events gives the right figures,
    not other ones.
"""

from typing import Any

__all__ = ["FOLLOW_UP_MINUTES", "conversion", "demand", "payments", "recommendations", "revenue"]

WINDOW = "15 minutes"
FOLLOW_UP_MINUTES = 30
"""How long after a recommendation a booking counts as its consequence."""


def _window(column: str) -> Any:
    from pyspark.sql import functions as f

    return f.window(f.col(column), WINDOW)["start"].alias("window_start")


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
    refunded_minor long ≥ 0, captured_count long ≥ 0`.
    """
    from pyspark.sql import functions as f

    def total(kind: str) -> Any:
        amount = f.when(f.col("ce_type") == f"payment.{kind}", f.col("amount.amount_minor")).otherwise(0)
        return f.sum(amount).alias(f"{kind}_minor")

    return (
        events.groupBy(_window("ce_time"), f.col("amount.currency").alias("currency"))
        .agg(
            *(total(kind) for kind in ("authorised", "captured", "failed", "refunded")),
            f.count_if(f.col("ce_type") == "payment.captured").alias("captured_count"),
        )
        .select(
            "window_start",
            "currency",
            "authorised_minor",
            "captured_minor",
            "failed_minor",
            "refunded_minor",
            "captured_count",
        )
    )


def conversion(quotes: Any, rides: Any) -> Any:
    """What became of the quotes offered in each window, whenever it happened.

    *In:* `silver.quotes`, `silver.rides`.
    *Out:* one row per `window_start` (of the offer) and `cell` with `offered_count long ≥ 1`, `accepted_count,
    matched_count, completed_count, cancelled_count, unmatched_count long ≥ 0`, each ≤ `offered_count`, and
    `accepted_share, completed_share double` of the offered.
    """
    from pyspark.sql import functions as f

    def have(kind: str) -> Any:
        return f.max((f.col("ce_type") == kind).cast("int"))

    offered = quotes.where(f.col("ce_type") == "quote.offered").select(
        "quote_id", f.col("pickup_cell").alias("cell"), _window("ce_time")
    )
    accepted = (
        quotes.where(f.col("ce_type") == "quote.accepted")
        .groupBy("quote_id")
        .agg(f.max("ride_id").alias("ride_id"))
        .select("quote_id", "ride_id")
    )
    fates = (
        rides.groupBy("ride_id")
        .agg(
            have("ride.matched").alias("is_matched"),
            have("ride.completed").alias("is_completed"),
            have("ride.cancelled").alias("is_cancelled"),
            have("ride.unmatched").alias("is_unmatched"),
        )
        .select("ride_id", "is_matched", "is_completed", "is_cancelled", "is_unmatched")
    )

    def total(name: str) -> Any:
        return f.sum(f.coalesce(f.col(f"is_{name}"), f.lit(0))).cast("bigint").alias(f"{name}_count")

    return (
        offered.join(accepted, on="quote_id", how="left")
        .join(fates, on="ride_id", how="left")
        .groupBy("window_start", "cell")
        .agg(
            f.count("*").alias("offered_count"),
            f.count("ride_id").alias("accepted_count"),
            *(total(name) for name in ("matched", "completed", "cancelled", "unmatched")),
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

    Two measures: what the rider tapped (`recommendation.chosen`), and where the rider's next booking within
        `FOLLOW_UP_MINUTES` went, compared with the cells of the destinations served. The second needs no click, so it
        cannot be flattered by the order on screen alone.

    *In:* `silver.recommendations`, `silver.rides`.
    *Out:* one row per `window_start` (of serving) and `model` with `served_count long ≥ 1, chosen_count,
    chosen_top1_count, chosen_top3_count, followed_count` (a booking came), `hit_top1_count, hit_top3_count, hit_count
    long ≥ 0`, and `chosen_share` of the served, `hit_share double` of the followed (null without one).
    """
    from pyspark.sql import functions as f

    shown = served.where(f.col("ce_type") == "recommendation.served").select(
        "recommendation_id",
        "rider_id",
        "model",
        f.col("ce_time").alias("served_at"),
        _window("ce_time"),
        f.expr("filter(options, o -> o.kind = 'destination' AND o.cell IS NOT NULL)").alias("destinations"),
    )
    chosen = (
        served.where(f.col("ce_type") == "recommendation.chosen")
        .groupBy("recommendation_id")
        .agg(f.min("rank").alias("chosen_rank"))
        .select("recommendation_id", "chosen_rank")
    )
    booked = rides.where(f.col("ce_type") == "ride.requested").select(
        f.col("rider_id").alias("booking_rider"), f.col("ce_time").alias("booked_at"), "dropoff_cell"
    )
    until = f.col("served_at") + f.expr(f"INTERVAL {FOLLOW_UP_MINUTES} MINUTES")
    follow_ups = (
        shown.join(
            booked,
            on=(f.col("rider_id") == f.col("booking_rider"))
            & (f.col("booked_at") >= f.col("served_at"))
            & (f.col("booked_at") < until),
            how="inner",
        )
        .groupBy("recommendation_id")
        .agg(f.min_by("dropoff_cell", "booked_at").alias("went_to"))
        .select("recommendation_id", "went_to")
    )
    hit_rank = f.expr("array_min(transform(filter(destinations, o -> o.cell = went_to), o -> o.rank))")
    return (
        shown.join(chosen, on="recommendation_id", how="left")
        .join(follow_ups, on="recommendation_id", how="left")
        .withColumn("hit_rank", hit_rank)
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
