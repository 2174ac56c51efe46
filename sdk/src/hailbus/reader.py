"""Reading topics without a group: tails, dashboards, replays. Nothing is committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from hailbus._transport import Bus, Received, TopicPartition, TransportBrokenError
from hailbus.catalogue import Catalogue
from hailbus.codec import decode
from hailbus.context import Context, Delivery
from hailbus.errors import ContractError
from hailbus.event import Event, event_info
from hailbus.plain import adopting

if TYPE_CHECKING:
    from hailbus.registry.schemas import Schemas

__all__ = ["bus_reader", "record_reader"]

log = logging.getLogger("hailbus.reader")
E = TypeVar("E", bound=Event)


async def record_reader(
    bus: Bus,
    topics: Iterable[str],
    *,
    start: Literal["earliest", "latest"] | datetime = "latest",
    until_end: bool = False,
    client_id: str = "hailbus-reader",
) -> AsyncGenerator[Received, None]:
    """Raw records of all partitions of some topics, in order per partition, for ever or until today's end.

    Survives a broker that goes away and comes back.

    Args:
        bus: Where from.
        topics: Topic names.
        start: The beginning, the end, or the first record with a timestamp from this moment on.
        until_end: Stop at the high watermarks of the moment of the call.
        client_id: For the broker's logs.
    """
    names = sorted(set(topics))
    admin = bus.admin(client_id=f"{client_id}-offsets")
    await admin.start()
    try:
        ends = await admin.end_offsets(names) if until_end or start == "latest" else {}
        if start == "latest":
            positions = dict(ends)
        elif start == "earliest":
            positions = dict(await admin.start_offsets(names))
        else:
            positions = dict(await admin.offsets_at(names, start))
    finally:
        await admin.stop()
    left = {tp for tp, end in ends.items() if positions[tp] < end} if until_end else set()
    while True:
        if until_end and not left:
            return
        consumer = bus.consumer(client_id=client_id, group=None, topics=names, start="earliest")
        await consumer.start()
        try:
            await consumer.seek(positions)
            while not until_end or left:
                polled = await consumer.poll(timeout_s=0.1 if until_end else 0.5, max_records=1_000)
                for raw, records in polled.items():
                    tp = TopicPartition(*raw)
                    for record in records:
                        positions[tp] = record.offset + 1
                        if until_end and record.offset >= ends[tp]:
                            continue
                        yield record
                    if until_end and positions[tp] >= ends[tp]:
                        left.discard(tp)
                if left and not polled:
                    # The last offsets may be markers of transactions, which no poll hands out.
                    left -= {tp for tp, offset in (await consumer.positions()).items() if offset >= ends[tp]}
        except TransportBrokenError as error:
            log.warning("reader_replaced: %s", error)
            await asyncio.sleep(1.0)
        finally:
            await consumer.stop()


@overload
def bus_reader(
    bus: Bus,
    *events: type[E],
    start: Literal["earliest", "latest"] | datetime = ...,
    until_end: bool = ...,
    on_error: Literal["skip", "raise"] = ...,
    schemas: Schemas | None = ...,
    client_id: str = ...,
) -> AsyncGenerator[Delivery[E], None]: ...
@overload
def bus_reader(
    bus: Bus,
    *events: type[Event] | Catalogue,
    start: Literal["earliest", "latest"] | datetime = ...,
    until_end: bool = ...,
    on_error: Literal["skip", "raise"] = ...,
    schemas: Schemas | None = ...,
    client_id: str = ...,
) -> AsyncGenerator[Delivery[Event], None]: ...
async def bus_reader(
    bus: Bus,
    *events: type[Any] | Catalogue,
    start: Literal["earliest", "latest"] | datetime = "latest",
    until_end: bool = False,
    on_error: Literal["skip", "raise"] = "skip",
    schemas: Schemas | None = None,
    client_id: str = "hailbus-reader",
) -> AsyncGenerator[Delivery[Any], None]:
    """Typed events without a group, for `async for`; one that does not read to the end closes it (`aclosing`).

    Other types on the same topics and tombstones are passed over. See `record_reader` for `start` and `until_end`.

    Args:
        bus: Where from.
        events: Event classes, or a catalogue for all of its events.
        start: The beginning, the end, or a moment.
        until_end: Stop at the high watermarks of the moment of the call.
        on_error: What cannot be decoded is logged and passed over, or raised.
        schemas: A schema registry, for values as Avro or Protobuf, and for records that only their schema names.
        client_id: For the broker's logs.
    """
    wanted = Catalogue.of(*events)
    topics = {event_info(cls).topic.name for cls in wanted}
    types = frozenset(wanted.types)
    if schemas is not None:
        bus = schemas.reading(bus, wanted)
    records = record_reader(adopting(bus, wanted), topics, start=start, until_end=until_end, client_id=client_id)
    async with aclosing(records):
        async for read in records:
            record = read
            if record.value is None:
                continue
            try:
                if schemas is not None:
                    record = await schemas.identified(record, wanted)
                ctx = Context(record)
                if ctx.envelope.type not in types:
                    continue
                event, _ = decode(record, wanted)
            except ContractError as error:
                if on_error == "raise":
                    raise
                log.warning("record_passed_over: %s-%d@%d: %s", record.topic, record.partition, record.offset, error)
                continue
            yield Delivery(event, ctx)
