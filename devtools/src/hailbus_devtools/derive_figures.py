"""Write `docs/figures/README.md` and the figures that READMEs quote from the runs of the benchmarks.

A run is the JSON that a benchmark writes with `--json` (`tests/bench/report.py`): `docs/figures/broker.json`,
`cluster.json`, `sdk.json`, `city.json` and `lake.json`. Every figure that a page quotes stands between
`<!-- figures NAME -->` and `<!-- /figures -->`, together with its condition, load, commit and command. The figures of
one block are of one run.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "figures"
PAGE = FOLDER / "README.md"
RUNS = {
    "broker": "Broker beside Apache Kafka",
    "cluster": "Three nodes beside three of Apache Kafka",
    "sdk": "SDK beside other clients",
    "city": "The example at work",
    "lake": "The lake",
}
PAGES = ("README.md", "broker/README.md", "sdk/README.md", "services/booking/README.md", "analytics_spark/README.md")
HEAD = """# Figures

Written by `uv run derive-figures` from the runs of `just figures`, which are kept beside this page as JSON with the
values of every round. Each table is of one run: its condition, the load of the machine when it began, the command and
the commit stand with it. Values are medians of the rounds.
"""
_BLOCK = re.compile(r"<!-- figures (?P<name>\S+) -->\n.*?<!-- /figures -->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A benchmark's run as it was written."""

    name: str
    content: Mapping[str, Any]  # Any: JSON

    def value(self, what: str, *, column: int = 0) -> float:
        """Return the median of a quantity.

        Raises:
            KeyError: The run did not measure it.
        """
        for table in self.content["tables"]:
            for row in table["rows"]:
                if row["what"] == what:
                    return float(statistics.median(row["values"][column]))
        raise KeyError(f"{self.name} did not measure {what!r}")

    def origin(self) -> str:
        """Return where the figures come from, as a sentence."""
        content = self.content
        loads = [table["load"] for table in content["tables"]]
        return (
            f"`{content['command']}`, commit {content['commit']}, {content['date']}, {content['machine']}, "
            f"Python {content['python']}, load {min(loads):g} to {max(loads):g}, medians of {content['rounds']} rounds."
        )


def load_runs(folder: Path = FOLDER) -> dict[str, Run]:
    """Return the runs that are kept."""
    found = {}
    for name in RUNS:
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = Run(name=name, content=json.loads(path.read_text(encoding="utf-8")))
    return found


def page(runs: Mapping[str, Run]) -> str:
    """Return the text of the page with all tables."""
    parts = [HEAD]
    for name, run in runs.items():
        parts.append(f"\n## {RUNS[name]}\n\n{run.origin()}\n")
        for table in run.content["tables"]:
            parts.append(f"\n### {table['title']}\n\nCondition: {table['condition']}. Load: {table['load']:g}.\n\n")
            parts.append(f"| | {' | '.join(table['columns'])} | unit |\n|---|{'---|' * len(table['columns'])}---|\n")
            for row in table["rows"]:
                values = " | ".join(shown(statistics.median(column)) for column in row["values"])
                parts.append(f"| {row['what']} | {values} | {row['unit']} |\n")
    return "".join(parts)


