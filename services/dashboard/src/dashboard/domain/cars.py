"""Free cars on the map."""

from typing import Final

from ride_events.geo import LatLng

_SHOWN: Final = 5_000
_FEW: Final = 1_000
_EVERY_MS: Final = 1_000
_EVERY_MS_OF_MANY: Final = 4_000


class Cars:
    """Where free cars are: at most 5,000 of them, each by a small number. `changed` is what to send next."""

    def __init__(self) -> None:
        self.places: dict[int, LatLng] = {}
        self.changed: set[int] = set()
        self._numbers: dict[str, int] = {}
        self._read_ms: dict[str, int] = {}
        self._next = 0

    def is_due(self, driver_id: str, written_ms: int) -> bool:
        """Return whether a position is worth reading: one a second of a car, one in four where cars are many."""
        every_ms = _EVERY_MS if len(self.places) <= _FEW else _EVERY_MS_OF_MANY
        if written_ms - self._read_ms.get(driver_id, 0) < every_ms:
            return False
        self._read_ms[driver_id] = written_ms
        return True

    def at(self, driver_id: str, place: LatLng) -> None:
        """Put a free car at a place."""
        number = self._numbers.get(driver_id)
        if number is None:
            if len(self._numbers) >= _SHOWN:
                return
            number = self._numbers[driver_id] = self._next
            self._next += 1
        self.places[number] = place
        self.changed.add(number)

    def gone(self, driver_id: str) -> None:
        """Take a car away: it is busy or offline."""
        number = self._numbers.pop(driver_id, None)
        self._read_ms.pop(driver_id, None)
        if number is not None:
            del self.places[number]
            self.changed.add(number)


__all__ = ["Cars"]
