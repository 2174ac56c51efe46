"""The command `simulate`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hailbus_devtools.simulate.guest_counters import REQUIRED_OF_GUESTS
from hailbus_devtools.simulate.mutants import Mutant, read_mutants
from hailbus_devtools.tools import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hailbus_broker.testing.campaign import Scenario

REQUIRED: Final = (
    "broker restarted",
    "client killed",
    "cleaned files left",
    "cold read",
    "compaction cut",
    "compaction swap cut",
    "connection reset",
    "crash between PREPARE and its markers",
    "crash in an open transaction",
    "crash while starting",
    "cut",
    "EndTxn without a response",
    "failed sync",
    "fault: client pause",
    "fault: clock drift",
    "fault: clock jump",
    "fault: slow disk",
    "fault: slow link",
    "fault: stop in order",
    "flipped bit",
    "full disk",
    "group state cut",
    "lost directory entry",
    "lost page of a failed sync",
    "lost sector before others",
    "lost write",
    "metadata snapshot cut",
    "one-way cut",
    "producer snapshot cut",
    "rebalance during a transaction",
    "records deleted",
    "request without a response",
    "reset of a half-open connection",
    "swap files left",
    "swap for several segments cut",
    "topic deleted",
    "torn write",
    "transaction abandoned",
    "transaction aborted",
    "transaction committed",
    "transaction state cut",
    *REQUIRED_OF_GUESTS,
)
"""What a campaign has to reach, or it shows less than it says."""
REQUIRED_IN_A_CLUSTER: Final = (
    "active controller removed from the voters",
    "broker registered with a new disk",
    "client killed",
    "connection reset",
    "controller failover",
    "coordinator failover with an open transaction",
    "crash while starting",
    "cut",
    "disk of a fenced broker lost",
    "disk of an in-sync broker lost",
    "eligible leader elected",
    "eligible leaders kept",
    "failed sync",
    "fault of the active controller",
    "fault of the group coordinator",
    "fault of the transaction coordinator",
    "fault: clock drift",
    "fault: clock jump",
    "fault: client pause",
    "fault: contested election",
    "fault: late ISR proposal",
    "fault: node and client cut off",
    "fault: node cut off",
    "fault: node pause",
    "fault: nodes split",
    "fault: power cut of all",
    "fault: slow disk",
    "fault: slow nodes link",
    "fault: stop in order",
    "fenced leader writes on",
    "fetch from a follower",
    "follower in the reader's rack preferred",
    "full disk",
    "group coordinator failover",
    "ISR at its minimum",
    "ISR below its minimum",
    "ISR proposal arrives late",
    "lost write",
    "markers of a complete transaction judged",
    "message held back",
    "metadata snapshot fetched",
    "metadata truncated",
    "node restarted",
    "one-way cut",
    "partition leader changed",
    "reader of a follower that left the ISR returned to the leader",
    "reassignment begun",
    "reassignment completed",
    "replica of a lost disk in sync again",
    "replicas spread over racks",
    "transaction aborted",
    "transaction committed",
    "truncation",
    "unclean election",
    "voter added again",
    "voter removed",
)
"""What a campaign of three nodes or more has to reach."""
ENOUGH_NODES: Final = 3
ENOUGH_SEEDS: Final = 200
"""A campaign of so many seeds has to reach all of that."""
TWICE_EVERY: Final = 10
"""Every tenth seed is run twice, in two processes; without guests with different hash seeds."""
BLOCK: Final = 200
"""A campaign that is kept is saved after so many seeds."""
MUTANT_SEEDS: Final = 1_000
SPEED_RUNS: Final = 5
FIRST_SCENARIO: Final = "tests/integration/broker/simulation"


@dataclass(slots=True)
class Campaign:
    """What became of many seeds.

    Attributes:
        failures: The reports of seeds that found something.
        notes: How often what matters was reached.
        seed_count: Seeds that were run.
        simulated_s: Virtual time of all of them.
        differing: Seeds whose second run left another trace.
        node_count: Brokers in the world.
        first: The first seed.
        end: The seed that comes next.
        took_s: Time on the clock.
        commits: Seeds by the commit that ran them.
    """

    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    seed_count: int = 0
    simulated_s: float = 0.0
    differing: list[int] = field(default_factory=list)
    node_count: int = 1
    first: int = 0
    end: int = 0
    took_s: float = 0.0
    commits: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> Campaign:
        """Read a campaign that an earlier run has saved."""
        kept = json.loads(path.read_text())
        return cls(**{**kept, "notes": Counter(kept["notes"]), "commits": Counter(kept["commits"])})

    def keep(self, path: Path) -> None:
        """Write everything to a file, which is never half written."""
        kept = {one.name: getattr(self, one.name) for one in fields(self)}
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        unfinished.replace(path)

    def add(self, further: Campaign) -> None:
        """Add the seeds that follow."""
        self.failures += further.failures
        self.notes.update(further.notes)
        self.seed_count += further.seed_count
        self.simulated_s += further.simulated_s
        self.differing += further.differing
        self.end = further.end
        self.took_s += further.took_s
        self.commits.update(further.commits)

    @property
    def required(self) -> Sequence[str]:
        """What must be reached; nothing with few seeds, or in a world of two nodes."""
        if self.seed_count < ENOUGH_SEEDS or 1 < self.node_count < ENOUGH_NODES:
            return ()
        return REQUIRED if self.node_count == 1 else REQUIRED_IN_A_CLUSTER

    @property
    def missing(self) -> list[str]:
        """What was never reached although it should have been."""
        return [name for name in self.required if not self.notes[name]]

    @property
    def is_clean(self) -> bool:
        """Whether all is well."""
        return not (self.failures or self.missing or self.differing)


def reports(*arguments: str, hash_seed: int = 0) -> Iterator[dict[str, Any]]:
    """Run a worker, and yield its reports; a worker that dies yields one more, of the seed at which it did."""
    command = [sys.executable, "-m", "hailbus_devtools.simulate.worker", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "AIOKAFKA_NO_EXTENSIONS": "1"}
    last = None
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            for line in process.stdout:
                report = json.loads(line)
                if "begins" in report:
                    last = report["begins"]
                else:
                    yield report
        finally:
            process.kill() if process.poll() is None and sys.exc_info()[0] is not None else process.wait()
            reader.join()
    if process.returncode:
        yield {
            "seed": last,
            "problems": {"the worker ended": errors[-30:]},
            "notes": {},
            "digest": "",
            "is_after": True,
        }


def run_campaign(
    first: int,
    count: int,
    *,
    workers: int,
    twice: bool = True,
    nodes: int = 1,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Campaign:
    """Run seeds on several processes, some of them twice."""
    campaign = Campaign(node_count=nodes, first=first, end=first + count)
    began = time.monotonic()
    world = f"--nodes={nodes}"
    digests: dict[int, str] = {}
    lock = threading.Lock()

    def take(found: dict[str, Any]) -> None:
        with lock:
            campaign.seed_count += 1
            campaign.notes.update(found["notes"])
            campaign.simulated_s += found.get("simulated_s", 0.0)
            digests[found["seed"]] = found["digest"]
            if found["problems"]:
                campaign.failures.append(found)
            report(found)

    def work(number: int) -> None:
        for found in reports(f"--first={first + number}", f"--end={first + count}", f"--step={workers}", world):
            take(found)

    def work_again(number: int) -> list[tuple[int, str]]:
        step = TWICE_EVERY * workers
        seeds = (f"--first={first + number * TWICE_EVERY}", f"--end={first + count}", f"--step={step}")
        again = list(reports(*seeds, world, "--guests=without", hash_seed=4321))
        if nodes == 1:
            again += reports(*seeds, "--guests=with")  # client libraries iterate over sets of strings
        return [(found["seed"], found["digest"]) for found in again]

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
        for pairs in pool.map(work_again, range(workers)) if twice else ():
            campaign.differing += [seed for seed, digest in pairs if digests.get(seed) != digest]
    campaign.took_s = time.monotonic() - began
    campaign.commits[commit()] = campaign.seed_count
    return campaign


def hunt(mutant: Mutant, first: int, count: int) -> tuple[int, dict[str, Any] | None]:
    """Run seeds with a mutant until one finds it. Returns how many were run, and the report of the last."""
    number = 0
    seeds = (f"--first={first}", f"--end={first + count}", f"--nodes={mutant.nodes}")
    for number, found in enumerate(reports(*seeds, f"--mutant={mutant.name}", "--until-found"), start=1):
        if found["problems"]:
            return number, found
    return number, None


def commit() -> str:
    """Return the commit, with a plus if files have changed since."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _show(found: dict[str, Any], nodes: int) -> None:
    if not found["problems"]:
        return
    print(f"\nseed {found['seed']}:")
    for name, lines in found["problems"].items():
        print(f"  {name}")
        for line in lines:
            print(f"    {line}")
    cluster = f" --nodes {nodes}" if nodes > 1 else ""
    print(f"  replay: uv run just simulate{cluster} --seed {found['seed']} --seeds 1", flush=True)


