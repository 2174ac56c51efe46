"""What the ledger says: lines, each of which compares two independent accounts, and what disagrees in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

Partition = tuple[str, int]
"""Topic and partition number."""
Verdict = Literal["agrees", "disagrees", "not_checked", "shown"]

FINDINGS_SHOWN: Final = 20
"""A line's JSON names so many of its findings; its sentence says how many there are."""
FINDINGS_KEPT: Final = 10_000
"""A line keeps so many findings; the ones beyond are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One disagreement between two accounts.

    Attributes:
        what: A sentence with both values.
        topic: Of the record concerned, where there is one; `partition` and `offset` belong to it.
        id: The event id where an event is concerned, else the id of the ride, driver, cell or group.
    """

    what: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "what": self.what,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "id": self.id,
        }

    def __str__(self) -> str:
        """Return the sentence and where to look."""
        place = [] if self.topic is None else [self.topic + ("" if self.partition is None else f"-{self.partition}")]
        if self.offset is not None:
            place.append(f"offset {self.offset}")
        named = [part for part in (" ".join(place), "" if self.id is None else f"id {self.id}") if part]
        return f"{self.what} ({', '.join(named)})" if named else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the comparison of a line found; no findings mean agreement.

    Attributes:
        agreement: The sentence for a line that agrees: what was compared, with numbers.
        findings: What disagrees.
        shown: Whether the line is information by nature and is not judged.
        unchecked: Why the comparison could not be made, `None` when it was.
    """

    agreement: str = ""
    findings: tuple[Finding, ...] = ()
    shown: bool = False
    unchecked: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the ledger.

    Attributes:
        id: Stable name.
        name: What the line promises.
        between: The two accounts that it compares.
        verdict: `shown` only for what is information by nature; `not_checked` counts as not balanced.
        detail: The verdict in a sentence.
        findings: What disagrees, at most `FINDINGS_KEPT`.
    """

    id: str
    name: str
    between: tuple[str, str]
    verdict: Verdict
    detail: str
    findings: tuple[Finding, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the line as JSON values, with at most `FINDINGS_SHOWN` findings."""
        return {
            "id": self.id,
            "name": self.name,
            "between": list(self.between),
            "verdict": self.verdict,
            "detail": self.detail,
            "findings": [finding.as_json() for finding in self.findings[:FINDINGS_SHOWN]],
        }


def is_balanced(lines: Collection[Line]) -> bool:
    """Return whether there are lines, each that is judged agrees, and none was left unchecked."""
    judged = [line for line in lines if line.verdict != "shown"]
    return bool(judged) and all(line.verdict == "agrees" for line in judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An account that belongs to the run and could not be read."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer group with an inbox.

    Args:
        group: Group id, which is also the consumer's name in `hailbus_inbox`.
        database: Name of the database that holds its inbox.
        topics: Topics that it subscribes to.
        types: Event types that it applies, of those on its topics; `None` for all of them.
        regions: Regions that share its work: each is a group of its own, reads everything and applies its part.
    """

    group: str
    database: str
    topics: tuple[str, ...]
    types: frozenset[str] | None = None
    regions: tuple[str, ...] = ()

    @property
    def read_by(self) -> tuple[str, ...]:
        """The consumer groups that read for it."""
        return tuple(f"{self.group}-{region}" for region in self.regions) or (self.group,)


class Findings:
    """Collects findings and counts those beyond `FINDINGS_KEPT`."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.count = 0

    def add(
        self,
        what: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        id: str | None = None,
    ) -> None:
        """Add one finding."""
        self.count += 1
        if len(self.kept) < FINDINGS_KEPT:
            self.kept.append(Finding(what=what, topic=topic, partition=partition, offset=offset, id=id))

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add findings that were made elsewhere."""
        for finding in findings:
            self.count += 1
            if len(self.kept) < FINDINGS_KEPT:
                self.kept.append(finding)

    def judge(self, agreement: str) -> Judgement:
        """Return the judgement of a line with these findings, sorted: a log is not read in the same order twice."""
        return Judgement(agreement=agreement, findings=tuple(sorted(self.kept, key=_order)))


def _order(finding: Finding) -> tuple[Any, ...]:
    place = (finding.topic or "", finding.partition or 0, finding.offset or 0)
    return (*place, finding.id or "", finding.what)
