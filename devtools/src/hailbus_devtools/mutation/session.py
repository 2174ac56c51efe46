"""The mutants of one run with their results, kept in cosmic-ray's database, and the report about them."""

import hashlib
import json
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Self

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

from hailbus_devtools.check import ROOT
from hailbus_devtools.mutation.generate import Change, Mutant, describe, generate, mutate, sample
from hailbus_devtools.mutation.targets import Target
from hailbus_devtools.mutation.workshop import Verdict

FOLDER = ROOT / ".hailbus" / "mutation"
BAR = 0.9
_UNTESTED = "no test executes this statement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a reader needs to repeat a run.

    Attributes:
        target: The package.
        seed: What chose the mutants.
        commits: Of every start: a run that is continued may have begun with other tests.
        date: Of the last start with a new commit.
        generated: How many mutants there are to choose from.
    """

    target: str
    seed: int
    commits: list[str]
    date: str
    generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One tried mutant.

    Attributes:
        mutant: The change.
        caught: A test noticed it.
        by: The test that failed, or why the run counts as failed.
        change: The change as text, for survivors only.
        equivalent: The reviewed reason why no test can notice it, or None.
    """

    mutant: Mutant
    caught: bool
    by: str
    change: Change | None
    equivalent: str | None


class Session:
    """The chosen mutants of one target, one seed and one state of its modules."""

    def __init__(self, path: Path, header: Header) -> None:
        self.header = header
        self.path = path
        self._db = WorkDB(path, WorkDB.Mode.create)

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the database."""
        self._db.close()

    @classmethod
    def open(cls, target: Target, sources: dict[str, str], *, seed: int, count: int) -> Self:
        """Open the session of these sources, or choose its mutants if there is none."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        state = json.dumps([sources, count], sort_keys=True).encode()
        path = FOLDER / f"{target.name}-{seed}-{hashlib.sha256(state).hexdigest()[:10]}.sqlite"
        about = path.with_suffix(".json")
        commit, date = _commit(), datetime.now(UTC).strftime("%Y-%m-%d")  # noqa: TID251 a report is dated by the clock
        if about.exists():
            header = Header(**json.loads(about.read_text()))
            if commit not in header.commits:
                header = replace(header, commits=[*header.commits, commit], date=date)
                about.write_text(json.dumps(asdict(header)))
            return cls(path, header)
        found = [mutant for file, source in sources.items() for mutant in generate(file, source)]
        header = Header(
            target=target.name,
            seed=seed,
            commits=[commit],
            date=date,
            generated=len(found),
        )
        path.unlink(missing_ok=True)
        session = cls(path, header)
        session._db.add_work_items(
            WorkItem.single(
                mutant.id,
                MutationSpec(
                    module_path=mutant.path,
                    operator_name=mutant.operator,
                    occurrence=mutant.occurrence,
                    start_pos=mutant.start,
                    end_pos=mutant.end,
                ),
            )
            for mutant in choose(found, sources, seed=seed, count=count)
        )
        about.write_text(json.dumps(asdict(header)))
        return session

    def pending(self) -> list[Mutant]:
        """Return the mutants without a result, mixed, so that those tried before a stop are a sample of all."""
        waiting = [_mutant(item) for item in self._db.pending_work_items]
        return sorted(waiting, key=lambda mutant: hashlib.sha256(f"{self.header.seed}:{mutant.id}".encode()).digest())

    def keep(self, mutant: Mutant, verdict: Verdict, change: Change) -> None:
        """Store the verdict about one mutant."""
        first = verdict.by or (f"survived {verdict.tests} tests" if verdict.tests else _UNTESTED)
        self._db.set_result(
            mutant.id,
            WorkResult(
                worker_outcome=WorkerOutcome.NORMAL,
                output=f"{first}\n{verdict.output}",
                test_outcome=TestOutcome.KILLED if verdict.caught else TestOutcome.SURVIVED,
                diff=change.diff,
            ),
        )

    def results(self, sources: dict[str, str], reasons: dict[tuple[str, str, str, str], str]) -> list[Result]:
        """Return what was tried so far, in the order of the sources."""
        found = []
        for item, outcome in self._db.completed_work_items:
            mutant = _mutant(item)
            change = reason = None
            if not outcome.is_killed:
                source = sources[mutant.path]
                changed = mutate(mutant, source)
                assert changed is not None, f"{mutant.id} was chosen although it changes nothing"
                change = describe(mutant, source, changed)
                reason = reasons.get((mutant.path, change.where, change.removed, change.added))
            found.append(
                Result(
                    mutant=mutant,
                    caught=outcome.is_killed,
                    by=(outcome.output or "").split("\n", 1)[0],
                    change=change,
                    equivalent=reason,
                )
            )
        return sorted(found, key=lambda result: (result.mutant.path, result.mutant.start, result.mutant.id))