def _hunt_all(mutants: Sequence[Mutant], first: int, count: int, workers: int, table: Path | None) -> bool:
    def one(mutant: Mutant) -> tuple[Mutant, int, dict[str, Any] | None]:
        number, found = hunt(mutant, first, count)
        kind = " (held out)" if mutant.is_held_out else ""
        if found is None:
            print(f"SURVIVED {number} seeds: {mutant.name}{kind}", flush=True)
        else:
            print(f"found by seed {found['seed']} as {', '.join(found['problems'])}: {mutant.name}{kind}", flush=True)
        return mutant, number, found

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(one, mutants))
    found_count = sum(found is not None for _, _, found in results)
    print(f"{found_count} of {len(mutants)} mutants found")
    if table is not None:
        write_table(table, first, results)
    return found_count == len(mutants)


def write_table(path: Path, first: int, results: Sequence[tuple[Mutant, int, dict[str, Any] | None]]) -> None:
    """Write how many seeds each mutant needed, as a table of Markdown."""
    lines = [
        f"Commit {commit()}, first seed {first}.",
        "",
        "| Mutant | Held out | Seeds | Found as |",
        "|---|---|---|---|",
    ]
    for mutant, number, found in results:
        held_out = "yes" if mutant.is_held_out else ""
        what = "**not found**" if found is None else ", ".join(found["problems"])
        lines.append(f"| {mutant.name} | {held_out} | {number} | {what} |")
    path.write_text("\n".join([*lines, ""]))


