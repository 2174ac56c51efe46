"""What an event loop of a simulation refuses: everything that needs a file descriptor, a signal or a subprocess."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from hailbus_broker.testing.simulation.errors import EscapedError


def _escape(what: str) -> NoReturn:
    raise EscapedError(f"loop.{what} would leave the simulation; it has timers, tasks, threads and TCP streams only")


class ClosedLoop(asyncio.AbstractEventLoop):
    """Raises `EscapedError` for each way out of the simulation."""

    async def getnameinfo(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("getnameinfo")

    async def start_tls(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("start_tls")

    async def sendfile(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sendfile")

    async def sock_sendfile(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_sendfile")

    async def sock_recv(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_recv")

    async def sock_recv_into(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_recv_into")

    async def sock_recvfrom(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_recvfrom")

    async def sock_recvfrom_into(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_recvfrom_into")

    async def sock_sendall(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_sendall")

    async def sock_sendto(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_sendto")

    async def sock_connect(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_connect")

    async def sock_accept(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("sock_accept")

    async def create_unix_connection(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("create_unix_connection")

    async def create_unix_server(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("create_unix_server")

    async def connect_accepted_socket(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("connect_accepted_socket")

    async def create_datagram_endpoint(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("create_datagram_endpoint")

    async def connect_read_pipe(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("connect_read_pipe")

    async def connect_write_pipe(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("connect_write_pipe")

    async def subprocess_shell(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("subprocess_shell")

    async def subprocess_exec(self, *_args: Any, **_options: Any) -> Any:
        """Refuse."""
        _escape("subprocess_exec")

    def add_reader(self, *_args: Any, **_options: Any) -> None:  # type: ignore[override]  # takes anything
        """Refuse."""
        _escape("add_reader")

    def remove_reader(self, *_args: Any, **_options: Any) -> bool:
        """Refuse."""
        _escape("remove_reader")

    def add_writer(self, *_args: Any, **_options: Any) -> None:  # type: ignore[override]  # takes anything
        """Refuse."""
        _escape("add_writer")

    def remove_writer(self, *_args: Any, **_options: Any) -> bool:
        """Refuse."""
        _escape("remove_writer")

    def add_signal_handler(self, *_args: Any, **_options: Any) -> None:  # type: ignore[override]  # takes anything
        """Refuse."""
        _escape("add_signal_handler")

    def remove_signal_handler(self, *_args: Any, **_options: Any) -> bool:
        """Refuse."""
        _escape("remove_signal_handler")
