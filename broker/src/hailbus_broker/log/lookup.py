"""Questions to a log that do not wait for the disk.

The log is synchronous, and its thread is that of the event loop. What a question has to read may be on the disk only.
A `Lookup` reads what is in memory, and takes note of the rest. A thread then reads that (`Lookup.take`, `Lookup.add`),
and the question is asked again, until it has an answer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from hailbus_broker.log.disk import Buffer, File

    Read: TypeAlias = Callable[[int, int], Buffer]
    Results: TypeAlias = dict[Hashable, Any]

T = TypeVar("T")


class DiskReadNeededError(Exception):
    """A question cannot be answered before a thread has read what it lacks."""


class Reads(Protocol):
    """How a question reads."""

    def read(self, file: File, position: int, length: int) -> Buffer:
        """The bytes of a file from a position."""
        ...

    def search(self, key: Hashable, file: File, search: Callable[[Read], T]) -> T:
        """The result of a search through a file, by a function that changes nothing."""
        ...

    def get(self, key: Hashable, work: Callable[[], T]) -> T:
        """The result of `work`, which waits for the disk; a key stands for the same result as long as one question."""
        ...


class WaitingReads:
    """Waits for the disk: for threads, for the start, and for what the caller knows to be in memory."""

    def read(self, file: File, position: int, length: int) -> Buffer:
        """See `Reads`."""
        return file.read(position, length)

    def search(self, key: Hashable, file: File, search: Callable[[Read], T]) -> T:
        """See `Reads`."""
        del key
        return search(file.read)

    def get(self, key: Hashable, work: Callable[[], T]) -> T:
        """See `Reads`."""
        del key
        return work()


WAITING: Final = WaitingReads()


class Lookup:
    """The reads of one question. Its memory is bounded by what the question reads."""

    __slots__ = ("_found", "_missing")

    def __init__(self) -> None:
        self._found: Final[dict[Hashable, Any]] = {}  # results of any type, or what was raised
        self._missing: Final[dict[Hashable, Callable[[], Any]]] = {}

    @property
    def is_incomplete(self) -> bool:
        """Whether something has to be read before the question is asked again."""
        return bool(self._missing)

    def read(self, file: File, position: int, length: int) -> Buffer:
        """The bytes of a file, if they are in memory.

        Raises:
            DiskReadNeededError: They are not; they are noted.
        """
        key = (file, position, length)
        if key not in self._found:
            data = file.read_cached(position, length)
            if data is not None:
                return data
        return self.get(key, lambda: file.read(position, length))

    def search(self, key: Hashable, file: File, search: Callable[[Read], T]) -> T:
        """The result of a search, if all that it reads is in memory.

        Raises:
            DiskReadNeededError: It is not; a thread makes the whole search then.
        """
        if key not in self._found:

            def read(position: int, length: int) -> Buffer:
                data = file.read_cached(position, length)
                if data is None:
                    raise DiskReadNeededError
                return data

            with suppress(DiskReadNeededError):
                return search(read)
        return self.get(key, lambda: search(file.read))

    def get(self, key: Hashable, work: Callable[[], T]) -> T:
        """The result of `work`, if a thread has called it.

        Raises:
            DiskReadNeededError: None has; the work is noted.
        """
        if key not in self._found:
            self._missing[key] = work
            raise DiskReadNeededError
        result = self._found[key]
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]  # what `work` gave, which has the key's type

    def take(self) -> Callable[[], Results]:
        """What is missing, as work for any thread; give its results to `add`, and ask again."""
        missing = dict(self._missing)
        self._missing.clear()

        def read_all() -> Results:
            results: Results = {}
            for key, work in missing.items():
                try:
                    results[key] = work()
                except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
                    results[key] = error
            return results

        return read_all

    def add(self, results: Results) -> None:
        """Answer the next question with what was read. What has failed is raised where it is asked for."""
        self._found.update(results)
