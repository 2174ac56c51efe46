"""Ports on loopback: free ones, and whether one is taken."""

from __future__ import annotations

import errno
import os
import socket

from hailbus_demo.errors import UsageError

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Free ports are chosen here, below the range that systems take client ports from: while a server is down, a client
that tries again and again from that range would some day connect to itself and so take the server's port."""


def free_ports(count: int, *, host: str = HOST) -> list[int]:
    """Return ports that nobody listens on now. They are held open together so that all differ."""
    sockets: list[socket.socket] = []
    span = HIGHEST - LOWEST
    first = LOWEST + os.getpid() * 37 % span  # runs that start together look at different ports
    try:
        for step in range(span):
            if len(sockets) == count:
                break
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                probe.bind((host, LOWEST + (first - LOWEST + step) % span))
            except OSError:
                probe.close()
                continue
            sockets.append(probe)
        if len(sockets) < count:
            raise UsageError(f"no free ports between {LOWEST} and {HIGHEST}: end something that listens there")
        return [int(probe.getsockname()[1]) for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def free_block(count: int, *, host: str = HOST) -> int:
    """Return the first of so many ports in a row that nobody listens on now."""
    span = HIGHEST - LOWEST - count
    for step in range(0, span, count):
        first = LOWEST + (os.getpid() * 37 + step) % span
        if all(_is_free(port, host) for port in range(first, first + count)):
            return first
    raise UsageError(f"no {count} free ports in a row between {LOWEST} and {HIGHEST}: end something that listens there")


def _is_free(port: int, host: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def require_free(port: int, *, what: str, host: str = HOST) -> int:
    """Return the port if nobody listens on it.

    Raises:
        UsageError: It is taken, or may not be used.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} on {host} is taken: stop who listens there, or give {what} another port"
                ) from error
            raise UsageError(f"port {port} on {host} cannot be used ({error.strerror}): choose another") from error
    return port


def accepts(host: str, port: int, *, within_s: float = 0.5) -> bool:
    """Say whether somebody accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=within_s):
            return True
    except OSError:
        return False
