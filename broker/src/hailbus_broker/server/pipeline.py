"""The order of requests and answers on one connection: bytes in, requests to start and bytes out.

As in Apache Kafka, a connection has one request in work at a time. Only Produce requests begin while earlier ones wait
for the disk, because their appends happen in order anyway; not before an earlier one has made all of its appends. What
a client pipelines beyond that is kept, up to a bound, and then no longer read. Nothing here touches a socket or a loop:
`Connection` carries out what is decided here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from hailbus_broker.server.frame_reader import FrameReader

if TYPE_CHECKING:
    from hailbus_broker.server.request import Part

QUEUED_FRAMES: Final = 256
QUEUED_BYTES: Final = 8 * 1024 * 1024
PRODUCE: Final = 0


class Exchange(Protocol):
    """A request and its answer."""

    @property
    def api_key(self) -> int:
        """Of the request."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of the request."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the answer is there."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether parts of the answer lie in files."""
        ...

    @property
    def parts(self) -> list[Part]:
        """The answer."""
        ...


E = TypeVar("E", bound=Exchange)


class Answers(NamedTuple):
    """What can be sent now.

    Attributes:
        parts: Bytes, in order.
        from_files: An answer that comes after them and that holds slices of files; nothing follows before `files_sent`.
        request_bytes: Size of the requests that are answered with it.
    """

    parts: list[Any]
    from_files: Exchange | None
    request_bytes: int


class Pipeline(Generic[E]):
    """The requests of one connection.

    Args:
        shared: Filled while no frame has begun; see `FrameReader`.
        max_request_bytes: Largest request.

    Attributes:
        in_work: Requests that have been started and not been taken out by `take_answers`, in order.
        queued_bytes: Size of the requests that have arrived and were not started.
        is_paused: Whether the connection is not to be read.
        is_writable: Whether the client takes what is sent to it; nothing is started for one that does not.
        is_sending_files: Whether an answer is being sent from files.
        is_ending: Whether the client will send no more.
        is_beginning: Whether the request that was started last is still being begun: the next one must not overtake it.
    """

    __slots__ = (
        "_queue",
        "_reader",
        "_unanswered_count",
        "in_work",
        "is_beginning",
        "is_ending",
        "is_paused",
        "is_sending_files",
        "is_writable",
        "queued_bytes",
    )

    def __init__(self, shared: memoryview, *, max_request_bytes: int) -> None:
        self._reader: Final = FrameReader(shared, max_bytes=max_request_bytes)
        self._queue: Final[deque[memoryview]] = deque()
        self._unanswered_count = 0
        self.in_work: Final[deque[E]] = deque()
        self.queued_bytes = 0
        self.is_paused = False
        self.is_writable = True
        self.is_sending_files = False
        self.is_ending = False
        self.is_beginning = False

    # ------------------------------------------------------------------ requests

    @property
    def held_bytes(self) -> int:
        """Memory for a request that has arrived in part."""
        return self._reader.held_bytes

    def buffer(self) -> memoryview:
        """Where to read to."""
        return self._reader.buffer()

    def received(self, count: int) -> int:
        """So many bytes were read.

        Returns:
            Size of the requests that are whole now.

        Raises:
            ProtocolError: They are not requests.
        """
        frames = self._reader.received(count)
        size = sum(map(len, frames))
        self._queue.extend(frames)
        self.queued_bytes += size
        return size

    def next_frame(self) -> memoryview | None:
        """The request to start now, if there is one; give it to `started`."""
        queue = self._queue
        if not queue or not self.is_writable or self.is_sending_files or self.is_beginning:
            return None
        frame = queue[0]
        if self._unanswered_count and (
            len(self.in_work) >= QUEUED_FRAMES
            or self.in_work[-1].api_key != PRODUCE
            or len(frame) < 2
            or frame[0]
            or frame[1] != PRODUCE
        ):
            return None
        queue.popleft()
        self.queued_bytes -= len(frame)
        return frame

    def started(self, exchange: E) -> None:
        """A request is in work."""
        self.in_work.append(exchange)
        self._unanswered_count += 1

    def end(self) -> bool:
        """The client sends no more.

        Returns:
            Whether it is still owed answers.
        """
        self.is_ending = not self.is_idle
        return self.is_ending

    def flow(self, *, is_full: bool) -> bool:
        """Decide whether to read on.

        Args:
            is_full: Whether this client has queued too much, or the process has no memory for more requests.

        Returns:
            Whether `is_paused` has changed.
        """
        if is_full == self.is_paused or (self.is_paused and self._queue):
            return False
        self.is_paused = is_full
        return True

    @property
    def has_queued_too_much(self) -> bool:
        """Whether the client has pipelined as much as is kept."""
        return len(self._queue) > QUEUED_FRAMES or self.queued_bytes > QUEUED_BYTES

    # ------------------------------------------------------------------ answers

    def answered(self) -> None:
        """A request has its answer."""
        self._unanswered_count -= 1

    @property
    def has_answers(self) -> bool:
        """Whether the next answer in order is there."""
        in_work = self.in_work
        return bool(in_work) and in_work[0].is_done and not self.is_sending_files

    def take_answers(self) -> Answers:
        """All answers that are next in order."""
        in_work, request_bytes = self.in_work, 0
        parts: list[Any] = []  # a transport's `writelines` wants no slices of files, and there are none
        while in_work and in_work[0].is_done:
            exchange = in_work.popleft()
            request_bytes += exchange.size_bytes
            if exchange.has_files:
                self.is_sending_files = True
                return Answers(parts, exchange, request_bytes)
            parts += exchange.parts
        return Answers(parts, None, request_bytes)

    def files_sent(self) -> None:
        """The answer that came from files is sent."""
        self.is_sending_files = False

    @property
    def has_requests(self) -> bool:
        """Whether requests wait to be started."""
        return bool(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is owed to the client."""
        return not self.in_work and not self._queue and not self.is_sending_files

    def clear(self) -> tuple[int, list[E]]:
        """The connection is lost.

        Returns:
            Size of the requests that it held, and those that are in work.
        """
        size = self.queued_bytes + sum(exchange.size_bytes for exchange in self.in_work)
        self._queue.clear()
        self.queued_bytes = 0
        return size, list(self.in_work)
