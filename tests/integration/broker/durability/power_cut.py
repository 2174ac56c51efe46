"""Power cuts after every recorded call: the broker starts on what is left, and every promise is looked up."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.integration.broker.durability.account import Bookkeeper
from tests.integration.broker.durability.machine import Machine, syncs_everything
from tests.integration.broker.durability.recovery import View, broken_promises, start_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.broker.durability.machine import State
    from tests.integration.broker.durability.workload import Recording

ENOUGH: Final = 3
"""After so many broken promises the rest is not looked for."""


@dataclass(slots=True)
class Outcome:
    """How many cuts were made, and what they broke."""

    cut_count: int = 0
    start_count: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Starts:
    """Starts the broker on states, once on each."""

    directory: Path
    settings: dict[str, str]
    known: dict[bytes, View] = field(default_factory=dict)
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def view(self, state: State) -> View:
        digest = hashlib.blake2b(repr(sorted(state.items())).encode()).digest()
        if digest not in self.known:
            self.known[digest] = self.runner.run(start_on(state, self.directory, self.settings))
        return self.known[digest]


def cut_after_every_call(
    recording: Recording,
    directory: Path,
    settings: dict[str, str],
    *,
    is_synced: Callable[[str, str], bool] = syncs_everything,
    seed: int = 1,
    every_arrived: int = 7,
) -> Outcome:
    """Cut the power after each call that changes or syncs something, and after each answer.

    On what is durable for certain the broker is started after every one of them (once per state: most calls change
    nothing that is durable). On what may have arrived besides, chosen by the seed, after every few; and on all that
    was written, which is what a killed process leaves.

    Args:
        recording: What happened.
        directory: For locks of the brokers that are started; the data is in memory.
        settings: Of the broker.
        is_synced: Of a sync, by call and path: whether it does anything. A test takes some away.
        seed: For what may have arrived.
        every_arrived: Of so many cuts one is made with what may have arrived, and one with all that was written.
    """
    rng = random.Random(seed)
    machine = Machine(str(recording.directory), is_synced=is_synced)
    books = Bookkeeper()
    outcome = Outcome()
    starts = _Starts(directory, settings)
    view: View | None = None
    version = -1

    def check(view: View, what: str) -> None:
        outcome.broken += [
            f"cut {outcome.cut_count}, {what}: {broken}" for broken in broken_promises(books.account, view)
        ]

    with starts.runner:
        for life, calls in enumerate(recording.lives):
            books.forget_connections()
            for event in machine.replay(calls):
                if event.kind in {"received", "sent"}:
                    if not books.note(event):
                        continue
                elif event.kind not in {"change", "synced"}:
                    continue
                outcome.cut_count += 1
                where = f"life {life}, after {event.call.name} {event.path}"
                if view is None or version != machine.durable_version:
                    view, version = starts.view(machine.durable()), machine.durable_version
                    check(view, f"{where}, synced data")
                elif event.kind == "sent":
                    check(view, f"{where}, synced data")
                if outcome.cut_count % every_arrived == 0:
                    check(starts.view(machine.arrived(rng)), f"{where}, partly arrived data")
                    check(starts.view(machine.written()), f"{where}, all data")
                if len(outcome.broken) >= ENOUGH:
                    break
            if len(outcome.broken) >= ENOUGH:
                break
    outcome.start_count = len(starts.known)
    return outcome
