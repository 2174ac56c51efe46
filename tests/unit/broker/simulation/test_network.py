"""The simulated network: TCP over links that are slow, cut, or lead to a machine without power."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hailbus_broker.testing.simulation import EscapedError, LinkQuality, World

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def serve(handle: Handler, *, port: int = 80) -> None:
    server = await asyncio.start_server(handle, port=port)
    await server.serve_forever()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def start_echo(world: World, name: str = "server") -> None:
    world.process(name).start(serve(echo))
    await world.sleep(0.1)


async def connect(world: World, port: int = 80) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server until the world ends."""
    reader, writer = await asyncio.open_connection("server", port)
    vars(world).setdefault("opened", []).append(writer)
    return reader, writer


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: bytes) -> bytes:
    writer.write(question)
    return await reader.readexactly(len(question))


def test_bytes_arrive_once_and_in_order_whatever_the_seed() -> None:
    async def main(world: World) -> None:
        rng = world.rng("test")
        await start_echo(world)
        reader, writer = await connect(world)
        sent = rng.randbytes(1_000_000)

        async def send() -> None:
            position = 0
            while position < len(sent):
                size = rng.choice([1, 10, 1_000, 100_000])
                writer.write(sent[position : position + size])
                position += size
                await writer.drain()
                if rng.random() < 0.1:
                    await world.sleep(rng.random() / 100)
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read() == sent
        await sending
        writer.close()
        await writer.wait_closed()

    for seed in range(5):
        quality = LinkQuality(split_probability=0.3, spike_probability=0.1)
        World(seed, quality=quality).run(main)