def source_of_test(scenario: Scenario, seed: int, problems: Iterable[str]) -> str:
    """Return the source of a test that runs a scenario.

    Args:
        scenario: What was left of the scenario that failed.
        seed: Which one that was.
        problems: What it violated.
    """
    from hailbus_broker.testing.campaign import has_guests

    expression = scenario.to_python()
    names = [name for name in ("Nodes", "PlannedClient", "PlannedFault") if f"{name}(" in expression] + ["Scenario"]
    further, found = "", "run_scenario(SCENARIO).problems"
    if has_guests(scenario):
        further, found = "from hailbus_devtools.simulate.guests.pinned import problems_of\n", "problems_of(SCENARIO)"
    else:
        names.append("run_scenario")
    return (
        f'"""Found by seed {seed} as {", ".join(problems)}."""\n\n'
        f"from hailbus_broker.testing.campaign import {', '.join(names)}\n{further}\n"
        f"SCENARIO = {expression}\n\n\n"
        f"def test_scenario_{seed}() -> None:\n    assert {found} == {{}}\n"
    )


def write_report(path: Path, campaign: Campaign) -> None:
    """Write what a campaign reached and found, as Markdown."""
    first, last, count = campaign.first, campaign.end - 1, campaign.end - campaign.first
    command = f"uv run just simulate --nodes {campaign.node_count} --seed {first} --seeds {count}"
    commits = ", ".join(
        f"{name} ({number:,} seeds)" if len(campaign.commits) > 1 else name for name, number in campaign.commits.items()
    )
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    required = campaign.required
    clean = "Nothing was found, and everything required was reached." if required else "Nothing was found."
    found = [
        *(f"- seed {report['seed']} found: {', '.join(report['problems'])}" for report in campaign.failures),
        *(f"- seed {seed} left two different traces" for seed in campaign.differing),
        *(f"- never reached: {name}" for name in campaign.missing),
    ]
    lines = [
        f"# Seeds {first} to {last} of {campaign.node_count} simulated node{'s' * (campaign.node_count > 1)}",
        "",
        f"`{command}` at commit {commits}, {time.strftime('%d %B %Y')}, on {machine}.",
        "",
        f"{campaign.seed_count:,} seeds in {campaign.took_s:,.0f} s, of which {len(campaign.failures)} failed.",
        f"They simulated {campaign.simulated_s:,.0f} seconds.",
        f"Every {TWICE_EVERY}th ran twice, with different hash seeds; {len(campaign.differing)} of these differed.",
        "",
        *(found or [clean]),
        "",
        "| What happened | Times | Required |",
        "|---|---|---|",
        *(
            f"| {name} | {number:,} | {'yes' if name in required else ''} |"
            for name, number in sorted(campaign.notes.items())
        ),
    ]
    path.write_text("\n".join([*lines, ""]))


