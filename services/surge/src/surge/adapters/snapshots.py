"""Snapshots of what the forecasts have learnt, as files in the worker's folder.

The two newest stay: the newest may be of a moment that the state of the city has not reached when a process dies in
between. A file that cannot be used is reported and passed over; the forecasts are then learnt from an older one or
from the kept slots alone.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray

from surge.domain.forecast import MODEL
from surge.domain.numbers import Arrays

log = structlog.get_logger("surge")

KEPT: Final = 2


class Snapshots:
    """The snapshots of one history.

    Args:
        folder: Where the files are; it exists.
        history: What the city's rows say which history they are of: a snapshot of another one is passed over.
        calendar: The name of the calendar by which the forecasts learn; the same holds for it.
    """

    def __init__(self, folder: Path, *, history: str, calendar: str) -> None:
        self._folder = folder
        self._named = f"{MODEL} {history} {calendar}"

    def write(self, next_slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep what was learnt from the slots before `next_slot`.

        Raises:
            OSError: The file cannot be written.
        """
        path = self._path(next_slot)
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            np.savez(file, allow_pickle=False, history=np.array(self._named), **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for old in self._slots()[:-KEPT]:
            self._path(old).unlink()

    def read(self, *, until_slot: int, since_slot: int | None) -> tuple[int, Arrays] | None:
        """Return the newest usable snapshot, preceded by the first slot that it has not learnt; None if there is none.

        Args:
            until_slot: The state of the city has not closed this slot.
            since_slot: The oldest slot whose row is kept, if rows were dropped: between a snapshot and that one slots
                would be missing.
        """
        for slot in reversed(self._slots()):
            if slot > until_slot or (since_slot is not None and slot < since_slot):
                continue
            try:
                with self._path(slot).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                    arrays = {str(name): file[name] for name in file.files}
            except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
                log.warning("snapshot_unreadable", file=str(self._path(slot)), reason=str(error))
                continue
            named = str(arrays.pop("history", ""))
            if named == self._named:
                return slot, arrays
            log.warning("snapshot_of_another_history", file=str(self._path(slot)), found=named, wanted=self._named)
        return None

    def _path(self, slot: int) -> Path:
        return self._folder / f"forecasts-{slot}.npz"

    def _slots(self) -> list[int]:
        """For each file the first slot that it has not learnt, oldest first."""
        names = (path.stem.removeprefix("forecasts-") for path in self._folder.glob("forecasts-*.npz"))
        return sorted(int(name) for name in names if name.isdigit())
