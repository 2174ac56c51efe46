"""Booking's tables. Those of the SDK (outbox, inbox, answers) stand beside them, in the same transactions."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    TypeDecorator,
)
from sqlalchemy.types import TypeEngine


class UtcTime(TypeDecorator[datetime]):
    """An aware moment. SQLite knows no moments: there it is text in UTC, as SQLAlchemy's own DateTime writes it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return what the database has for it."""
        return dialect.type_descriptor(String(26) if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:  # Any: what the database takes
        """Store UTC."""
        if value is None or dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Return UTC."""
        if value is None:
            return None
        if dialect.name == "sqlite":
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        moment: datetime = value
        return moment.astimezone(UTC)


metadata = MetaData()
_ID = String(64)
_CELL = String(15)

quotes = Table(
    "booking_quotes",
    metadata,
    Column("quote_id", _ID, primary_key=True),
    Column("rider_id", _ID, nullable=False),
    Column("state", String(16), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("pickup_lat", Float(53), nullable=False),
    Column("pickup_lng", Float(53), nullable=False),
    Column("pickup_cell", _CELL, nullable=False),
    Column("dropoff_lat", Float(53), nullable=False),
    Column("dropoff_lng", Float(53), nullable=False),
    Column("dropoff_cell", _CELL, nullable=False),
    Column("passengers", SmallInteger, nullable=False),
    Column("distance_m", BigInteger, nullable=False),
    Column("duration_s", BigInteger, nullable=False),
    Column("fare_minor", BigInteger, nullable=False),
    Column("multiplier", Float(53), nullable=False),
    Column("surge_version", BigInteger),
    Column("offered_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("ride_id", _ID),
    Column("simulated", Boolean, nullable=False),
)

rides = Table(
    "booking_rides",
    metadata,
    Column("ride_id", _ID, primary_key=True),
    Column("quote_id", _ID, nullable=False),
    Column("rider_id", _ID, nullable=False),
    Column("state", String(16), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("timer_seq", Integer, nullable=False),
    Column("pickup_lat", Float(53), nullable=False),
    Column("pickup_lng", Float(53), nullable=False),
    Column("pickup_cell", _CELL, nullable=False),
    Column("dropoff_lat", Float(53), nullable=False),
    Column("dropoff_lng", Float(53), nullable=False),
    Column("dropoff_cell", _CELL, nullable=False),
    Column("passengers", SmallInteger, nullable=False),
    Column("route_m", BigInteger, nullable=False),
    Column("fare_minor", BigInteger, nullable=False),
    Column("multiplier", Float(53), nullable=False),
    Column("surge_version", BigInteger),
    Column("payment", String(16), nullable=False),
    Column("payment_seq", Integer, nullable=False),
    Column("paid_minor", BigInteger, nullable=False),
    Column("owed_minor", BigInteger, nullable=False),
    Column("driver_id", _ID),
    Column("eta_s", BigInteger),
    # Driver ids hold no space, and at most four drivers decline a ride.
    Column("declined", String(400), nullable=False),
    Column("requested_at", UtcTime, nullable=False),
    Column("matched_at", UtcTime),
    Column("arrived_at", UtcTime),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("updated_at", UtcTime, nullable=False),
    Column("distance_m", BigInteger),
    Column("duration_s", BigInteger),
    Column("cancelled_by", String(8)),
    Column("reason", String(200)),
    Column("pool_wish", _ID),
    Column("pooled_with", _ID),
    Column("single_fare_minor", BigInteger),
    Column("seeks_partner", Boolean, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Index("booking_rides_by_request", "requested_at", "ride_id"),
    Index("booking_rides_by_state", "state", "requested_at", "ride_id"),
)

drivers = Table(
    "booking_drivers",
    metadata,
    Column("driver_id", _ID, primary_key=True),
    Column("status", String(8), nullable=False),
    Column("lat", Float(53)),
    Column("lng", Float(53)),
    Column("cell", _CELL),
    Column("ride_id", _ID),
    Column("seq", Integer, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("heard_at", UtcTime, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Index("booking_drivers_by_status", "status", "driver_id"),
)

multipliers = Table(
    "booking_multipliers",
    metadata,
    Column("cell", _CELL, primary_key=True),
    Column("multiplier", Float(53), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("valid_until", UtcTime, nullable=False),
)

roads = Table(
    "booking_roads",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("detour", Float(53), nullable=False),
    Column("speed_m_per_s", Float(53), nullable=False),
    Column("trips", BigInteger, nullable=False),
)

clock = Table(
    "booking_clock",
    metadata,
    Column("name", String(8), primary_key=True),
    Column("now", UtcTime, nullable=False),
)