def choose(found: Sequence[Mutant], sources: dict[str, str], *, seed: int, count: int) -> list[Mutant]:
    """Sample mutants, leaving out what does not compile or equals a mutant that was chosen before."""
    chosen: list[Mutant] = []
    seen: set[str] = set()
    for mutant in sample(found, seed=seed, count=len(found)):
        if len(chosen) == count:
            break
        changed = mutate(mutant, sources[mutant.path])
        if changed is not None and changed not in seen:
            seen.add(changed)
            chosen.append(mutant)
    return chosen


def reviewed() -> dict[tuple[str, str, str, str], str]:
    """Return the reason of each reviewed equivalent mutant by file, place, removed and added lines."""
    text = resources.files("hailbus_devtools.mutation").joinpath("equivalent.toml").read_text()
    return {
        (entry["file"], entry["where"], entry["removed"].strip(), added.strip()): entry["reason"]
        for entry in tomllib.loads(text).get("mutant", [])
        for added in entry["added"]
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The counts of one run."""

    tried: int
    caught: int
    timed_out: int
    equivalent: int
    untested: int

    @property
    def rate(self) -> float:
        """The caught share of the mutants that a test could catch."""
        return self.caught / max(1, self.tried - self.equivalent)


def score(results: Iterable[Result]) -> Score:
    """Count results."""
    results = list(results)
    return Score(
        tried=len(results),
        caught=sum(result.caught for result in results),
        timed_out=sum(result.by == "time-out" for result in results),
        equivalent=sum(result.equivalent is not None for result in results),
        untested=sum(result.by == _UNTESTED for result in results),
    )


def report(header: Header, results: Sequence[Result], *, chosen: int) -> str:
    """Return the report of one run as Markdown: one line of counts, then the survivors."""
    found = score(results)
    survived = found.tried - found.caught - found.equivalent
    run = f"{header.date}, commit {', '.join(header.commits)}, seed {header.seed}"
    counts = (
        f"{run}: {found.caught} of {found.tried} mutants caught ({found.timed_out} by time-out), "
        f"{found.equivalent} equivalent, {survived} survived ({found.untested} of them in statements that no test "
        f"executes): {found.rate:.1%} of the mutants that can be caught. "
        f"{chosen - found.tried} of {chosen} chosen mutants were not tried; {header.generated} were generated."
    )
    lines = [f"# Mutation testing: {header.target}", "", counts]
    for result in results:
        if result.change is None or result.equivalent is not None:
            continue
        lines += ["", f"## {result.mutant.id}", "", f"`uv run mutate --only '{result.mutant.id}'`: {result.by}", ""]
        lines += ["```diff", result.change.diff, "```"]
    return "\n".join(lines) + "\n"


def _mutant(item: WorkItem) -> Mutant:
    (spec,) = item.mutations
    return Mutant(
        path=str(spec.module_path),
        operator=spec.operator_name,
        occurrence=spec.occurrence,
        start=spec.start_pos,
        end=spec.end_pos,
    )


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
