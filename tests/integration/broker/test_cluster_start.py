"""When a new cluster is said to serve: only when each of its nodes names all of them to clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cli.cluster import until_it_names
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.metadata_response import MetadataResponse, MetadataResponseBroker
from hailbus_broker.protocol.framing import LENGTH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

VERSION = 12


@contextlib.asynccontextmanager
async def node(counts: Sequence[int]) -> AsyncIterator[tuple[str, list[int]]]:
    """Run a node that names `counts[n]` brokers in its nth answer, and then ends."""
    answered: list[int] = []
    has_ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # who asks has seen enough
            for count in counts:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                request = await reader.readexactly(size)
                brokers = [MetadataResponseBroker(node_id=one, host="localhost", port=1) for one in range(count)]
                out = bytearray(request[4:8])  # the correlation id
                out.append(0)
                codec.encode(MetadataResponse(brokers=brokers), VERSION, out)
                writer.write(LENGTH.pack(len(out)) + out)
                answered.append(count)
        server.close()
        writer.close()
        await writer.wait_closed()
        has_ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", answered
    await has_ended.wait()


async def test_a_node_that_has_not_heard_of_the_last_broker_is_asked_again() -> None:
    async with node([2, 2, 3]) as (address, answered), asyncio.timeout(30):
        await until_it_names(address, 3, lambda: True)
        assert answered == [2, 2, 3]


async def test_a_node_that_ends_meanwhile_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async with node([2]) as (address, _), asyncio.timeout(30):
        await until_it_names(address, 3, lambda: True)
        assert f"the node at {address} does not answer: " in capsys.readouterr().err


async def test_nobody_waits_for_a_broker_that_has_ended() -> None:
    async with node([2, 2, 2]) as (address, answered), asyncio.timeout(30):
        await until_it_names(address, 3, lambda: len(answered) < 2)
        assert answered == [2, 2]
