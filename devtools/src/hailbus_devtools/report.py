"""What a run of pytest did, read from the JUnit file that pytest itself wrote."""

import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Outcome", "ReviewedSkip", "Skip", "merge", "read_outcome", "read_reviewed_skips", "unreviewed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A test that did not run, and the reason that it gave."""

    test: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedSkip:
    """A skip that `--require-all` accepts."""

    tests: str
    """What the test's name starts with."""
    reason: str
    """The reason that the test gives, exactly."""
    why: str
    """Why it is right that these tests do not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The tests of a run. A test that failed and whose clean-up failed as well is one failure."""

    passed: frozenset[str]
    failed: frozenset[str]
    skips: Sequence[Skip]
    seconds: dict[str, float]

    @property
    def ran(self) -> int:
        """Count the tests that did run."""
        return len(self.passed) + len(self.failed)

    def summary(self) -> str:
        """Return one line: how many passed, failed and were skipped, with the number of each reason."""
        reasons = Counter(skip.reason for skip in self.skips).most_common()
        listed = "; ".join(f"{count}: {reason}" for reason, count in reasons)
        skipped = f"{len(self.skips)} skipped" + (f" ({listed})" if listed else "")
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {skipped}"

    def slowest(self, count: int) -> list[tuple[float, str]]:
        """Return the tests that took the longest, with the seconds of their set-up and clean-up."""
        return _longest(self.seconds, count)

    def slowest_files(self, count: int) -> list[tuple[float, str]]:
        """Return the files whose tests took the longest together."""
        files: dict[str, float] = {}
        for test, took in self.seconds.items():
            name = test.partition("::")[0]
            files[name] = files.get(name, 0.0) + took
        return _longest(files, count)


def _longest(seconds: Mapping[str, float], count: int) -> list[tuple[float, str]]:
    return sorted(((took, name) for name, took in seconds.items()), reverse=True)[:count]


def read_outcome(path: Path) -> Outcome:
    """Read pytest's JUnit file.

    Raises:
        FileNotFoundError: pytest ended before it wrote the file.
    """
    passed: set[str] = set()
    failed: set[str] = set()
    skips: list[Skip] = []
    seconds: dict[str, float] = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 pytest wrote it a moment ago
        test = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
        seconds[test] = seconds.get(test, 0.0) + float(case.get("time") or 0)
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(test)
        elif skipped is not None:
            skips.append(Skip(test=test, reason=_reason(skipped)))
        else:
            passed.add(test)
    return Outcome(passed=frozenset(passed - failed), failed=frozenset(failed), skips=skips, seconds=seconds)


def _reason(skipped: ET.Element) -> str:
    message = skipped.get("message") or "no reason given"
    if message == "collection skipped":  # a whole file: pytest puts the reason into the text
        message = (skipped.text or "").rpartition("Skipped: ")[2].rstrip("')\n") or message
    return " ".join(message.split())


def merge(outcomes: Iterable[Outcome]) -> Outcome:
    """Return several runs as one."""
    every = list(outcomes)
    failed = frozenset(test for outcome in every for test in outcome.failed)
    return Outcome(
        passed=frozenset(test for outcome in every for test in outcome.passed) - failed,
        failed=failed,
        skips=[skip for outcome in every for skip in outcome.skips],
        seconds={test: took for outcome in every for test, took in outcome.seconds.items()},
    )


def read_reviewed_skips(path: Path) -> list[ReviewedSkip]:
    """Read the list of skips that are accepted, each with its reason.

    Raises:
        ValueError: An entry lacks a key, has one too many, or does not say why.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("skip", [])
    for entry in entries:
        if set(entry) != {"tests", "reason", "why"} or not all(
            isinstance(text, str) and text for text in entry.values()
        ):
            raise ValueError(f"{path}: an entry is `tests`, `reason` and `why`, each a text; found {entry}")
    return [ReviewedSkip(**entry) for entry in entries]


def unreviewed(skips: Iterable[Skip], reviewed: Sequence[ReviewedSkip]) -> list[Skip]:
    """Return the skips that no entry of the list accepts."""
    return [
        skip
        for skip in skips
        if not any(skip.test.startswith(entry.tests) and skip.reason == entry.reason for entry in reviewed)
    ]