def test_a_buffered_protocol_and_pauses_lose_nothing() -> None:
    class Receiver(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.received = bytearray()
            self.buffer = bytearray(1_000)
            self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.received += self.buffer[:nbytes]
            if random.random() < 0.05:
                self.transport.pause_reading()
                asyncio.get_running_loop().call_later(random.random(), self.transport.resume_reading)

        def eof_received(self) -> bool:
            return False

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(None)

    async def main(world: World) -> None:
        sent = world.rng("test").randbytes(2_000_000)
        receiver = Receiver()
        await asyncio.get_running_loop().create_server(lambda: receiver, "main", 80)
        transport, protocol = await asyncio.get_running_loop().create_connection(Sender, "main", 80)
        assert isinstance(protocol, Sender)
        for start in range(0, len(sent), 100_000):
            await protocol.may_write.wait()
            transport.write(sent[start : start + 100_000])
        assert transport.get_write_buffer_size() > 0
        transport.close()
        await receiver.lost
        assert receiver.received == sent
        assert protocol.pause_count > 0

    class Sender(asyncio.Protocol):
        def __init__(self) -> None:
            self.may_write = asyncio.Event()
            self.may_write.set()
            self.pause_count = 0

        def pause_writing(self) -> None:
            self.pause_count += 1
            self.may_write.clear()

        def resume_writing(self) -> None:
            self.may_write.set()

    World(3).run(main)


def test_addresses_and_the_stand_in_for_the_socket() -> None:
    async def main(world: World) -> None:
        server = world.process("server")
        seen: list[tuple[str, int]] = []

        async def handle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(writer.get_extra_info("peername"))
            writer.close()

        async def listen() -> tuple[str, int]:
            listener = await asyncio.start_server(handle, "server", 0)
            address: tuple[str, int] = listener.sockets[0].getsockname()
            return address

        host, port = await server.start(listen())
        assert host == "server"
        reader, writer = await connect(world, port)
        assert await reader.read() == b""
        assert writer.get_extra_info("peername") == (server.host.address, port)
        assert seen == [writer.get_extra_info("sockname")]
        stub = writer.get_extra_info("socket")
        stub.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(EscapedError, match=r"socket\.send would leave the simulation"):
            stub.send(b"x")
        with pytest.raises(socket.gaierror, match=r"there is no host 'kafka\.example'"):
            await asyncio.open_connection("kafka.example", 9092)

    World(1).run(main)


def test_nobody_listens() -> None:
    async def main(world: World) -> None:
        world.process("server")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", 80)
        await asyncio.start_server(echo, "main", 80)
        with pytest.raises(OSError, match="port 80 of main is in use"):
            await asyncio.start_server(echo, "main", 80)
        with pytest.raises(OSError, match="server is not an address of main"):
            await asyncio.start_server(echo, "server", 81)

    World(1).run(main)


def test_a_cut_delays_and_a_heal_delivers() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        reader, writer = await connect(world)
        assert await ask(reader, writer, b"before") == b"before"
        world.network.cut("main", "server")
        question = asyncio.create_task(ask(reader, writer, b"during"))
        await world.sleep(30)
        assert not question.done()
        world.network.heal("main", "server")
        assert await question == b"during"
        assert await ask(reader, writer, b"after") == b"after"

    for seed in range(10):
        World(seed).run(main)


def test_what_is_on_its_way_when_the_link_is_cut_arrives_after_the_heal() -> None:
    async def main(world: World) -> None:
        world.network.change("main", "server", min_delay_s=1, max_delay_s=1, spike_probability=0)
        await start_echo(world)
        reader, writer = await connect(world)
        writer.write(b"one")
        await world.sleep(0.5)
        world.network.cut("main", "server")
        writer.write(b"two")
        await world.sleep(5)
        world.network.heal("main", "server")
        assert await reader.readexactly(6) == b"onetwo"

    World(1).run(main)


def test_a_cut_in_one_direction_stops_answers_only() -> None:
    async def main(world: World) -> None:
        heard: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                heard.append(data)
                writer.write(data)

        world.process("server").start(serve(handle))
        await world.sleep(0.1)
        reader, writer = await connect(world)
        world.network.cut("server", "main", is_one_way=True)
        writer.write(b"question")
        answer = asyncio.create_task(reader.read(100))
        await world.sleep(10)
        assert heard == [b"question"]
        assert not answer.done()
        world.network.heal("server", "main", is_one_way=True)
        assert await answer == b"question"

    World(1).run(main)


def test_without_acknowledgements_the_window_fills() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        _, writer = await connect(world)
        world.network.cut("server", "main", is_one_way=True)
        writer.write(bytes(1_000_000))
        await world.sleep(10)
        left = writer.transport.get_write_buffer_size()
        assert left > 500_000
        world.network.heal("server", "main", is_one_way=True)
        await world.sleep(60)
        assert writer.transport.get_write_buffer_size() < left

    World(1).run(main)


@pytest.mark.parametrize("is_one_way", [False, True])
def test_a_sender_gives_up_after_a_long_cut(is_one_way: bool) -> None:
    async def main(world: World) -> float:
        await start_echo(world)
        reader, writer = await connect(world)
        world.network.cut("server", "main", is_one_way=is_one_way)
        writer.write(b"lost")
        with pytest.raises(TimeoutError, match="Connection timed out"):
            await reader.read()
        return world.loop.time()

    assert 900 < World(1).run(main) < 1_000


def test_a_connection_attempt_over_a_cut_link_succeeds_later_or_times_out() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        world.network.cut("main", "server")
        attempt = asyncio.create_task(connect(world))
        await world.sleep(20)
        world.network.heal("main", "server")
        reader, writer = await attempt
        assert await ask(reader, writer, b"late") == b"late"
        world.network.cut("server", "main", is_one_way=True)
        began_s = world.loop.time()
        with pytest.raises(TimeoutError, match="server:80 does not answer"):
            await asyncio.open_connection("server", 80)
        assert world.loop.time() - began_s == pytest.approx(127)

    World(1).run(main)


def test_a_reset_reaches_both_ends() -> None:
    async def main(world: World) -> None:
        ends: list[str] = []

        async def handle(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            except ConnectionResetError:
                ends.append("server")

        world.process("server").start(serve(handle))
        await world.sleep(0.1)
        reader, writer = await connect(world)
        writer.write(b"x")
        await world.sleep(1)
        world.network.reset("main", "server")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await world.sleep(1)
        assert ends == ["server"]

    World(1).run(main)


def test_a_connection_that_is_reset_before_it_is_accepted_begins_before_it_ends() -> None:
    calls: list[str] = []

    class Recording(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            calls.append("made")

        def data_received(self, data: bytes) -> None:
            calls.append(data.decode())

        def connection_lost(self, exc: Exception | None) -> None:
            calls.append(type(exc).__name__)

    async def listen() -> None:
        await (await asyncio.get_running_loop().create_server(Recording, port=80)).serve_forever()

    async def main(world: World) -> None:
        server = world.process("server")
        server.start(listen())
        await world.sleep(0.1)
        server.pause()
        _, writer = await connect(world)
        writer.write(b"data")
        await world.sleep(1)
        world.network.reset("main", "server")
        server.resume()
        await world.sleep(1)

    World(1).run(main)
    assert calls == ["made", "data", "ConnectionResetError"]


def test_the_peer_of_a_killed_process_sees_the_end_at_once() -> None:
    async def main(world: World) -> float:
        await start_echo(world)
        server = world.host("server").processes[0]
        reader, _ = await connect(world)
        server.kill()
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", 80)
        return world.loop.time()

    assert World(1).run(main) < 1


def test_unread_bytes_turn_the_end_of_a_killed_process_into_a_reset() -> None:
    async def main(world: World) -> None:
        async def idle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one of asyncio.Transport
            await world.sleep(3600)

        server = world.process("server")
        server.start(serve(idle))
        await world.sleep(0.1)
        reader, writer = await connect(world)
        await world.sleep(0.1)
        writer.write(b"never read")
        await world.sleep(1)
        server.kill()
        with pytest.raises(ConnectionResetError):
            await reader.read()

    World(1).run(main)


def test_a_power_cut_leaves_connections_half_open_until_something_answers() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        server = world.host("server")
        reader, writer = await connect(world)
        assert await ask(reader, writer, b"alive") == b"alive"
        world.network.power_off(server)
        waiting = asyncio.create_task(reader.read())
        await world.sleep(600)
        assert not waiting.done()
        await start_echo(world)  # boots, and another life of the server listens
        await world.sleep(600)
        assert not waiting.done()  # nobody has sent anything over the old connection
        writer.write(b"are you there?")
        with pytest.raises(ConnectionResetError):
            await waiting
        assert world.notes["reset of a half-open connection"] == 1

    World(1).run(main)


def test_a_write_to_a_machine_without_power_is_answered_after_its_boot() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        reader, writer = await connect(world)
        world.network.power_off(world.host("server"))
        writer.write(b"hello?")
        await world.sleep(20)
        world.network.boot(world.host("server"))
        with pytest.raises(ConnectionResetError):
            await reader.read()

    World(1).run(main)


def test_a_slow_link_takes_its_time() -> None:
    async def main(world: World) -> float:
        await start_echo(world)
        world.network.change("main", "server", is_one_way=True, bytes_per_second=10_000)
        reader, writer = await connect(world)
        began_s = world.loop.time()
        await ask(reader, writer, bytes(100_000))
        return world.loop.time() - began_s

    assert 10 <= World(1).run(main) < 11


def test_a_paused_process_accepts_connections_and_answers_later() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        server = world.host("server").processes[0]
        server.pause()
        reader, writer = await connect(world)
        answer = asyncio.create_task(ask(reader, writer, b"later"))
        await world.sleep(10)
        assert not answer.done()
        server.resume()
        assert await answer == b"later"

    World(1).run(main)


def test_what_was_written_before_a_close_arrives() -> None:
    async def main(world: World) -> None:
        async def handle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(1_000_000))
            writer.close()
            await writer.wait_closed()

        world.process("server").start(serve(handle))
        await world.sleep(0.1)
        reader, _ = await connect(world)
        assert len(await reader.read()) == 1_000_000

    World(1).run(main)


def test_writing_to_a_connection_that_was_reset_fails() -> None:
    class Client(asyncio.Protocol):
        def __init__(self) -> None:
            self.lost: list[Exception | None] = []

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.append(exc)

    async def main(world: World) -> None:
        await start_echo(world)
        transport, client = await asyncio.get_running_loop().create_connection(Client, "server", 80)
        assert isinstance(client, Client)
        transport.pause_reading()
        world.network.reset("main", "server")
        await world.sleep(1)
        assert client.lost == []
        transport.write(b"x")
        await world.sleep(1)
        assert [type(error) for error in client.lost] == [ConnectionResetError]
        transport.write(b"ignored")
        transport.close()

    World(1).run(main)


def test_a_cancelled_attempt_leaves_nothing_open() -> None:
    async def main(world: World) -> None:
        ended = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionResetError):
                await reader.read()
            ended.set()

        world.process("server").start(serve(handle))
        await world.sleep(0.1)
        world.network.change("main", "server", min_delay_s=1, max_delay_s=1, spike_probability=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.open_connection("server", 80)
        await ended.wait()
        assert len(world.main.transports) == 0

    World(1).run(main)


def test_bytes_of_a_dead_process_are_late_until_they_have_arrived() -> None:
    async def main(world: World) -> None:
        got = bytearray()

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.extend(await reader.read())
            writer.close()

        async def send() -> None:
            _, writer = await asyncio.open_connection("server", 80)
            await asyncio.sleep(1.0)
            writer.write(b"late")
            await asyncio.sleep(60.0)

        world.process("server").start(serve(keep))
        await world.sleep(0.1)
        client = world.process("client")
        client.start(send())
        await world.sleep(0.5)
        world.network.cut("client", "server")
        await world.sleep(1.0)
        are_late = [world.network.has_late_bytes]
        client.kill()
        are_late.append(world.network.has_late_bytes)
        world.network.heal("client", "server")
        await world.sleep(60.0)
        are_late.append(world.network.has_late_bytes)
        assert are_late == [False, True, False]  # while the client lives it knows what it has sent
        assert got == b"late"

    World(3).run(main)


def test_a_message_that_is_held_back_arrives_after_others_even_if_its_sender_has_given_it_up() -> None:
    async def main(world: World) -> None:
        got: list[bytes] = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                got.append(data)
            writer.close()

        async def send() -> None:
            _, first = await asyncio.open_connection("server", 80)
            for data in (b"one", b"two", b"three"):
                first.write(data)
                await asyncio.sleep(1.0)
            first.close()
            _, second = await asyncio.open_connection("server", 80)
            second.write(b"two")
            await asyncio.sleep(60.0)

        world.process("server").start(serve(keep))
        await world.sleep(0.1)
        world.network.hold_back("client", "server", lambda data: data == b"two")
        world.process("client").start(send())
        await world.sleep(10.0)
        before = [*got], world.network.has_late_bytes
        world.network.release("client", "server")
        await world.sleep(1.0)
        assert before == ([b"one", b"two"], True)
        assert (b"".join(got), world.network.has_late_bytes) == (b"onetwotwothree", False)
        assert world.notes["message held back"] == 1

    World(1).run(main)


def test_a_cut_link_keeps_what_is_held_back_and_the_end_of_all_faults_lets_it_pass() -> None:
    async def main(world: World) -> None:
        await start_echo(world)
        reader, writer = await connect(world)
        world.network.hold_back("main", "server", lambda data: data == b"late")
        asking = asyncio.ensure_future(ask(reader, writer, b"late"))
        await world.sleep(1.0)
        world.network.cut("main", "server")
        world.network.heal("main", "server")
        await world.sleep(10.0)
        assert not asking.done()
        world.network.heal_all()
        assert await asking == b"late"
        assert await ask(reader, writer, b"late") == b"late"

    World(2).run(main)
