"""An answer that holds slices of files: they go from the page cache to the socket without passing through Python.

Data in the page cache is sent by the event loop's own thread, because that does not block. Data that must be read from
the disk first is sent by a thread of the loop's pool. Both stop when the socket is full, and continue when it has room.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from errno import ECANCELED, EIO
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.log import FileSlice

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from hailbus_broker.runtime.threads import Threads
    from hailbus_broker.server.request import Part

WINDOW_BYTES: Final = 1024 * 1024
"""So much is sent at once: it bounds how long one connection holds the loop up, and what is looked for in the cache."""

MORE: Final = getattr(socket, "MSG_MORE", 0)


class FileSend:
    """Sends one answer. The transport of the connection must be empty before, and is not written to until the end.

    Args:
        loop: Where it is driven.
        threads: Where the disk is waited for.
        connection: The socket, not blocking. Closed by `cancel`.
        parts: Bytes and slices of files.
        done: Called once, with what went wrong or None; not after `cancel`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        connection: socket.socket,
        parts: Sequence[Part | FileSlice],
        done: Callable[[OSError | None], None],
    ) -> None:
        self._loop: Final = loop
        self._threads: Final = threads
        self._socket: Final = connection
        self._parts: Final = deque(part if isinstance(part, FileSlice) else memoryview(part) for part in parts)
        self._done: Final = done
        self._is_cancelled = False
        self._is_in_thread = False
        self._is_waiting = False

    def cancel(self) -> None:
        """The connection is lost: send no more."""
        self._is_cancelled = True
        self._stop_waiting()
        if not self._is_in_thread:
            self._abandon()

    def go_on(self) -> None:
        """Send what the socket takes now."""
        self._stop_waiting()
        if self._is_cancelled:
            return
        if self._is_cold():
            self._is_in_thread = True
            self._threads.submit(self._send, self._sent)
            return
        try:
            is_full = self._send()
        except OSError as error:
            self._finish(error)
        else:
            self._next(is_full=is_full)

    def _sent(self, is_full: bool | None, error: BaseException | None) -> None:
        self._is_in_thread = False
        if self._is_cancelled:
            self._abandon()
        elif error is not None:
            self._finish(error if isinstance(error, OSError) else OSError(EIO, str(error)))
        else:
            self._next(is_full=bool(is_full))

    def _next(self, *, is_full: bool) -> None:
        if not self._parts:
            self._finish(None)
        elif is_full:
            self._is_waiting = True
            self._loop.add_writer(self._socket.fileno(), self.go_on)
        else:
            self._loop.call_soon(self.go_on)

    def _is_cold(self) -> bool:
        """Whether sending the next window would wait for the disk, as far as a few samples tell."""
        left = WINDOW_BYTES
        for part in self._parts:
            if isinstance(part, FileSlice) and not part.file.is_cached(part.position, min(part.length, left)):
                return True
            left -= part.length if isinstance(part, FileSlice) else len(part)
            if left <= 0:
                break
        return False

    def _send(self) -> bool:
        """Send up to a window; True when the socket takes no more. Also in a thread, where the disk may be waited for.

        Raises:
            OSError: The connection is lost, or the file cannot be read (EIO), or its end was cut off (ECANCELED).
        """
        parts, left = self._parts, WINDOW_BYTES
        try:
            while parts and left > 0:
                part = parts[0]
                if isinstance(part, FileSlice):
                    if part.is_cut:
                        raise OSError(ECANCELED, f"the log was truncated below what was to be sent: {part.file.path}")
                    count = min(part.length, left)
                    sent = os.sendfile(self._socket.fileno(), part.file.fileno(), part.position, count)
                    if part.is_cut:  # while a thread sent it: this may be the start of other batches
                        raise OSError(ECANCELED, f"the log was truncated below what was sent: {part.file.path}")
                    if not sent:
                        raise OSError(EIO, f"the file ends within what was to be sent from it: {part.file.path}")
                    rest: Any = FileSlice(part.file, part.position + sent, part.length - sent, part.cut)
                    is_sent = not rest.length
                else:
                    sent = self._socket.send(part, MORE if len(parts) > 1 else 0)
                    rest = part[sent:]
                    is_sent = not rest
                left -= sent
                if is_sent:
                    parts.popleft()
                else:
                    parts[0] = rest
        except (BlockingIOError, InterruptedError):
            return True
        return False

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._socket.fileno())

    def _finish(self, error: OSError | None) -> None:
        self._parts.clear()
        self._done(error)

    def _abandon(self) -> None:
        self._parts.clear()  # lets go of the files, which may be deleted ones
        self._socket.close()