def _shrink(seed: int, nodes: int, problems: dict[str, list[str]]) -> None:
    """Shrink a failing scenario, and write it as a test."""
    from hailbus_broker.testing.campaign import draw_scenario, has_guests, run_scenario, shrink
    from hailbus_broker.testing.simulation.patching import patched

    from hailbus_devtools.simulate.guests.pinned import problems_of

    def fails(scenario: Scenario) -> bool:
        found = problems_of(scenario) if has_guests(scenario) else run_scenario(scenario).problems
        return bool(problems.keys() & found.keys())

    with patched():
        smallest = shrink(draw_scenario(seed, nodes), fails)
    path = ROOT / FIRST_SCENARIO / f"test_scenario_{seed}.py"
    path.write_text(source_of_test(smallest, seed, problems))
    print(f"shrunk to {len(smallest.clients)} clients and {len(smallest.faults)} faults: {path.relative_to(ROOT)}")


def measure_speed() -> bool:
    """Print how many simulated seconds a second of CPU time runs, the best of several runs; whether it was clean.

    Five producers send about 20 requests a second, and two consumers read them; all checks are on.
    """
    from hailbus_broker.testing.campaign import PlannedClient, Scenario, run_scenario
    from hailbus_broker.testing.simulation.patching import patched

    producers = [PlannedClient(name=f"producer-{number}", kind="plain producer", rate=4.05) for number in range(5)]
    readers = [
        PlannedClient(name="committed-reader", kind="committed reader"),
        PlannedClient(name="uncommitted-reader", kind="uncommitted reader"),
    ]
    scenario = Scenario(seed=1, duration_s=100.0, clients=(*producers, *readers), faults=())
    speeds = []
    with patched():
        for _ in range(SPEED_RUNS):
            began = time.process_time()
            outcome = run_scenario(scenario)
            speeds.append(outcome.simulated_s / (time.process_time() - began))
            if outcome.problems:
                _show({"seed": scenario.seed, "problems": outcome.problems}, 1)
                return False
    runs = ", ".join(f"{speed:.0f}" for speed in speeds)
    rate = outcome.request_count / outcome.simulated_s
    print(f"{max(speeds):.0f} simulated seconds per second of CPU time (runs: {runs})")
    print(f"{rate:.1f} produce requests per simulated second")
    return True


