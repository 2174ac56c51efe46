"""The system calls of a broker, as strace saw them: what it did to its data directory and said over its sockets.

strace watches the boundary itself, whatever made the call: the interpreter, uvloop's event loop, a thread. A shim
before libc would see what goes through libc only, and a ptrace client of our own would be a second strace.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.integration.broker.process import command

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACED: Final = (
    # what is modelled
    "open,openat,creat,close,dup,dup2,dup3,read,recvfrom,recvmsg,write,writev,pwrite64,sendto,sendmsg,sendfile,"
    "accept,accept4,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,"
    # what would need a place in the model, if it ever touched the data directory
    "truncate,fallocate,pwritev,pwritev2,sync,syncfs,sync_file_range,link,linkat,symlink,symlinkat,copy_file_range,"
    "splice,io_uring_enter"
)
UNMODELLED: Final = frozenset(
    (
        *("truncate", "fallocate", "pwritev", "pwritev2", "sync", "syncfs", "sync_file_range", "link", "linkat"),
        *("symlink", "symlinkat", "copy_file_range", "splice", "creat", "io_uring_enter", "dup2", "dup3"),
    )
)

_LINE: Final = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
_RESULT: Final = re.compile(r"(.*)\) += (-?\d+|\?)(?: .*)?")
_STRING: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One system call that has returned.

    Attributes:
        thread: That made it.
        name: Of the call.
        arguments: As strace writes them, strings as they are in hexadecimal.
        result: What it returned.
        begun: When it was entered: a number that grows along the trace.
        ended: When it had returned.
    """

    thread: int
    name: str
    arguments: str
    result: int
    begun: int
    ended: int

    def strings(self) -> list[bytes]:
        """All string arguments."""
        found = []
        for text, more in _STRING.findall(self.arguments):
            assert not more, f"strace has cut a string of {self.name}"
            found.append(bytes.fromhex(text.replace("\\x", "")))
        return found

    def number(self, position: int) -> int:
        """A numeric argument before any string; AT_FDCWD is -1."""
        text = self.arguments.split(",")[position].strip()
        return -1 if text == "AT_FDCWD" else int(text)

    def last_number(self) -> int:
        """The last argument, a number."""
        return int(self.arguments.rsplit(",", 1)[-1])


def parse(path: Path) -> Iterator[Call]:
    """The calls of a trace, in the order in which they returned."""
    begun: dict[int, tuple[int, str, str]] = {}
    with path.open() as lines:
        for number, line in enumerate(lines):
            found = _LINE.match(line)
            if found is None:
                continue  # a signal, the end of a thread
            thread, resumed, name, rest = int(found[1]), found[2], found[3], found[4]
            if rest.endswith("<unfinished ...>"):
                begun[thread] = number, name, rest.removesuffix("<unfinished ...>").rstrip()
                continue
            entered = number
            if resumed:
                entered, name, first = begun.pop(thread)
                rest = first + rest
            ended = _RESULT.match(rest)
            if ended is None or ended[2] == "?" or int(ended[2]) < 0:
                continue  # the process ended within it, or it failed
            yield Call(thread=thread, name=name, arguments=ended[1], result=int(ended[2]), begun=entered, ended=number)


@dataclass(kw_only=True)
class TracedBroker:
    """A broker under strace."""

    bootstrap: str
    process_id: int
    tracer: subprocess.Popen[str]
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text()

    def end(self, number: signal.Signals) -> None:
        """SIGTERM lets it stop in order, SIGKILL does not."""
        os.kill(self.process_id, number)
        self.tracer.wait(60)


@contextlib.contextmanager
def traced_broker(directory: Path, trace: Path, settings: dict[str, str], *, source: str) -> Iterator[TracedBroker]:
    """Run a broker under strace; the block ends it.

    Args:
        directory: Its data directory.
        trace: Where strace writes to.
        settings: Options by Kafka's names.
        source: The program that serves.
    """
    log_path = trace.with_suffix(".log")
    tracer = ["strace", "-f", "--seccomp-bpf", "-qqq", "-xx", "-s", "100000000", "-e", "signal=none"]
    with (
        log_path.open("ab") as errors,
        subprocess.Popen(
            [*tracer, "-o", str(trace), "-e", f"trace={TRACED}", *command(directory, settings, source=source)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # libuv may register sockets by io_uring, which shows no call for each
            env={**os.environ, "UV_USE_IO_URING": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"bootstrap=(\S+)\n", line)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        try:
            assert found, log_path.read_text()
            yield TracedBroker(bootstrap=found[1], process_id=int(children[0]), tracer=process, log_path=log_path)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(int(children[0]), signal.SIGKILL)
                process.wait(30)
