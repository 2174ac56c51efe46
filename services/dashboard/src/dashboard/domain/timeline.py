"""The raw records of the last rides, so that a click shows what was on the wire."""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

_RIDES: Final = 2_500
_QUOTES: Final = 2_500
_RECORDS_PER_RIDE: Final = 60
_TOLD: Final = {"quotes.v1": 0, "rides.v1": 1}


class Record(Protocol):
    """A record as it was read."""

    @property
    def topic(self) -> str:
        """Topic."""
        ...

    @property
    def partition(self) -> int:
        """Partition."""
        ...

    @property
    def offset(self) -> int:
        """Offset."""
        ...

    @property
    def timestamp(self) -> int:
        """When it was written, milliseconds since the epoch."""
        ...

    @property
    def key(self) -> bytes | None:
        """Raw key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Raw value."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Raw headers."""
        ...


def _event_ms(record: Record) -> float:
    """Return when the event happened by its `ce_time`, when it was written if that is missing or no time."""
    written = dict(record.headers).get("ce_time", b"")
    try:
        return datetime.fromisoformat(written.decode()).timestamp() * 1000
    except ValueError:  # a wrong encoding is one too
        return record.timestamp


class Timelines:
    """Records by ride: of the last 2,500 rides, with the quote that each began with; at most 60 per ride."""

    def __init__(self) -> None:
        self._rides: OrderedDict[str, list[Record]] = OrderedDict()
        self._quotes: OrderedDict[str, list[Record]] = OrderedDict()
        self._ride_of_quote: OrderedDict[str, str] = OrderedDict()

    def of_quote(self, quote_id: str, record: Record) -> None:
        """Keep a record of a quote, with its ride if that is known."""
        ride_id = self._ride_of_quote.get(quote_id)
        if ride_id is not None:
            self.of_ride(ride_id, record)
            return
        self._quotes.setdefault(quote_id, []).append(record)
        if len(self._quotes) > _QUOTES:
            self._quotes.popitem(last=False)

    def begin(self, ride_id: str, quote_id: str) -> None:
        """Note which quote a ride came of."""
        self._ride_of_quote[quote_id] = ride_id
        if len(self._ride_of_quote) > _RIDES:
            self._ride_of_quote.popitem(last=False)
        for record in self._quotes.pop(quote_id, ()):
            self.of_ride(ride_id, record)

    def of_ride(self, ride_id: str, record: Record) -> None:
        """Keep a record of a ride."""
        records = self._rides.get(ride_id)
        if records is None:
            records = self._rides[ride_id] = []
            if len(self._rides) > _RIDES:
                self._rides.popitem(last=False)
        if len(records) < _RECORDS_PER_RIDE:
            records.append(record)

    def get(self, ride_id: str) -> list[Record]:
        """Return the records of a ride by the time of their events, at the same time as booking tells them.

        Topics are read side by side, so neither the order of arrival nor the time of writing, which several records
        share, says what came first. Empty when the ride is not kept.
        """
        return sorted(
            self._rides.get(ride_id, ()),
            key=lambda record: (_event_ms(record), _TOLD.get(record.topic, len(_TOLD)), record.offset),
        )

    def latest(self) -> str | None:
        """Return the ride that was met last."""
        return next(reversed(self._rides), None)


__all__ = ["Record", "Timelines"]
