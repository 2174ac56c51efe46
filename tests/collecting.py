"""In a fresh clone one process of a test run compiles the tests, and the others load what it has compiled."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


def is_compiled(folder: Path = TESTS) -> bool:
    """Tell whether Python has kept what it compiled of each folder with tests."""
    return all((tests / "__pycache__").is_dir() for tests in {path.parent for path in folder.rglob("test_*.py")})


@contextlib.contextmanager
def first_alone(folder: Path) -> Iterator[None]:
    """Run the block alone in the first process that comes here, then in all others side by side.

    Args:
        folder: Shared by these processes, and by them alone.
    """
    done = folder / "collected"
    with (folder / "collected.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield
        else:
            try:
                yield
            finally:
                done.touch()


def collecting(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a process of the run collects the tests.

    All processes import the same files in the same order. Where nothing is compiled yet, each of them would compile
    every file: 15 s of CPU time for each process.
    """
    if sys.dont_write_bytecode or is_compiled():
        return contextlib.nullcontext()
    return first_alone(folder)
