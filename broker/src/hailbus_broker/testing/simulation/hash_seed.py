"""What a process needs before its first import of a client library, so that a seed gives one trace."""

from __future__ import annotations

import os
import sys
from typing import Final

_NEEDED: Final = {
    # Clients iterate over sets of strings.
    "PYTHONHASHSEED": "0",
    # aiokafka's C extensions ask the C library for the time. (Where it is imported already, a world replaces them.)
    "AIOKAFKA_NO_EXTENSIONS": "1",
}


def pin_hash_seed() -> None:
    """Replace this process by one with a fixed hash seed and without aiokafka's C extensions, unless it is one."""
    if any(os.environ.get(name) != value for name, value in _NEEDED.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **_NEEDED})  # noqa: S606 - this program again