def _campaign(options: argparse.Namespace, first: int, parser: argparse.ArgumentParser) -> Campaign:
    """Run a campaign in one go, or continue one that was saved after each block."""
    count = options.seeds or ENOUGH_SEEDS
    campaign = Campaign(node_count=options.nodes, first=first, end=first)
    block = count if options.keep is None else BLOCK
    if options.keep is not None and options.keep.exists():
        campaign = Campaign.read(options.keep)
        if (campaign.first, campaign.node_count) != (first, options.nodes):
            parser.error(
                f"{options.keep} is of --nodes {campaign.node_count} --seed {campaign.first}: "
                "give these, or another file"
            )
        print(f"simulate: continues with seed {campaign.end}", flush=True)
    while campaign.end < first + count:
        campaign.add(
            run_campaign(
                campaign.end,
                min(block, first + count - campaign.end),
                workers=options.workers,
                nodes=options.nodes,
                report=partial(_show, nodes=options.nodes),
            )
        )
        if options.keep is not None:
            campaign.keep(options.keep)
    return campaign


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a campaign; exit with 1 if it finds something, or does not reach what it should."""
    parser = argparse.ArgumentParser(prog="simulate", description="Run drawn scenarios against a simulated broker.")
    parser.add_argument("--seeds", type=int, help="how many (default: 200; with --mutants at most 1,000 for each)")
    parser.add_argument("--seed", type=int, help="the first one (default: a random one, which is printed)")
    parser.add_argument(
        "--nodes", type=int, default=1, choices=range(1, 6), help="brokers in the world; several are a cluster"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="shrink the first failing scenario and write it as a test"
    )
    parser.add_argument("--mutants", action="store_true", help="run each mutant of the broker until it is found")
    parser.add_argument("--held-out", action="store_true", help="with --mutants: only those that are held out")
    parser.add_argument("--only", help="with --mutants: only those whose name contains this")
    parser.add_argument("--table", type=Path, help="with --mutants: write how many seeds each one needed to this file")
    parser.add_argument(
        "-n", "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)"
    )
    parser.add_argument("--report", type=Path, help="write what the campaign reached and found to this file")
    parser.add_argument(
        "--keep",
        type=Path,
        help=f"save the campaign to this file after every {BLOCK} seeds; the same command continues it",
    )
    parser.add_argument("--speed", action="store_true", help="measure simulated seconds per second of CPU time")
    options = parser.parse_args(arguments)
    if options.table is not None and not options.mutants:
        parser.error("--table goes with --mutants; the report of a campaign is --report FILE")
    for name in ("report", "keep"):
        if vars(options)[name] is not None and (options.mutants or options.speed):
            parser.error(f"--{name} is of a campaign: it goes with neither --mutants nor --speed")
    if options.keep is not None and options.seed is None:
        parser.error("--keep needs --seed: a campaign continues only under the first seed that it began with")
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"simulate: commit {commit()}, first seed {first}", flush=True)
    if options.speed:
        sys.exit(0 if measure_speed() else 1)
    if options.mutants:
        mutants = [mutant for mutant in read_mutants() if mutant.is_held_out == options.held_out]
        mutants = [mutant for mutant in mutants if (mutant.nodes > 1) == (options.nodes > 1)]
        chosen = [mutant for mutant in mutants if options.only is None or options.only in mutant.name]
        sys.exit(0 if _hunt_all(chosen, first, options.seeds or MUTANT_SEEDS, options.workers, options.table) else 1)
    campaign = _campaign(options, first, parser)
    for name, number in sorted(campaign.notes.items()):
        print(f"{number:>9,}  {name}")
    print(
        f"{campaign.seed_count} seeds, {len(campaign.failures)} failed, {campaign.simulated_s:,.0f} simulated seconds "
        f"in {campaign.took_s:.0f} s"
    )
    if options.report is not None:
        write_report(options.report, campaign)
    for name in campaign.missing:
        print(f"never reached: {name}")
    for seed in campaign.differing:
        print(f"seed {seed} left two different traces")
    if options.shrink and campaign.failures:
        _shrink(campaign.failures[0]["seed"], options.nodes, campaign.failures[0]["problems"])
    sys.exit(0 if campaign.is_clean else 1)
