"""What requests may hold of the broker's memory: in proportion to what has arrived, and never more than the budget."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.server.frame_reader import FIRST_BYTES
from hailbus_broker.server.handlers.cluster import METADATA_CACHE_BYTES

from tests.integration.broker.wire import Wire, server_on, until

if TYPE_CHECKING:
    from pathlib import Path


async def test_announced_bytes_take_no_memory_and_those_that_arrive_take_the_budget(tmp_path: Path) -> None:
    budget = 20 * FIRST_BYTES
    async with server_on(RealDisk(), str(tmp_path), **{"queued.max.request.bytes": str(budget)}) as server:
        dispatcher = server.dispatcher
        assert dispatcher is not None
        wires = [await Wire.to(server.bootstrap) for _ in range(19)]
        for wire in wires:
            wire.writer.write(struct.pack(">i", 100_000_000) + b"x")
        await until(lambda: dispatcher.held_bytes == 19 * FIRST_BYTES, "all have begun a request")
        client = await Wire.to(server.bootstrap)
        assert await client.create("served") == ErrorCode.NONE
        # The one that sends most is given up when there is no room for the others.
        wires[7].writer.write(b"x" * 10 * FIRST_BYTES)
        with suppress(ConnectionResetError):  # what it sent has not been read
            await asyncio.wait_for(wires[7].reader.read(), 30)
        assert dispatcher.held_bytes == 18 * FIRST_BYTES
        assert await client.produce("served", [b"still"]) == (ErrorCode.NONE, 0)
        for wire in (*wires, client):
            wire.close()
        await until(lambda: dispatcher.held_bytes == 0, "what closed connections held is free")


async def test_requests_without_a_sound_header_take_nothing_from_the_budget(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        dispatcher = server.dispatcher
        assert dispatcher is not None
        for frame in (b"short", struct.pack(">hhih", 3, 9, 1, 100) + b"a client id that ends too early"):
            wire = await Wire.to(server.bootstrap)
            wire.writer.write((struct.pack(">i", len(frame)) + frame) * 3)
            with suppress(ConnectionResetError):
                await asyncio.wait_for(wire.reader.read(), 30)
            wire.close()
        await until(lambda: not dispatcher.connections, "the connections are gone")
        assert dispatcher.bytes_in_work == 0


async def test_a_request_that_arrives_in_part_is_finished_though_the_budget_is_used_up(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path), **{"queued.max.request.bytes": str(4 * FIRST_BYTES)}) as server:
        wires = [await Wire.to(server.bootstrap) for _ in range(3)]
        assert await wires[0].create("large") == ErrorCode.NONE
        for wire in wires:
            wire.send(*wire.produce_request("large", [b"v" * (FIRST_BYTES + FIRST_BYTES // 2)]))
        for wire in wires:
            assert (await wire.produced())[0] == ErrorCode.NONE
            wire.close()


async def test_the_answers_that_are_kept_are_bounded_in_bytes(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        dispatcher = server.dispatcher
        assert dispatcher is not None
        wire = await Wire.to(server.bootstrap)
        header = RequestHeader(request_api_key=3, request_api_version=8, correlation_id=7, client_id="c")
        question = codec.encode(
            MetadataRequest(topics=None), 8, codec.encode(header, header_versions(ApiKey.METADATA, 8)[0])
        )
        for size in (0, *[METADATA_CACHE_BYTES // 17 + number for number in range(20)], 2 * METADATA_CACHE_BYTES):
            # Bytes behind a request are nobody's business, so they make another question.
            frame = bytes(question) + bytes(size)
            wire.writer.write(struct.pack(">i", len(frame)) + frame)
            await asyncio.wait_for(wire.receive(ApiKey.METADATA, 8), 30)
        kept = [len(question[2]) + len(body) for question, body in dispatcher.metadata_cache.items()]
        assert len(kept) > 1
        assert sum(kept) == dispatcher.metadata_cache_bytes <= METADATA_CACHE_BYTES
        wire.close()
