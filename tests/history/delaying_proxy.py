"""A proxy that delays what it passes on. Each line of its input is the new delay in seconds; it ends with its input.

Run with the address to listen on and the one to connect to, `HOST:PORT` each; prints a line when it listens.
"""

import asyncio
import contextlib
import sys

CHUNK_BYTES = 1 << 16


class Proxy:
    """Connections from one address to another, slowed down as the input says."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.delay_s = 0.0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on both directions of a connection until one side ends it."""
        try:
            there_reader, there_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.transport.abort()  # refused, as by the node itself
            return
        ways = [
            asyncio.ensure_future(self.pass_on(reader, there_writer)),
            asyncio.ensure_future(self.pass_on(there_reader, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for one in (writer, there_writer):
            one.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()

    async def follow(self) -> None:
        """Change the delay as the input says, until it ends."""
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            self.delay_s = float(line)


async def main(listen: str, target: str) -> None:
    host, port = target.rsplit(":", 1)
    proxy = Proxy(host, int(port))
    listen_host, listen_port = listen.rsplit(":", 1)
    server = await asyncio.start_server(proxy.connected, listen_host, int(listen_port))
    print("listening", flush=True)
    await proxy.follow()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
