"""Things to rows and back."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import RowMapping

from booking.app.ports import Multiplier
from booking.domain.driver import Driver, DriverStatus
from booking.domain.payment import PaymentState, RidePayment
from booking.domain.place import Place
from booking.domain.quote import Quote, QuoteState
from booking.domain.ride import Ride, RideState
from booking.domain.roads import Roads

Row = RowMapping | Mapping[str, Any]  # Any: a row's columns have many types


def quote_row(quote: Quote) -> dict[str, object]:
    """Return a quote as a row."""
    return {
        "quote_id": quote.quote_id,
        "rider_id": quote.rider_id,
        "state": quote.state.value,
        "seq": quote.seq,
        "pickup_lat": quote.pickup.lat,
        "pickup_lng": quote.pickup.lng,
        "pickup_cell": quote.pickup.cell,
        "dropoff_lat": quote.dropoff.lat,
        "dropoff_lng": quote.dropoff.lng,
        "dropoff_cell": quote.dropoff.cell,
        "passengers": quote.passengers,
        "distance_m": quote.distance_m,
        "duration_s": quote.duration_s,
        "fare_minor": quote.fare_minor,
        "multiplier": quote.multiplier,
        "surge_version": quote.surge_version,
        "offered_at": quote.offered_at,
        "expires_at": quote.expires_at,
        "ride_id": quote.ride_id,
        "simulated": quote.simulated,
    }


def quote_of(row: Row) -> Quote:
    """Return the quote of a row."""
    return Quote(
        quote_id=row["quote_id"],
        rider_id=row["rider_id"],
        state=QuoteState(row["state"]),
        seq=row["seq"],
        pickup=Place(lat=row["pickup_lat"], lng=row["pickup_lng"], cell=row["pickup_cell"]),
        dropoff=Place(lat=row["dropoff_lat"], lng=row["dropoff_lng"], cell=row["dropoff_cell"]),
        passengers=row["passengers"],
        distance_m=row["distance_m"],
        duration_s=row["duration_s"],
        fare_minor=row["fare_minor"],
        multiplier=row["multiplier"],
        surge_version=row["surge_version"],
        offered_at=row["offered_at"],
        expires_at=row["expires_at"],
        ride_id=row["ride_id"],
        simulated=row["simulated"],
    )


def ride_row(ride: Ride) -> dict[str, object]:
    """Return a ride as a row."""
    return {
        "ride_id": ride.ride_id,
        "quote_id": ride.quote_id,
        "rider_id": ride.rider_id,
        "state": ride.state.value,
        "seq": ride.seq,
        "timer_seq": ride.timer_seq,
        "pickup_lat": ride.pickup.lat,
        "pickup_lng": ride.pickup.lng,
        "pickup_cell": ride.pickup.cell,
        "dropoff_lat": ride.dropoff.lat,
        "dropoff_lng": ride.dropoff.lng,
        "dropoff_cell": ride.dropoff.cell,
        "passengers": ride.passengers,
        "route_m": ride.route_m,
        "fare_minor": ride.fare_minor,
        "multiplier": ride.multiplier,
        "surge_version": ride.surge_version,
        "payment": ride.payment.state.value,
        "payment_seq": ride.payment.seq,
        "paid_minor": ride.payment.paid_minor,
        "owed_minor": ride.payment.owed_minor,
        "driver_id": ride.driver_id,
        "eta_s": ride.eta_s,
        "declined": " ".join(ride.declined),
        "requested_at": ride.requested_at,
        "matched_at": ride.matched_at,
        "arrived_at": ride.arrived_at,
        "started_at": ride.started_at,
        "ended_at": ride.ended_at,
        "updated_at": ride.updated_at,
        "distance_m": ride.distance_m,
        "duration_s": ride.duration_s,
        "cancelled_by": ride.cancelled_by,
        "reason": ride.reason,
        "pool_wish": ride.pool_wish,
        "pooled_with": ride.pooled_with,
        "single_fare_minor": ride.single_fare_minor,
        "seeks_partner": ride.seeks_partner,
        "simulated": ride.simulated,
    }


def ride_of(row: Row) -> Ride:
    """Return the ride of a row."""
    return Ride(
        ride_id=row["ride_id"],
        quote_id=row["quote_id"],
        rider_id=row["rider_id"],
        state=RideState(row["state"]),
        seq=row["seq"],
        timer_seq=row["timer_seq"],
        pickup=Place(lat=row["pickup_lat"], lng=row["pickup_lng"], cell=row["pickup_cell"]),
        dropoff=Place(lat=row["dropoff_lat"], lng=row["dropoff_lng"], cell=row["dropoff_cell"]),
        passengers=row["passengers"],
        route_m=row["route_m"],
        fare_minor=row["fare_minor"],
        multiplier=row["multiplier"],
        surge_version=row["surge_version"],
        payment=RidePayment(
            state=PaymentState(row["payment"]),
            seq=row["payment_seq"],
            paid_minor=row["paid_minor"],
            owed_minor=row["owed_minor"],
        ),
        driver_id=row["driver_id"],
        eta_s=row["eta_s"],
        declined=tuple(row["declined"].split()),
        requested_at=row["requested_at"],
        matched_at=row["matched_at"],
        arrived_at=row["arrived_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        updated_at=row["updated_at"],
        distance_m=row["distance_m"],
        duration_s=row["duration_s"],
        cancelled_by=row["cancelled_by"],
        reason=row["reason"],
        pool_wish=row["pool_wish"],
        pooled_with=row["pooled_with"],
        single_fare_minor=row["single_fare_minor"],
        seeks_partner=row["seeks_partner"],
        simulated=row["simulated"],
    )


def driver_row(driver: Driver) -> dict[str, object]:
    """Return a driver as a row."""
    position = driver.position
    return {
        "driver_id": driver.driver_id,
        "status": driver.status.value,
        "lat": position.lat if position else None,
        "lng": position.lng if position else None,
        "cell": position.cell if position else None,
        "ride_id": driver.ride_id,
        "seq": driver.seq,
        "updated_at": driver.updated_at,
        "heard_at": driver.heard_at,
        "simulated": driver.simulated,
    }


def driver_of(row: Row) -> Driver:
    """Return the driver of a row."""
    return Driver(
        driver_id=row["driver_id"],
        status=DriverStatus(row["status"]),
        position=None if row["cell"] is None else Place(lat=row["lat"], lng=row["lng"], cell=row["cell"]),
        ride_id=row["ride_id"],
        seq=row["seq"],
        updated_at=row["updated_at"],
        heard_at=row["heard_at"],
        simulated=row["simulated"],
    )


def multiplier_row(multiplier: Multiplier) -> dict[str, object]:
    """Return a cell's multiplier as a row."""
    return {
        "cell": multiplier.cell,
        "multiplier": multiplier.multiplier,
        "version": multiplier.version,
        "valid_until": multiplier.valid_until,
    }


def multiplier_of(row: Row) -> Multiplier:
    """Return the multiplier of a row."""
    return Multiplier(
        cell=row["cell"], multiplier=row["multiplier"], version=row["version"], valid_until=row["valid_until"]
    )


def roads_row(name: str, roads: Roads) -> dict[str, object]:
    """Return what was learnt of the roads as a row."""
    return {"name": name, "detour": roads.detour, "speed_m_per_s": roads.speed_m_per_s, "trips": roads.trips}


def roads_of(row: Row) -> Roads:
    """Return the roads of a row."""
    return Roads(detour=row["detour"], speed_m_per_s=row["speed_m_per_s"], trips=row["trips"])
