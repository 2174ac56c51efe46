"""Folders that one process of a test run fills, and that all of its processes read."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hailbus_devtools.mutation import MADE_VARIABLE

from tests.servers import FOLDER_VARIABLE


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of this name; the first test that asks fills it, in whichever process it runs.

    Args:
        name: The folder's name.
        make: Fills the empty folder. Tests must not change the folder afterwards; they take copies.
    """
    kept = os.environ.get(MADE_VARIABLE)
    root = Path(kept) if kept else Path(os.environ[FOLDER_VARIABLE], "made")
    root.mkdir(parents=True, exist_ok=True)
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that died
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
