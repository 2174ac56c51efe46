"""Rides over HTTP, from quote to end, on SQLite and on PostgreSQL."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hailbus import Service
from hailbus.testing import MemoryBus
from ride_events.pricing import SurgeUpdated

from tests.integration.booking.conftest import DROPOFF, FAR_AWAY, PICKUP, Client, StartBooking
from tests.integration.conftest import eventually

pytestmark = pytest.mark.timeout(120)


async def published(client: Client, topic: str, subject: str, types: list[str]) -> None:
    async def all_there() -> bool:
        return [kind for kind, _ in client.events(topic, subject)] == types

    await eventually(all_there)


async def test_a_ride_from_quote_to_end(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        quote = await booking.quote()
        assert (quote["distance_m"], quote["duration_s"]) == (7_843, 1_569)
        # 300 + 134 · 7.843 + 40 · 26.15
        assert (quote["fare"], quote["multiplier"]) == ({"amount_minor": 2_397, "currency": "USD"}, 1.0)
        ride = await booking.post("/rides", {"quote_id": quote["quote_id"]})
        assert (ride["state"], ride["driver_id"], ride["seq"], ride["eta_s"]) == ("matched", "d1", 2, 0)
        steps = f"/rides/{ride['ride_id']}"
        assert (await booking.post(f"{steps}/arrived", {"driver_id": "d1"}))["state"] == "arrived"
        assert (await booking.post(f"{steps}/start", {"driver_id": "d1"}))["state"] == "in_progress"
        busy = await booking.get("/drivers/d1")
        assert (busy["status"], busy["ride_id"]) == ("busy", ride["ride_id"])
        done = await booking.post(
            f"{steps}/complete",
            {
                "driver_id": "d1",
                "distance_m": 10_000,
            },
        )
        assert (done["state"], done["fare"]["amount_minor"], done["payment"]) == ("completed", 2_397, "pending")
        assert (await booking.get(f"/rides/{ride['ride_id']}")) == done
        free = await booking.get("/drivers/d1")
        assert (free["status"], free["position"]) == ("free", DROPOFF)
        accepted = await booking.get(f"/quotes/{quote['quote_id']}")
        assert (accepted["state"], accepted["ride_id"]) == ("accepted", ride["ride_id"])
        await published(
            booking,
            "rides.v1",
            ride["ride_id"],
            ["ride.requested", "ride.matched", "ride.driver_arrived", "ride.started", "ride.completed"],
        )
        await published(booking, "quotes.v1", quote["quote_id"], ["quote.offered", "quote.accepted"])
        await published(booking, "drivers.v1", "d1", ["driver.went_online", "driver.became_busy", "driver.became_free"])
        assert booking.types("booking-timers.v1") == []


async def test_a_rider_has_one_ride_at_a_time(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        quotes = [(await booking.quote(rider_id="r1"))["quote_id"] for _ in range(3)]
        ride = await booking.post("/rides", {"quote_id": quotes[0]}, key="first")
        assert ride["state"] == "matched"
        refused = await booking.raw("/rides", {"quote_id": quotes[1]}, key="second")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ride-open")
        assert f"has ride {ride['ride_id']}" in refused.json()["detail"]
        assert await booking.post("/rides", {"quote_id": quotes[0]}, key="first") == ride
        assert (await booking.ride(rider_id="r2"))["state"] == "requested"
    async with start_booking() as booking:
        refused = await booking.raw("/rides", {"quote_id": quotes[1]})
        assert refused.json()["type"] == "/problems/ride-open", "a restart forgot the ride"
        await booking.post(f"/rides/{ride['ride_id']}/cancel", {"by": "rider", "reason": "late"})
        again = await booking.post("/rides", {"quote_id": quotes[1]})
        assert again["quote_id"] == quotes[1]
        assert (await booking.get(f"/quotes/{quotes[2]}"))["state"] == "offered"


async def test_a_waiting_ride_takes_the_next_free_driver(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        ride = await booking.ride()
        assert (ride["state"], ride["driver_id"]) == ("requested", None)
        far = await booking.post("/drivers/far/online", {"position": FAR_AWAY})
        assert far["status"] == "free"
        near = await booking.post("/drivers/near/online", {"position": DROPOFF})
        assert (near["status"], near["ride_id"]) == ("busy", ride["ride_id"])
        assert (await booking.get(f"/rides/{ride['ride_id']}"))["driver_id"] == "near"


async def test_a_driver_who_cancels_is_replaced_three_times_then_the_ride_is_unmatched(
    start_booking: StartBooking,
) -> None:
    async with start_booking() as booking:
        for name in ("a", "b", "c", "d", "e"):
            await booking.post(f"/drivers/{name}/online", {"position": PICKUP})
        ride = await booking.ride()
        steps = f"/rides/{ride['ride_id']}"
        for count, name in enumerate(("a", "b", "c"), start=1):
            assert ride["driver_id"] == name
            ride = await booking.post(f"{steps}/cancel", {"by": "driver", "driver_id": name, "reason": "flat tyre"})
            assert (ride["state"], ride["redispatches"]) == ("matched", count)
        ride = await booking.post(f"{steps}/cancel", {"by": "driver", "driver_id": "d", "reason": "flat tyre"})
        assert (ride["state"], ride["reason"], ride["redispatches"]) == ("unmatched", "redispatch_limit", 3)
        for name in ("a", "d"):
            assert (await booking.get(steps, by=("driver", name)))["state"] == "unmatched", "each of them had the ride"
        assert [(await booking.get(f"/drivers/{name}"))["status"] for name in ("a", "b", "c", "d", "e")] == ["free"] * 5
        await published(
            booking,
            "rides.v1",
            ride["ride_id"],
            ["ride.requested", *["ride.matched", "ride.redispatched"] * 3, "ride.matched", "ride.unmatched"],
        )


async def test_a_rider_who_does_not_come_is_a_no_show_by_the_driver_or_by_the_clock(
    start_booking: StartBooking,
) -> None:
    async with start_booking(clock="event", no_show_s=300) as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at="2014-05-01T08:00:00Z")
        first = await booking.ride(at="2014-05-01T08:00:01Z")
        await booking.post(f"/rides/{first['ride_id']}/arrived", {"driver_id": "d1"}, at="2014-05-01T08:01:00Z")
        no_show = {"by": "driver", "driver_id": "d1", "reason": "no_show"}
        cancel = f"/rides/{first['ride_id']}/cancel"
        refused = await booking.raw(cancel, no_show, key="early", at="2014-05-01T08:05:59Z")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/no-show-too-early")
        assert "until 2014-05-01T08:06:00+00:00" in refused.json()["detail"]
        ended = await booking.post(cancel, no_show, at="2014-05-01T08:06:00Z")
        assert (ended["state"], ended["cancelled_by"], ended["reason"]) == ("cancelled", "driver", "no_show")
        await booking.post("/drivers/d1/location", {"position": PICKUP}, at="2014-05-01T08:06:50Z")
        second = await booking.ride(at="2014-05-01T08:07:00Z")
        await booking.post(f"/rides/{second['ride_id']}/arrived", {"driver_id": "d1"}, at="2014-05-01T08:08:00Z")
        await booking.post("/clock", {}, at="2014-05-01T08:30:00Z")
        await published(
            booking,
            "rides.v1",
            second["ride_id"],
            ["ride.requested", "ride.matched", "ride.driver_arrived", "ride.cancelled"],
        )
        # When the news came does not matter: it happened when the time was over.
        assert booking.events("rides.v1", second["ride_id"])[-1][1] == "2014-05-01T08:13:00Z"
        ended = await booking.get(f"/rides/{second['ride_id']}")
        assert (ended["cancelled_by"], ended["ended_at"]) == ("system", "2014-05-01T08:13:00Z")
        assert (await booking.get("/drivers/d1"))["status"] == "free"


async def test_a_driver_who_vanishes_holds_up_nobody(start_booking: StartBooking) -> None:
    async with start_booking(clock="event", pickup_grace_s=600, ride_grace_s=3_600) as booking:
        await booking.post("/drivers/lost/online", {"position": PICKUP}, at="2014-05-01T08:00:00Z")
        ride = await booking.ride(at="2014-05-01T08:00:10Z")
        await booking.post("/drivers/other/online", {"position": PICKUP}, at="2014-05-01T08:10:00Z")
        await booking.post("/clock", {}, at="2014-05-01T08:10:09Z")
        assert (await booking.get(f"/rides/{ride['ride_id']}"))["driver_id"] == "lost"
        await booking.post("/clock", {}, at="2014-05-01T08:10:10Z")
        await published(
            booking,
            "rides.v1",
            ride["ride_id"],
            ["ride.requested", "ride.matched", "ride.redispatched", "ride.matched"],
        )
        steps, other = f"/rides/{ride['ride_id']}", {"driver_id": "other"}
        refused = await booking.raw(f"{steps}/arrived", {"driver_id": "lost"}, at="2014-05-01T08:11:00Z")
        assert refused.json()["type"] == "/problems/not-your-ride"
        await booking.post(f"{steps}/arrived", other, at="2014-05-01T08:12:00Z")
        started = await booking.post(f"{steps}/start", other, at="2014-05-01T08:13:00Z")
        # 1,569 s are estimated for the way, and booking waits an hour longer.
        await booking.post("/clock", {}, at="2014-05-01T09:39:08Z")
        assert (await booking.get(steps))["state"] == "in_progress"
        await booking.post("/clock", {}, at="2014-05-01T12:00:00Z")
        told = ["ride.requested", "ride.matched", "ride.redispatched", "ride.matched", "ride.driver_arrived"]
        await published(booking, "rides.v1", ride["ride_id"], [*told, "ride.started", "ride.completed"])
        ended = await booking.get(steps)
        assert (ended["state"], ended["reason"], ended["fare"]) == ("completed", "ride_timeout", started["fare"])
        assert ended["ended_at"] == "2014-05-01T09:39:09Z"
        assert (await booking.get("/drivers/other"))["status"] == "free"


async def test_timeouts_are_events_in_event_time(start_booking: StartBooking) -> None:
    async with start_booking(clock="event", quote_ttl_s=120, match_timeout_s=300) as booking:
        left = await booking.quote(at="2014-05-01T08:00:00Z")
        ride = await booking.ride(at="2014-05-01T08:00:30Z")
        await booking.post("/clock", {}, at="2014-05-01T08:01:59Z")
        assert (await booking.get(f"/quotes/{left['quote_id']}"))["state"] == "offered"
        await booking.post("/clock", {}, at="2014-05-01T09:00:00Z")
        await published(booking, "quotes.v1", left["quote_id"], ["quote.offered", "quote.expired"])
        await published(booking, "rides.v1", ride["ride_id"], ["ride.requested", "ride.unmatched"])
        assert booking.events("quotes.v1", left["quote_id"])[-1][1] == "2014-05-01T08:02:00Z"
        assert booking.events("rides.v1", ride["ride_id"])[-1][1] == "2014-05-01T08:05:30Z"
        assert booking.types("booking-timers.v1") == ["booking.timer_elapsed"] * 2
        refused = await booking.post("/rides", {"quote_id": left["quote_id"]}, expect=409)
        assert refused["type"] == "/problems/quote-expired"


async def test_timeouts_come_by_the_wall_clock_too(start_booking: StartBooking) -> None:
    async with start_booking(quote_ttl_s=1) as booking:
        quote = await booking.quote()
        await published(booking, "quotes.v1", quote["quote_id"], ["quote.offered", "quote.expired"])


async def test_the_event_clock_is_where_it_was_after_a_restart(start_booking: StartBooking) -> None:
    async with start_booking(clock="event") as booking:
        refused = await booking.post("/quotes", {"rider_id": "r", "pickup": PICKUP, "dropoff": DROPOFF}, expect=400)
        assert refused["type"] == "/problems/event-time-required"
        await booking.quote(at="2014-05-01T08:00:30.250Z")
        await booking.quote(at="2014-05-01T08:00:10Z")
    async with start_booking(clock="event") as booking:
        assert (await booking.get("/clock"))["now"] == "2014-05-01T08:00:30.250000Z"
        quote = await booking.quote()
        assert quote["offered_at"] == "2014-05-01T08:00:30.250000Z"


async def test_the_wall_clock_refuses_event_times(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        body = {"rider_id": "r", "pickup": PICKUP, "dropoff": DROPOFF}
        refused = await booking.post("/quotes", body, at="2014-05-01T08:00:00Z", expect=400)
        assert refused["type"] == "/problems/event-time-refused"
        update = {"kind": "online", "driver_id": "d", "position": PICKUP, "event_time": "2014-05-01T08:00:00Z"}
        refused = await booking.post("/driver-updates", {"updates": [update]}, expect=400)
        assert refused["type"] == "/problems/event-time-refused"


async def test_a_quote_has_the_multiplier_of_its_cell_and_the_ride_honours_it(
    start_booking: StartBooking, bus: MemoryBus
) -> None:
    surge = Service("surge", bus=bus)
    updates = surge.publishes(SurgeUpdated)
    now = datetime(2014, 5, 1, 8, tzinfo=UTC)
    async with start_booking(clock="event") as booking, surge.running():
        cell = (await booking.quote(at=now.isoformat()))["pickup_cell"]

        def update(multiplier: float, version: int) -> SurgeUpdated:
            return SurgeUpdated(
                cell=cell,
                multiplier=multiplier,
                surge_version=version,
                window_end=now,
                demand=1.0,
                supply=1.0,
                valid_until=now + timedelta(minutes=5),
            )

        async def multiplier_is(expected: float) -> bool:
            return bool((await booking.quote())["multiplier"] == expected)

        await updates.publish(update(1.7, 2))
        await eventually(lambda: multiplier_is(1.7))
        # An older version that comes late changes nothing; a repetition neither.
        await updates.publish(update(1.2, 1))
        await updates.publish(update(1.7, 2))
        await updates.publish(update(1.9, 3))
        await eventually(lambda: multiplier_is(1.9))
        quote = await booking.quote()
        assert (quote["fare"]["amount_minor"], quote["surge_version"]) == (4_554, 3)  # 2396.96 · 1.9
        await updates.publish(update(1.0, 4))
        await eventually(lambda: multiplier_is(1.0))
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.post("/rides", {"quote_id": quote["quote_id"]})
        steps = f"/rides/{ride['ride_id']}"
        await booking.post(f"{steps}/arrived", {"driver_id": "d1"})
        await booking.post(f"{steps}/start", {"driver_id": "d1"})
        done = await booking.post(
            f"{steps}/complete",
            {
                "driver_id": "d1",
                "distance_m": 20_000,
            },
        )
        assert done["fare"]["amount_minor"] == 4_554
    async with start_booking(clock="event") as booking:
        await updates_known_after_restart(booking, now)


async def updates_known_after_restart(booking: Client, now: datetime) -> None:
    quote = await booking.quote(at=(now + timedelta(minutes=1)).isoformat())
    assert quote["surge_version"] == 4
    # Nobody renewed it: fail cheap, visibly.
    quote = await booking.quote(at=(now + timedelta(minutes=5)).isoformat())
    assert (quote["multiplier"], quote["surge_version"]) == (1.0, None)


async def test_a_new_destination_changes_the_fare(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        ride = await booking.ride()
        changed = await booking.post(f"/rides/{ride['ride_id']}/destination", {"dropoff": FAR_AWAY})
        assert changed["fare"]["amount_minor"] > ride["fare"]["amount_minor"]
        assert (changed["state"], changed["dropoff"]) == ("requested", FAR_AWAY)
        await published(booking, "rides.v1", ride["ride_id"], ["ride.requested", "ride.repriced"])


async def test_two_riders_share_a_driver_and_a_restart_keeps_it(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        first, second = [await booking.ride() for _ in range(2)]
        wish = await booking.post(f"/rides/{first['ride_id']}/pool", {"partner_ride_id": second["ride_id"]})
        assert (wish["pool_wish"], wish["pooled_with"], wish["seq"]) == (second["ride_id"], None, 1)
    async with start_booking() as booking:
        body, path = {"partner_ride_id": first["ride_id"]}, f"/rides/{second['ride_id']}/pool"
        pooled = await booking.post(path, body, key="agree")
        assert await booking.post(path, body, key="agree") == pooled, "the same request has the same answer"
        assert (pooled["pooled_with"], pooled["seq"]) == (first["ride_id"], 2)
        assert pooled["fare"]["amount_minor"] == (second["fare"]["amount_minor"] * 80 + 50) // 100
        refused = await booking.post(f"/rides/{first['ride_id']}/destination", {"dropoff": FAR_AWAY}, expect=409)
        assert refused["type"] == "/problems/ride-pooled"
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        for ride in (first, second):
            await published(booking, "rides.v1", ride["ride_id"], ["ride.requested", "ride.pooled", "ride.matched"])
        cancelled = await booking.post(f"/rides/{first['ride_id']}/cancel", {"by": "rider", "reason": "late"})
        assert cancelled["state"] == "cancelled"
        told = ["ride.requested", "ride.pooled", "ride.matched", "ride.repriced"]
        await published(booking, "rides.v1", second["ride_id"], told)


async def test_a_client_cannot_say_how_far_a_ride_is(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        body = {"rider_id": "r1", "pickup": PICKUP, "dropoff": DROPOFF, "distance_m": 1}
        refused = await booking.raw("/quotes", body, key="short")
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/invalid")


@pytest.mark.parametrize(
    ("minutes", "cents"),
    [
        (20, 2_397),  # quicker than estimated: the quoted fare holds
        (40, 2_397),  # metered 29.51: below 23.97 + 5.99
        (41, 2_397),  # metered 29.91
        (42, 3_031),  # metered 30.31: above the bound
        (600, 4_794),  # the driver forgot to end the ride: twice the quoted fare
    ],
)
async def test_the_quoted_fare_is_honoured_within_bounds(start_booking: StartBooking, minutes: int, cents: int) -> None:
    start = datetime(2014, 5, 1, 8, tzinfo=UTC)
    async with start_booking(clock="event") as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=start.isoformat())
        ride = await booking.ride(at=start.isoformat())
        steps = f"/rides/{ride['ride_id']}"
        for step in ("arrived", "start"):
            await booking.post(f"{steps}/{step}", {"driver_id": "d1"}, at=start.isoformat())
        end = (start + timedelta(minutes=minutes)).isoformat()
        # The odometer decides nothing.
        done = await booking.post(f"{steps}/complete", {"driver_id": "d1", "distance_m": 900_000}, at=end)
        assert (done["fare"]["amount_minor"], done["duration_s"]) == (cents, minutes * 60)
        repriced = ["ride.repriced"] if cents > 2_397 else []
        await published(
            booking,
            "rides.v1",
            ride["ride_id"],
            ["ride.requested", "ride.matched", "ride.driver_arrived", "ride.started", *repriced, "ride.completed"],
        )


async def test_estimates_are_learnt_from_trips_and_survive_a_restart(start_booking: StartBooking) -> None:
    start = datetime(2014, 5, 1, 8, tzinfo=UTC)
    async with start_booking(clock="event") as booking:
        before = await booking.quote(at=start.isoformat())
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=start.isoformat())
        ride = await booking.ride(at=start.isoformat())
        steps = f"/rides/{ride['ride_id']}"
        for step in ("arrived", "start"):
            await booking.post(f"{steps}/{step}", {"driver_id": "d1"}, at=start.isoformat())
        end = (start + timedelta(minutes=20)).isoformat()
        await booking.post(f"{steps}/complete", {"driver_id": "d1", "distance_m": 11_000}, at=end)
        after = await booking.quote(at=end)
        assert after["distance_m"] > before["distance_m"]
    async with start_booking(clock="event") as booking:
        again = await booking.quote(at=end)
        assert (again["distance_m"], again["duration_s"]) == (after["distance_m"], after["duration_s"])


async def test_many_updates_in_one_request_each_alone(start_booking: StartBooking) -> None:
    async with start_booking(clock="event") as booking:
        ride = await booking.ride(at="2014-05-01T08:00:00Z")
        step = {"driver_id": "d1", "ride_id": ride["ride_id"]}
        body = {
            "updates": [
                {"kind": "online", "driver_id": "d1", "position": PICKUP, "simulated": True},
                {"kind": "start", **step},
                {"kind": "arrived", **step, "event_time": "2014-05-01T08:03:00Z"},
                {"kind": "location", "driver_id": "d1", "position": PICKUP},
                {"kind": "location", "driver_id": "nobody", "position": PICKUP},
                {"kind": "start", **step, "event_time": "2014-05-01T08:04:00Z"},
                {"kind": "offline", "driver_id": "d1"},
                {
                    "kind": "complete",
                    **step,
                    "distance_m": 1,
                    "event_time": "2014-05-01T08:09:00Z",
                },
            ]
        }
        results = (await booking.post("/driver-updates", body, key="batch", at="2014-05-01T08:01:00Z"))["results"]
        assert [result["status"] for result in results] == [200, 409, 200, 200, 404, 200, 409, 200]
        assert [result["body"].get("type") for result in results if result["status"] > 200] == [
            "/problems/wrong-state",
            "/problems/not-found",
            "/problems/driver-busy",
        ]
        assert results[-1]["body"]["ended_at"] == "2014-05-01T08:09:00Z"
        assert results[0]["body"]["simulated"] is True
        again = await booking.raw("/driver-updates", body, key="batch", at="2014-05-01T08:01:00Z")
        assert again.headers["idempotent-replay"] == "true"
        assert again.json()["results"] == results
        assert (await booking.get("/clock"))["now"] == "2014-05-01T08:09:00Z"
        await published(
            booking,
            "rides.v1",
            ride["ride_id"],
            ["ride.requested", "ride.matched", "ride.driver_arrived", "ride.started", "ride.completed"],
        )

        async def location_reported() -> bool:
            return booking.types("driver-locations.v1") == ["driver.location_reported"]

        await eventually(location_reported)


async def test_lists_page_through_everything_once(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        rides = [await booking.ride() for _ in range(7)]
        seen: list[str] = []
        after = ""
        while True:
            page = await booking.get(f"/rides?limit=3{after}")
            seen += [ride["ride_id"] for ride in page["rides"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert seen == [ride["ride_id"] for ride in reversed(rides)]
        wanted = [rides[1]["ride_id"], rides[4]["ride_id"]]
        some = await booking.get(f"/rides?ride_id={wanted[0]}&ride_id={wanted[1]}&state=requested")
        assert {ride["ride_id"] for ride in some["rides"]} == set(wanted)
        for name in ("a", "b", "c"):
            await booking.post(f"/drivers/{name}/online", {"position": FAR_AWAY})
        assert [one["driver_id"] for one in (await booking.get("/drivers?limit=2"))["drivers"]] == ["a", "b"]
        assert [one["driver_id"] for one in (await booking.get("/drivers?after=b&status=free"))["drivers"]] == ["c"]
        assert (await booking.get("/rides?after=unknown", expect=404))["type"] == "/problems/not-found"


async def test_what_waits_is_found_again_after_a_restart(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        waiting = await booking.ride()
        await booking.post("/drivers/free/online", {"position": FAR_AWAY})
    async with start_booking() as booking:
        near = await booking.post("/drivers/near/online", {"position": PICKUP})
        assert near["ride_id"] == waiting["ride_id"]
        ride = await booking.ride(pickup=FAR_AWAY)
        assert ride["driver_id"] == "free"


async def test_hundreds_of_requests_share_few_commits_and_none_gets_lost(start_booking: StartBooking) -> None:
    async with start_booking() as booking:
        quotes = await asyncio.gather(*(booking.quote(rider_id=f"r{number}") for number in range(200)))
        assert len({quote["quote_id"] for quote in quotes}) == 200
        rides = await asyncio.gather(*(booking.post("/rides", {"quote_id": quote["quote_id"]}) for quote in quotes))
        assert {ride["state"] for ride in rides} == {"requested"}
        drivers = await asyncio.gather(
            *(booking.post(f"/drivers/d{number}/online", {"position": PICKUP}) for number in range(200))
        )
        assert {driver["ride_id"] for driver in drivers} == {ride["ride_id"] for ride in rides}

        async def all_there() -> bool:
            return booking.types("rides.v1").count("ride.matched") == 200

        await eventually(all_there)
        ids = [
            record.headers for topic in ("rides.v1", "quotes.v1", "drivers.v1") for record in booking.bus.records(topic)
        ]
        assert len({dict(headers)["ce_id"] for headers in ids}) == len(ids) == 200 * (2 + 2 + 2)
