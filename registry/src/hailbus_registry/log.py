"""The `_schemas` topic: read for ever by every server, written by one at a time.

All servers share one transactional id. Whoever takes it fences the one before, whose open transaction ends; having read
the topic to its end it knows all that was ever decided, decides, and writes in a transaction. Should another server
have taken the id meanwhile, the commit is refused and everything begins anew. So two servers never give one number, or
one version, to two schemas, and no server needs to know of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from hailbus._transport import Admin, Bus, Consumer, Producer, TopicPartition, TransportBrokenError
from hailbus.errors import DeliveryError, HailbusError, ProducerFencedError
from hailbus.event import Topic

from hailbus_registry.state import Decision, RefusedError, RegistryState

__all__ = ["SCHEMAS_TOPIC", "SchemaLog"]

log = logging.getLogger("hailbus.registry.server")
AnswerT = TypeVar("AnswerT")

SCHEMAS_TOPIC = "_schemas"
CLIENT_ID = "hailbus-registry"


class SchemaLog:
    """A registry's state, kept in a compacted topic of one partition.

    Args:
        bus: The cluster.
        state: Empty; filled from the topic.
        topic: Its name.
        timeout_s: How long one write, with all its attempts, may take.
    """

    def __init__(self, bus: Bus, state: RegistryState, *, topic: str = SCHEMAS_TOPIC, timeout_s: float = 30.0) -> None:
        self.state = state
        self._bus = bus
        self._place = TopicPartition(topic, 0)
        self._timeout_s = timeout_s
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._position = 0
        self._own_end = -1
        """Where the topic ended when this server last held the id."""
        self._moved = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make the topic if it is missing, and read it to its end.

        Raises:
            BrokerUnreachableError: No broker answered within the bus's connect timeout.
        """
        topic = Topic(self._place.topic, partitions=1, cleanup_policy="compact", description="Schema registry.")
        admin = self._bus.admin(client_id=f"{CLIENT_ID}-admin")
        await admin.start()
        self._admin = admin
        await admin.create([topic])
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="hailbus-registry-read")
        await self._catch_up()

    async def stop(self) -> None:
        """Disconnect."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._let_go()
        await asyncio.gather(*self._leaving)
        if self._admin is not None:
            await self._admin.stop()

    async def catch_up(self) -> None:
        """Wait until the state has all that the topic has now.

        Raises:
            RefusedError: 50001 or 50002, the cluster does not answer.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._catch_up()
        except TimeoutError as error:
            raise RefusedError(50002, f"The store did not answer within {self._timeout_s:g} s") from error
        except (HailbusError, OSError) as error:
            raise RefusedError(50001, f"The store failed: {error}") from error

    async def write(self, decide: Callable[[RegistryState], Decision[AnswerT]]) -> AnswerT:
        """Decide on the newest state, append what follows from it, and answer when it is in the log.

        Raises:
            RefusedError: As `decide` does; 50001 or 50002, the cluster does not take it. Then it may have been written:
                all requests can be repeated.
        """
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                while True:
                    try:
                        return await self._write_once(decide)
                    except ProducerFencedError:
                        log.info("writer_fenced: another server has written to %s", self._place.topic)
                        self._let_go()
                    except DeliveryError as error:
                        log.warning("write_failed: %s", error)
                        self._let_go()
                        await asyncio.sleep(0.1)
        except TimeoutError as error:
            self._let_go()
            message = f"The store did not take the change within {self._timeout_s:g} s; it may have been written"
            raise RefusedError(50002, message) from error
        except (HailbusError, OSError) as error:
            self._let_go()
            raise RefusedError(50001, f"The store failed: {error}") from error

    async def _write_once(self, decide: Callable[[RegistryState], Decision[AnswerT]]) -> AnswerT:
        await self._catch_up()
        if self._position != self._own_end:
            self._let_go()  # another server has written, so it has the id now
        if self._producer is None:
            producer = self._bus.producer(client_id=CLIENT_ID, transactional_id=f"{self._place.topic}-writer")
            await producer.start()
            self._producer = producer
            await self._catch_up()  # what the one before has finished in the meantime
        decision = decide(self.state)
        if decision.records:
            await self._producer.begin()
            await self._producer.send(*self._place, [(key, value, []) for key, value in decision.records])
            await self._producer.commit()
            await self._catch_up()
        self._own_end = self._position
        return decision.answer

    def _let_go(self) -> None:
        """Give up the producer. Its end may wait for a cluster that is away, so no answer waits for it."""
        producer, self._producer = self._producer, None
        if producer is not None:
            leaving = asyncio.create_task(self._end(producer))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _end(self, producer: Producer) -> None:
        with contextlib.suppress(HailbusError, OSError, TimeoutError):
            await producer.stop()

    async def _catch_up(self) -> None:
        assert self._admin is not None
        end = (await self._admin.end_offsets([self._place.topic]))[self._place]
        async with self._moved:
            await self._moved.wait_for(lambda: self._position >= end)

    async def _read(self) -> None:
        """Read for ever; a consumer that breaks is replaced by one that goes on where it stopped."""
        while True:
            consumer = self._bus.consumer(
                client_id=f"{CLIENT_ID}-reader", group=None, topics=[self._place.topic], start="earliest"
            )
            try:
                await consumer.start()
                if self._position:
                    await consumer.seek({self._place: self._position})
                await self._poll(consumer)
            except (TransportBrokenError, HailbusError, OSError) as error:
                log.warning("reader_replaced: %s", error)
                await asyncio.sleep(0.5)
            finally:
                await consumer.stop()

    async def _poll(self, consumer: Consumer) -> None:
        while True:
            polled = await consumer.poll(timeout_s=0.2, max_records=1_000)
            for records in polled.values():
                for record in records:
                    self.state.replay(record.key, record.value)
            # Past the markers of transactions too, which no poll hands out.
            position = (await consumer.positions()).get(self._place, self._position)
            if position > self._position:
                self._position = position
                async with self._moved:
                    self._moved.notify_all()
