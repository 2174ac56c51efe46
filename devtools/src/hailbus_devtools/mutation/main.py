"""The command `mutate`."""

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from hailbus_devtools.check import ROOT
from hailbus_devtools.mutation.generate import Mutant, describe, generate, mutate
from hailbus_devtools.mutation.session import BAR, Session, report, reviewed, score
from hailbus_devtools.mutation.targets import TARGETS, Target
from hailbus_devtools.mutation.workshop import Verdict, Workshop, WorkshopError

_CONTROL_EVERY = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Mutate the deciding modules of the chosen packages; exit with 1 if too few mutants are caught."""
    parser = argparse.ArgumentParser(
        prog="mutate",
        description="Change the code that decides, one place at a time, and see whether a test fails. "
        "Start an interrupted run again with the same seed to resume it.",
    )
    parser.add_argument("path", nargs="?", help="a package, or a file or folder with modules of one (default: all)")
    parser.add_argument("--seed", type=int, help="chooses the mutants (default: a new one, which is printed)")
    parser.add_argument("--count", type=int, default=300, help="mutants per package (default: %(default)s)")
    parser.add_argument("-n", "--workers", type=int, default=1, help="copies that run side by side")
    parser.add_argument("--again", action="store_true", help="try the survivors of this seed again, first")
    parser.add_argument("--only", metavar="MUTANT", help="try one mutant, by the name that a report gives")
    parser.add_argument("--list", action="store_true", help="list the packages and their modules")
    options = parser.parse_args(arguments)
    if options.list:
        for target in TARGETS:
            print(target.name, *(f"  {file}" for file in target.files), sep="\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the copies are removed on the way out
    try:
        if options.only:
            sys.exit(0 if _try_one(options.only) else 1)
        seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
        targets = _narrowed(options.path)
        if not targets:
            parser.error(f"no package mutates {options.path}; see `mutate --list`")
        print(f"mutate: seed {seed}", flush=True)
        rates = [
            _run(target, seed=seed, count=options.count, workers=options.workers, again=options.again)
            for target in targets
        ]
    except WorkshopError as error:
        sys.exit(f"mutate: {error}")
    sys.exit(0 if min(rates) >= BAR else 1)


def _narrowed(path: str | None) -> list[Target]:
    """Return the targets with those of their modules that lie at or below `path`."""
    if path is None:
        return list(TARGETS)
    named = [target for target in TARGETS if target.name == path]
    if named:
        return named
    wanted = Path(path).resolve()
    found = []
    for target in TARGETS:
        files = tuple(file for file in target.files if (ROOT / file).is_relative_to(wanted))
        if files:
            found.append(Target(name=target.name, files=files, tests=target.tests, deselected=target.deselected))
    return found


def _run(target: Target, *, seed: int, count: int, workers: int, again: bool) -> float:
    sources = {file: (ROOT / file).read_text() for file in target.files}
    with Session.open(target, sources, seed=seed, count=count) as session:
        pending = session.pending()
        if again:
            tried = session.results(sources, reviewed())
            pending = [result.mutant for result in tried if not result.caught and result.equivalent is None] + pending
        unreliable = _try_all(target, session, sources, pending, workers=workers) if pending else []
        results = session.results(sources, reviewed())
        found = score(results)
        text = report(session.header, results, chosen=found.tried + len(session.pending()))
        stored = session.path.with_suffix(".md")
        stored.write_text(text)
    print(text, flush=True)
    print(f"mutate: {target.name}: {found.rate:.1%}, report in {stored.relative_to(ROOT)}", flush=True)
    if unreliable:
        raise WorkshopError("tests that judge mutants failed without one:\n" + "\n".join(unreliable))
    return found.rate


def _try_all(
    target: Target, session: Session, sources: dict[str, str], pending: Sequence[Mutant], *, workers: int
) -> list[str]:
    """Try mutants and keep the verdicts; return what failed without a mutant."""
    with ExitStack() as stack:
        print(f"mutate: {target.name}: {len(pending)} mutants; the tests run once without one", flush=True)
        first = stack.enter_context(Workshop(target))
        recording = first.record()
        for result in session.results(sources, reviewed()):
            recording.note(result.mutant.path, result.by)
        for file in target.files:
            first.plant(file)
        print(f"mutate: {target.name}: {len(recording.seconds)} tests notice a mutant planted in each module")
        idle = [first]
        for _ in range(1, workers):
            idle.append(stack.enter_context(Workshop(target)))
            idle[-1].record(recording)
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        running: dict[Future[Verdict], tuple[Workshop, Mutant, str]] = {}
        waiting = list(reversed(pending))
        done = 0
        unreliable: list[str] = []
        while waiting or running:
            while waiting and idle:
                mutant = waiting.pop()
                changed = mutate(mutant, sources[mutant.path])
                assert changed is not None, f"{mutant.id} was chosen although it changes nothing"
                workshop = idle.pop()
                future = pool.submit(workshop.judge, mutant.path, changed, mutant.start[0])
                running[future] = (workshop, mutant, changed)
            ready, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                workshop, mutant, changed = running.pop(future)
                verdict = future.result()
                done += 1
                idle.append(workshop)
                control = workshop.control(mutant.path, mutant.start[0]) if done % _CONTROL_EVERY == 0 else None
                if control is not None and control.caught:
                    # The verdict is not kept: the next run tries this mutant again.
                    unreliable.append(f"{control.by}\n{control.output}")
                    print(f"{done}/{len(pending)} UNRELIABLE: without {mutant.id}, too: {control.by}", flush=True)
                    continue
                session.keep(mutant, verdict, describe(mutant, sources[mutant.path], changed))
                word = "caught" if verdict.caught else "SURVIVED"
                print(f"{done}/{len(pending)} {word} {verdict.seconds:.1f} s {mutant.id} {verdict.by}", flush=True)
    return unreliable


def _try_one(name: str) -> bool:
    path = name.split(":", maxsplit=1)[0]
    target = next((target for target in TARGETS if path in target.files), None)
    if target is None:
        raise WorkshopError(f"no package mutates {path}; see `mutate --list`")
    source = (ROOT / path).read_text()
    mutant = next((mutant for mutant in generate(path, source) if mutant.id == name), None)
    changed = None if mutant is None else mutate(mutant, source)
    if mutant is None or changed is None:
        raise WorkshopError(f"{path} has no mutant {name}: it was changed since the report")
    print(describe(mutant, source, changed).diff, flush=True)
    with Workshop(
        Target(name=target.name, files=(path,), tests=target.tests, deselected=target.deselected)
    ) as workshop:
        workshop.record()
        workshop.plant(path)
        verdict = workshop.judge(path, changed, mutant.start[0])
    print(verdict.output)
    print(f"mutate: {'caught by ' + verdict.by if verdict.caught else 'survived'}")
    return verdict.caught
