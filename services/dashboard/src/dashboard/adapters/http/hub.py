"""Pushes messages to every open page: one encoding for all, and a bound for each."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from pydantic_core import to_json

Json = dict[str, Any]  # Any: JSON
_WAITING: Final = 40
_PAGES: Final = 200


class TooManyPagesError(Exception):
    """No more pages can be served."""


class Hub:
    """Server-sent events for open pages, at most 200. A page that reads too slowly gets the whole state again.

    Args:
        whole: Gives the state for a page that begins.
    """

    def __init__(self, whole: Callable[[], Json]) -> None:
        self._whole = whole
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._is_closed = False

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return len(self._pages)

    def push(self, message: Json) -> None:
        """Send what changed to every page."""
        if not self._pages:
            return
        frame = _frame("delta", message)
        for page in self._pages:
            if page.full():
                while not page.empty():
                    page.get_nowait()
                page.put_nowait(_frame("whole", self._whole()))
            else:
                page.put_nowait(frame)

    def begin_anew(self) -> None:
        """Send the whole state to every page."""
        if self._pages:
            frame = _frame("whole", self._whole())
            for page in self._pages:
                while not page.empty():
                    page.get_nowait()
                page.put_nowait(frame)

    def close(self) -> None:
        """End every page's stream; they come back by themselves."""
        self._is_closed = True
        for page in self._pages:
            while page.full():
                page.get_nowait()
            page.put_nowait(None)

    def stream(self) -> AsyncIterator[bytes]:
        """Return a page's stream: the whole state, then every change.

        Raises:
            TooManyPagesError: 200 pages are open.
        """
        if len(self._pages) >= _PAGES:
            raise TooManyPagesError(f"{_PAGES} pages are open; close one")
        return self._stream()

    async def _stream(self) -> AsyncIterator[bytes]:
        page: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        self._pages.add(page)
        try:
            yield b"retry: 1000\n\n" + _frame("whole", self._whole())
            while not self._is_closed:
                frame = await page.get()
                if frame is None:
                    return
                yield frame
        finally:
            self._pages.discard(page)


def _frame(event: str, message: Json) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + to_json(message) + b"\n\n"


__all__ = ["Hub", "TooManyPagesError"]
