"""A faust worker that reads typed events through the bridge and writes others, on the in-house broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from hailbus import ClusterAdmin, Event, KafkaBus, Service, Topic, bus_reader
from hailbus.partitioner import Murmur2

from tests.integration.conftest import Broker

RIDES = Topic("rides.v1", partitions=3)
BILLS = Topic("bills.v1", partitions=3)


class RideCompleted(Event, topic=RIDES, key="ride_id", type="ride.completed"):
    ride_id: str
    fare_cents: int


class RideCancelled(Event, topic=RIDES, key="ride_id", type="ride.cancelled"):
    ride_id: str


class RideBilled(Event, topic=BILLS, key="ride_id", type="ride.billed"):
    ride_id: str
    amount_cents: int


WORKER = """
import asyncio, sys
import faust
from hailbus import Catalogue, Event, Topic
from hailbus.faust import TypedSender, TypedTopic

class RideCompleted(Event, topic=Topic("rides.v1", partitions=3), key="ride_id", type="ride.completed"):
    ride_id: str
    fare_cents: int

class RideBilled(Event, topic=Topic("bills.v1", partitions=3), key="ride_id", type="ride.billed"):
    ride_id: str
    amount_cents: int

async def main(bootstrap: str, folder: str, count: int) -> None:
    app = faust.App(
        "bills", broker=f"kafka://{bootstrap}", datadir=folder, store="memory://", autodiscover=False,
        web_enabled=False, topic_disable_leader=True, topic_replication_factor=1,
        consumer_auto_offset_reset="earliest", stream_wait_empty=False, stream_recovery_delay=0.0,
    )
    rides = TypedTopic(app, Catalogue.of(RideCompleted), RideCompleted)
    bills = TypedSender(app, "/bills", RideBilled)
    billed = 0
    done = asyncio.Event()

    @app.agent(rides.topic)
    async def bill(stream):
        nonlocal billed
        async for delivery in rides.events(stream):
            event = delivery.event
            written = RideBilled(ride_id=event.ride_id, amount_cents=event.fare_cents)
            await (await bills.send(written, id=f"bill-{event.ride_id}", cause=delivery.ctx))
            billed += 1
            if billed == count:
                done.set()

    await app.start()
    async with asyncio.timeout(60):
        await done.wait()
    print("undecodable", rides.undecodable_count)
    await app.stop()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_a_worker_reads_and_writes_typed_events(broker: Broker, tmp_path: Path) -> None:
    bus = KafkaBus(bootstrap_servers=broker.bootstrap)
    async with ClusterAdmin(bus) as admin:
        await admin.provision([RIDES, BILLS])
    rides = [RideCompleted(ride_id=f"ride-{number}", fare_cents=100 * number) for number in range(20)]
    shop = Service("shop", bus=bus)
    published = shop.publishes(RideCompleted | RideCancelled)
    async with shop.running(bus):
        await published.publish(RideCancelled(ride_id="ride-0"))  # a type that the worker does not want
        producer = bus.producer(client_id="foreign")
        await producer.start()
        for partition in range(RIDES.partitions):  # and records that are no events
            await producer.send(RIDES.name, partition, [(b"k", b"{", [("ce_type", b"ride.completed")])])
        await producer.stop()
        receipts = [await published.publish(ride, id=f"done-{ride.ride_id}") for ride in rides]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WORKER, broker.bootstrap, str(tmp_path / "faust"), str(len(rides))],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "undecodable 3" in done.stdout
    bills = [found async for found in bus_reader(bus, RideBilled, start="earliest", until_end=True)]
    assert {found.event.ride_id: found.event.amount_cents for found in bills} == {
        ride.ride_id: ride.fare_cents for ride in rides
    }
    assert len(bills) == len(rides)
    place_of = {ride.ride_id: receipt.partition for ride, receipt in zip(rides, receipts, strict=True)}
    for found in bills:
        envelope = found.ctx.envelope
        ride_id = found.event.ride_id
        assert (envelope.id, envelope.source) == (f"bill-{ride_id}", "/bills")
        assert (envelope.causation_id, envelope.correlation_id) == (f"done-{ride_id}",) * 2
        assert found.ctx.partition == place_of[ride_id] == Murmur2()(BILLS.name, ride_id.encode(), BILLS.partitions)
