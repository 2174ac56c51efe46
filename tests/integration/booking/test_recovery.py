"""What fails in a commit fails alone, and the writer comes back from whatever made it fail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from booking.adapters.storage.database import ADVISORY_LOCK
from booking.app.story import derived_id
from hailbus.database import create_engine
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import InterfaceError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.booking.conftest import DROPOFF, PICKUP, Client, StartBooking
from tests.integration.conftest import eventually

pytestmark = pytest.mark.timeout(120)
# Tests share a server: booking holds a lock of the same number in the databases of other tests.
OF_THIS_DATABASE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
QUOTE = {"rider_id": "r1", "pickup": PICKUP, "dropoff": DROPOFF}


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    one = create_engine(database_url)
    yield one
    await one.dispose()


async def run(engine: AsyncEngine, statement: str, **values: object) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement), values)


async def occupy(engine: AsyncEngine, event_id: str) -> None:
    """Put a row into the outbox that has the id of an event which booking will publish."""
    await run(
        engine,
        "INSERT INTO hailbus_outbox (id, aggregatetype, type, headers, created_at, cancelled_at) "
        "VALUES (:id, 'rides.v1', 'ride.cancelled', '[]', 0, 1)",
        id=event_id,
    )


async def free(engine: AsyncEngine, event_id: str) -> None:
    await run(engine, "DELETE FROM hailbus_outbox WHERE id = :id", id=event_id)


async def test_an_expired_key_is_a_new_request(start_booking: StartBooking, engine: AsyncEngine) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP}, key="a")
        first = await booking.post("/quotes", QUOTE, key="b")
        ride = await booking.post("/rides", {"quote_id": first["quote_id"]}, key="c")
        await run(engine, "DELETE FROM hailbus_answers")  # as pruning does after `idempotency_keep_h`
        second = await booking.post("/quotes", {**QUOTE, "rider_id": "r2"}, key="b")
        other = await booking.post("/rides", {"quote_id": second["quote_id"]}, key="c")
        assert second["quote_id"] != first["quote_id"]
        assert other["ride_id"] != ride["ride_id"]
        assert {one["ride_id"] for one in (await booking.get("/rides"))["rides"]} == {ride["ride_id"], other["ride_id"]}


async def test_a_request_that_the_database_refuses_fails_alone(
    start_booking: StartBooking, engine: AsyncEngine
) -> None:
    async with start_booking() as booking:
        ride = await booking.ride()
        cancel, body = f"/rides/{ride['ride_id']}/cancel", {"by": "rider", "reason": "late"}
        taken = derived_id(ride["ride_id"], ride["seq"] + 1, "ride.cancelled")
        await occupy(engine, taken)
        answers = await asyncio.gather(
            booking.raw("/quotes", QUOTE, key="before"),
            booking.raw(cancel, body, key="culprit"),
            *(booking.raw("/quotes", QUOTE, key=f"after-{number}") for number in range(4)),
        )
        assert [answer.status_code for answer in answers] == [201, 500, 201, 201, 201, 201]
        assert (await booking.raw("/quotes", QUOTE, key="before")).content == answers[0].content
        await free(engine, taken)
        assert (await booking.post(cancel, body, key="culprit"))["state"] == "cancelled"


async def test_a_failed_rollback_does_not_hide_that_a_statement_was_refused(
    start_booking: StartBooking, engine: AsyncEngine
) -> None:
    async with start_booking() as booking:
        ride = await booking.ride()
        taken = derived_id(ride["ride_id"], ride["seq"] + 1, "ride.cancelled")
        await occupy(engine, taken)
        failed: list[object] = []

        def fail(connection: object) -> None:
            failed.append(connection)
            event.remove(Engine, "rollback", fail)
            raise InterfaceError("ROLLBACK", None, Exception("another operation is in progress"))

        event.listen(Engine, "rollback", fail)
        cancel = f"/rides/{ride['ride_id']}/cancel"
        assert (await booking.raw(cancel, {"by": "rider", "reason": "late"})).status_code == 500
        assert len(failed) == 1
        await until_ready(booking)
        assert (await booking.raw("/quotes", QUOTE)).status_code == 201


async def test_a_stored_row_that_makes_no_sense_is_waited_for(start_booking: StartBooking, engine: AsyncEngine) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride()
        await run(engine, "UPDATE booking_drivers SET status = 'asleep' WHERE driver_id = 'd1'")
        taken = derived_id(ride["ride_id"], ride["seq"] + 1, "ride.cancelled")
        await occupy(engine, taken)
        cancel = f"/rides/{ride['ride_id']}/cancel"
        assert (await booking.raw(cancel, {"by": "rider", "reason": "late"})).status_code == 500
        await until_not_ready(booking, "'asleep'")
        assert (await booking.raw("/quotes", QUOTE)).status_code == 503
        await run(engine, "UPDATE booking_drivers SET status = 'busy' WHERE driver_id = 'd1'")
        await until_ready(booking)
        assert (await booking.raw("/quotes", QUOTE)).status_code == 201


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_commit_that_does_not_return_is_cancelled(start_booking: StartBooking, engine: AsyncEngine) -> None:
    async with start_booking(commit_timeout_s=0.5) as booking:
        await booking.post("/quotes", QUOTE, key="before")
        async with engine.begin() as holder:
            await holder.execute(text("LOCK TABLE booking_quotes IN ACCESS EXCLUSIVE MODE"))
            late = await booking.raw("/quotes", {**QUOTE, "rider_id": "r2"}, key="late")
            assert (late.status_code, late.json()["type"]) == (503, "/problems/unavailable")
            assert (await booking.http.get("/livez")).status_code == 200
        await until_ready(booking)
        assert (await booking.raw("/quotes", {**QUOTE, "rider_id": "r2"}, key="late")).status_code == 201


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_the_lock_of_a_dead_session_is_waited_for(start_booking: StartBooking, engine: AsyncEngine) -> None:
    """PostgreSQL may hold a lost session's lock until it notices; another process may have taken it meanwhile."""
    async with start_booking() as booking, engine.connect() as holder:
        await booking.post("/quotes", QUOTE)
        taken = asyncio.create_task(holder.execute(text(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")))
        await eventually(lambda: waits_for_lock(engine))
        await run(
            engine,
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = :low "
            f"AND {OF_THIS_DATABASE}",
            low=ADVISORY_LOCK & 0xFFFFFFFF,
        )
        await taken
        assert (await booking.raw("/quotes", QUOTE)).status_code == 503
        await until_not_ready(booking, "another process writes")
        assert (await booking.raw("/quotes", QUOTE)).status_code == 503
        assert (await booking.http.get("/livez")).status_code == 200
        await holder.close()
        await holder.engine.dispose()
        await until_ready(booking)
        assert (await booking.raw("/quotes", QUOTE)).status_code == 201


async def waits_for_lock(engine: AsyncEngine) -> bool:
    async with engine.connect() as connection:
        return bool(
            await connection.scalar(
                text(
                    f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {OF_THIS_DATABASE}"
                )
            )
        )


async def until_ready(booking: Client) -> None:
    async def ready() -> bool:
        return (await booking.http.get("/readyz")).status_code == 200

    await eventually(ready, within_s=60)


async def until_not_ready(booking: Client, reason: str) -> None:
    async def says_so() -> bool:
        answer: httpx.Response = await booking.http.get("/readyz")
        content: Any = answer.json()
        return answer.status_code == 503 and any(reason in one for one in content["reasons"])

    await eventually(says_so, within_s=60)
