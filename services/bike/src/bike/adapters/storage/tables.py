"""The bike service's tables. Times are microseconds since the epoch, as in the outbox beside them."""

from datetime import datetime, timedelta

from hailbus.clock import EPOCH
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, MetaData, String, Table

metadata = MetaData()
_ID = String(64)
_CELL = String(15)

bikes = Table(
    "bike_bikes",
    metadata,
    Column("bike_id", _ID, primary_key=True),
    Column("lat", Float(53), nullable=False),
    Column("lng", Float(53), nullable=False),
    Column("cell", _CELL, nullable=False),
    Column("hire_id", _ID),
)
hires = Table(
    "bike_hires",
    metadata,
    Column("hire_id", _ID, primary_key=True),
    Column("bike_id", _ID, nullable=False),
    Column("rider_id", _ID, nullable=False),
    Column("state", String(16), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("pickup_lat", Float(53), nullable=False),
    Column("pickup_lng", Float(53), nullable=False),
    Column("pickup_cell", _CELL, nullable=False),
    Column("reserved_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("returned_at", BigInteger),
    Column("dropoff_lat", Float(53)),
    Column("dropoff_lng", Float(53)),
    Column("dropoff_cell", _CELL),
    Column("distance_m", BigInteger),
    Column("fare_minor", BigInteger),
    Column("simulated", Boolean, nullable=False),
)
clock = Table(
    "bike_clock", metadata, Column("name", String(8), primary_key=True), Column("now", BigInteger, nullable=False)
)


def moment(stored: int) -> datetime:
    """Return the moment of microseconds since the epoch."""
    return EPOCH + timedelta(microseconds=stored)
