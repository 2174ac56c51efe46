"""Large answers go from files to the socket without a copy: whole, in order, bounded, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.fetch_request import FetchRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.disk import RealDisk, RealFile
from hailbus_broker.server.handlers import fetch
from hailbus_broker.testing.broker import UnsyncedDisk

from tests.integration.broker.wire import Wire, led, server_on, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hailbus_broker.server.listener import Server

VALUE_BYTES = 100_000
SEGMENT_BYTES = 1_500_000


@pytest.fixture(params=["in the loop", "by a thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files are never copied; they are in the page cache, or have to be read from the disk first."""
    monkeypatch.setattr(fetch, "COPIED_BYTES", 0)
    is_cached = request.param == "in the loop"
    monkeypatch.setattr(RealFile, "is_cached", lambda _file, _position, _length: is_cached)
    return str(request.param)


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_in_loop(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test)

    return run_in_loop


async def fill(server: Server, wire: Wire, topic: str, count: int) -> list[bytes]:
    """Records that lie in files only; the first ones in closed segments."""
    await wire.create(topic)
    values = [bytes([number % 251]) * VALUE_BYTES for number in range(count)]
    for number, value in enumerate(values):
        assert await wire.produce(topic, [value]) == (ErrorCode.NONE, number)
    led(server.node, topic).log._state.forget_tail()
    return values


async def read_all(wire: Wire, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        code, values = await wire.fetch(topic, len(found))
        assert code == ErrorCode.NONE
        assert values
        found += values
    return found


def is_sending(server: Server) -> bool:
    assert server.dispatcher is not None
    return any(connection._file_send is not None for connection in server.dispatcher.connections)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.005)


@pytest.mark.usefixtures("way")
def test_what_is_sent_is_what_was_produced(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        settings = {"log.segment.bytes": str(SEGMENT_BYTES)}
        async with server_on(UnsyncedDisk(), str(tmp_path), **settings) as server:
            wire = await Wire.to(server.bootstrap)
            values = await fill(server, wire, "files", 40)
            assert await read_all(wire, "files", 40) == values
            # a limit cuts the slice, and what follows it in the answer still fits
            code, found = await wire.fetch("files", 3, partition_max_bytes=350_000)
            assert (code, found) == (ErrorCode.NONE, values[3 : 3 + len(found)])
            assert 1 <= len(found) <= 3
            wire.close()

    run(test())


@pytest.mark.usefixtures("way")
def test_answers_keep_their_order_around_a_file(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
            wire = await Wire.to(server.bootstrap)
            first = await fill(server, wire, "first", 30)
            second = await fill(server, wire, "second", 30)
            await wire.create("small")
            await wire.produce("small", [b"from the cache"])
            request = wire.fetch_request([("first", 0, 0), ("small", 0, 0), ("second", 0, 0)])
            for _ in range(3):
                wire.send(ApiKey.METADATA, 8, MetadataRequest(topics=[]))
                wire.send(ApiKey.FETCH, 11, request)
            for _ in range(3):
                assert (await wire.receive(ApiKey.METADATA, 8)).brokers
                answer = await wire.receive(ApiKey.FETCH, 11)
                found = [values_of(topic.partitions[0].records) for topic in answer.responses]
                assert found == [first, [b"from the cache"], second]
            wire.close()

    run(test())


class SlowClient:
    """Asks, and reads when it is told to; its system buffers little, so that the broker cannot send all at once."""

    def __init__(self, bootstrap: str, request: FetchRequest) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.socket.connect((host, int(port)))
        wire = Wire(None, self)  # type: ignore[arg-type]  # only `write` is used
        wire.send(ApiKey.FETCH, 11, request)

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_all(self) -> bytes:
        (size,) = struct.unpack(">i", self.read(4))
        return self.read(size)

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, f"closed after {len(data)} of {size} bytes"
            data += part
        return bytes(data)


@pytest.mark.usefixtures("way")
def test_a_slow_client_gets_all_of_a_segment_that_is_deleted_meanwhile(
    run: Callable[..., None], tmp_path: Path
) -> None:
    async def test() -> None:
        settings = {"log.segment.bytes": str(8_000_000), "log.retention.bytes": "1"}
        async with server_on(UnsyncedDisk(), str(tmp_path), **settings) as server:
            wire = await Wire.to(server.bootstrap)
            values = await fill(server, wire, "old", 100)
            segment = tmp_path / "old-0" / "00000000000000000000.log"
            size = segment.stat().st_size
            assert size > 7_000_000
            client = SlowClient(server.bootstrap, wire.fetch_request([("old", 0, 0)]))
            await until(lambda: is_sending(server), "the answer is on its way")
            server.node.catch_up()
            await until(lambda: not segment.exists(), "the segment is deleted")
            assert is_sending(server)
            assert server.dispatcher is not None
            for _ in range(2):
                server.dispatcher.close_idle_connections()  # the client is slow, not gone
            wire.close()
            wire = await Wire.to(server.bootstrap)
            # others are served meanwhile, and the same records are gone for them
            assert (await wire.fetch("old", 0))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
            answer = await asyncio.to_thread(client.read_all)
            found = values_of(answer[-size:])
            assert found == values[: len(found)]
            assert len(found) == size // (VALUE_BYTES + 70)
            await until(lambda: not is_sending(server), "the answer is sent")
            client.socket.close()
            wire.close()

    run(test())


@pytest.mark.usefixtures("way")
def test_a_client_that_goes_away_leaves_nothing_behind(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
            wire = await Wire.to(server.bootstrap)
            await fill(server, wire, "files", 100)
            await read_all(wire, "files", 100)
            dispatcher = server.dispatcher
            assert dispatcher is not None
            before, connections = count_descriptors(), len(dispatcher.connections)
            for _ in range(3):
                client = SlowClient(server.bootstrap, wire.fetch_request([("files", 0, 0)]))
                await until(lambda: is_sending(server), "the answer is on its way")
                client.socket.close()
                await until(lambda: not is_sending(server), "the send has ended")
            await until(lambda: len(dispatcher.connections) == connections, "the connections are gone")
            await until(lambda: count_descriptors() == before, "no descriptor is left")
            assert dispatcher.bytes_in_work == 0
            assert len(await read_all(wire, "files", 100)) == 100
            wire.close()

    run(test())


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_only_what_the_page_cache_has_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_000))
    file = RealDisk().open(str(path))
    file.sync()
    assert file.is_cached(1000, 2_500_000)
    assert bytes(file.read_cached(1000, 2_500_000) or b"") == path.read_bytes()[1000:2_501_000]
    assert is_missed(file, lambda: not file.is_cached(1000, 2_500_000))
    assert is_missed(file, lambda: file.read_cached(1000, 2_500_000) is None)


def is_missed(file: RealFile, misses: Callable[[], bool]) -> bool:
    """Whether a read misses after the page cache has dropped the file.

    A miss makes newer kernels read ahead, so each attempt begins with an eviction of its own. A process that
    is preempted during the read may find the bytes after all, so there are several attempts.
    """
    for _ in range(20):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if misses():
            return True
    return False