def shown(value: float) -> str:
    """Return a value with two or three significant digits, whole from 100 on."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) < 1 else 1
    return f"{value:.{digits}f}"


def with_blocks(text: str, runs: Mapping[str, Run]) -> str:
    """Return a page's text with its blocks written anew.

    Raises:
        KeyError: A block has an unknown name, or its run is missing or lacks a figure.
    """

    def block(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- figures {name} -->\n{BLOCKS[name](runs)}\n<!-- /figures -->"

    return _BLOCK.sub(block, text)


def _broker_summary(runs: Mapping[str, Run]) -> str:
    run = runs["broker"]

    def both(what: str) -> str:
        return f"{shown(run.value(what))} · {shown(run.value(what, column=1))}"

    cases = [
        f"{size} B, acks=all, none, {batches}" for size in ("100", "1,000") for batches in ("default batches", "16 KiB")
    ]
    rows = [
        ("start to serving, s", both("start to serving"), "both brokers by default"),
        ("serving again after SIGKILL under load, s", both("serving again after SIGKILL under load"), "the same"),
        ("idle memory, MB", both("idle RSS"), "the same"),
    ]
    for sync, condition in (("not synced", "neither broker syncs"), ("group fsync", "both sync before each ack")):
        for quantity in ("produce", "consume"):
            ratios = [run.value(f"{case}, {sync}: {quantity}, CPU", column=2) for case in cases]
            label = f"broker CPU per GB {quantity}d, share of Apache Kafka's"
            rows.append(
                (
                    label,
                    f"{shown(min(ratios))} to {shown(max(ratios))}",
                    f"{condition}; 100 B and 1 KB, two batch sizes",
                )
            )
        rows.append(
            (
                "p99 end to end at 10,000 a second, ms",
                both(f"10,000 messages/s, {sync}: p99"),
                f"{condition}; 1 KB, acks=all",
            )
        )
    lines = [
        "| hailbus · Apache Kafka 4.3 | | condition |",
        "|---|---|---|",
        *(f"| {a} | {b} | {c} |" for a, b, c in rows),
    ]
    return "\n".join([*lines, "", f"{run.origin()} The client shares the two cores with the broker."])


def _sdk_summary(runs: Mapping[str, Run]) -> str:
    run = runs["sdk"]
    names = [
        ("publish: hailbus publish_many", "`publish_many`"),
        ("publish: hailbus enqueue", "`enqueue`"),
        ("publish: hailbus awaited, 1000 at once", "`publish`, awaited by 1,000 callers"),
        ("consume: hailbus at least once, key lanes", "consume at least once, key lanes"),
        ("consume: hailbus at most once", "consume at most once"),
        ("consume: hailbus batches", "consume in batches"),
    ]
    lines = ["| | events a second | events per core beside aiokafka + model |", "|---|---|---|"]
    for what, label in names:
        lines.append(f"| {label} | {shown(run.value(what))} | {_ratio(run, what)} |")
    return "\n".join([*lines, "", run.origin()])


def _ratio(run: Run, what: str) -> str:
    table = next(one for one in run.content["tables"] if one["columns"] == ["ratio"])
    return next(shown(statistics.median(row["values"][0])) for row in table["rows"] if row["what"] == what)


def _in_flight(run: Run) -> str:
    title = next(one["title"] for one in run.content["tables"] if one["title"].startswith("Booking: "))
    return str(title.rpartition(", ")[2])


def _city_summary(runs: Mapping[str, Run]) -> str:
    run = runs["city"]
    rows = [
        ("from the command to the first event, s", "from the command to the first event"),
        (
            "events a second: booked, published and applied by every group",
            "booked, published and applied by every group",
        ),
        ("rides booked a second in that run", "rides booked"),
        ("booking alone: state-changing requests a second", "state-changing requests"),
        (f"booking alone: p99 with {_in_flight(run)}, ms", "latency, p99"),
    ]
    lines = ["| | |", "|---|---|", *(f"| {label} | {shown(run.value(what))} |" for label, what in rows)]
    note = "SQLite and broker sync before they answer; load generator and every process share the two cores."
    return "\n".join([*lines, "", f"{note} {run.origin()}"])


def _booking_summary(runs: Mapping[str, Run]) -> str:
    run = runs["city"]
    requests, median, last = (run.value(what) for what in ("state-changing requests", "latency, p50", "latency, p99"))
    return (
        f"{shown(requests)} state-changing requests a second, p50 {shown(median)} ms, p99 {shown(last)} ms with "
        f"{_in_flight(run)}. SQLite and broker sync before they answer; load generator, booking and broker share the "
        f"cores. {run.origin()}"
    )


def _lake_summary(runs: Mapping[str, Run]) -> str:
    run = runs["lake"]
    lines = ["| | |", "|---|---|"]
    for table in run.content["tables"]:
        lines += [
            f"| {row['what']}, {row['unit']} | {shown(statistics.median(row['values'][0]))} |" for row in table["rows"]
        ]
    first = run.content["tables"][0]
    return "\n".join([*lines, "", f"{first['title']}; {first['condition']}. {run.origin()}"])


BLOCKS: dict[str, Callable[[Mapping[str, Run]], str]] = {
    "broker": _broker_summary,
    "sdk": _sdk_summary,
    "city": _city_summary,
    "booking": _booking_summary,
    "lake": _lake_summary,
}


def derived() -> dict[Path, str]:
    """Return every page that quotes figures, with the text that it must have."""
    runs = load_runs()
    found = {PAGE: page(runs)}
    for name in PAGES:
        path = ROOT / name
        found[path] = with_blocks(path.read_text(encoding="utf-8"), runs)
    return found


def main() -> None:
    """Write the pages, or with `--check` say which are out of date and exit with 1."""
    stale = [
        (path, text)
        for path, text in derived().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path, _ in stale:
            print(f"{path.relative_to(ROOT)} differs from its runs: uv run derive-figures")
        sys.exit(1 if stale else 0)
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
