"""What a verification found: one line for each pair of accounts, with its verdict and findings."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = [
    "AGREES",
    "DISAGREES",
    "FINDINGS_KEPT",
    "NOT_CHECKED",
    "Finding",
    "Findings",
    "GoldReport",
    "LakeReport",
    "LineReport",
    "PartitionReport",
    "SilverReport",
    "Verdict",
    "place_text",
]

Verdict = Literal["agrees", "disagrees", "not_checked"]
AGREES: Verdict = "agrees"
DISAGREES: Verdict = "disagrees"
NOT_CHECKED: Verdict = "not_checked"

FINDINGS_KEPT = 20
"""Findings of one line that are kept; all are counted."""

Kind = Literal[
    "missing",
    "invented",
    "altered",
    "doubled",
    "behind",
    "replaced",
    "retreated",
    "lost",
    "misplaced",
    "wrongly_quarantined",
    "wrongly_typed",
    "unverified",
    "unread",
]
_MEANS_NOT_CHECKED = frozenset({"unverified", "unread"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that two accounts do not agree on, or that could not be checked.

    Attributes:
        kind: What is wrong. `unread` and `unverified` could not be checked; all others are disagreements.
        message: One sentence with the place.
        topic, partition, offset: The record, where there is one.
        id: Its CloudEvents id, where it has one.
        table, column: Where in the lake.
    """

    kind: Kind
    message: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    id: str | None = None
    table: str | None = None
    column: str | None = None


@dataclass(slots=True)
class Findings:
    """Collects the findings of one line; keeps `FINDINGS_KEPT` of them and counts all, so memory is bounded."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[Kind] = field(default_factory=Counter)

    def add(self, finding: Finding, *, count: int = 1) -> None:
        """Add one finding that stands for `count` of its kind."""
        self.counts[finding.kind] += count
        if len(self.kept) < FINDINGS_KEPT:
            self.kept.append(finding)

    @property
    def verdict(self) -> Verdict:
        """A disagreement outweighs what was not checked."""
        if any(kind not in _MEANS_NOT_CHECKED for kind in self.counts):
            return DISAGREES
        return NOT_CHECKED if self.counts else AGREES

    def summary(self) -> str:
        """The number of findings by kind, for people."""
        return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(self.counts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReport:
    """Two accounts, and whether they agree."""

    name: str
    accounts: tuple[str, str]
    verdict: Verdict
    detail: str
    findings_count: int
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, name: str, accounts: tuple[str, str], findings: Findings, *, agreed: str) -> "LineReport":
        """The line of what was found; `agreed` says what was compared, when nothing was found."""
        return cls(
            name=name,
            accounts=accounts,
            verdict=findings.verdict,
            detail=agreed if findings.verdict == AGREES else findings.summary(),
            findings_count=findings.counts.total(),
            findings=tuple(findings.kept),
        )


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """One partition of the log, and its rows in bronze.

    Attributes:
        topic_id: The broker's id of the topic, None where the broker gives none.
        log_start: First offset that the log still has.
        end: End of the committed records, exclusive: up to here the lake must have them. None if the broker was not
            asked or did not answer.
        verified_before: Offsets below it were compared by an earlier run and are unchanged in the lake.
        checked_from: First offset that this run compared with the log.
        log_records, log_checksum: What the log has from `checked_from` to `end`.
        lake_records, lake_checksum: What the lake has of these. On a compacted topic, of those that the log still has.
        rows: Rows of the lake below `end`.
        behind_records: Records at the end of the log that the lake does not have.
        hidden_offsets: Offsets from `checked_from` to `end` without a visible record: transaction markers, aborted
            and compacted records.
    """

    topic: str
    partition: int
    topic_id: str | None = None
    log_start: int | None = None
    end: int | None = None
    verified_before: int = 0
    checked_from: int = 0
    log_records: int = 0
    lake_records: int = 0
    log_checksum: int = 0
    lake_checksum: int = 0
    rows: int = 0
    behind_records: int = 0
    hidden_offsets: int = 0
    verdict: Verdict = AGREES
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; checksums as 16 hexadecimal digits."""
        return asdict(self) | {
            "log_checksum": f"{self.log_checksum:016x}",
            "lake_checksum": f"{self.lake_checksum:016x}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SilverReport:
    """Where bronze rows went: `bronze = typed + quarantined + duplicates + unaccounted`; unaccounted must be 0.

    `sampled` rows were derived again from bronze and compared column by column.
    """

    bronze: int
    typed: int
    quarantined: int
    duplicates: int
    unaccounted: int
    sampled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldReport:
    """Rows of one gold table, and rows that the computation from silver gave. `money` sums its amounts, in cents."""

    rows: int
    recomputed: int
    money: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport:
    """What was compared, and the verdict."""

    lines: tuple[LineReport, ...]
    partitions: tuple[PartitionReport, ...]
    silver: SilverReport | None
    gold: dict[str, GoldReport] | None
    tables: dict[str, int]
    allowances: tuple[str, ...]
    mode: Literal["full", "incremental"]
    seed: int
    seconds: float

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each finding that was kept, then what was not kept; empty when all lines agree."""
        return tuple(_problems(self.lines))

    @property
    def ok(self) -> bool:
        """Whether every line agrees. What was not checked does not agree."""
        return all(line.verdict == AGREES for line in self.lines)

    @property
    def rows(self) -> int:
        """Rows of bronze in the partitions compared."""
        return sum(part.rows for part in self.partitions)

    def line(self, name: str) -> LineReport:
        """The line of this name."""
        return next(line for line in self.lines if line.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "rows": self.rows,
            "mode": self.mode,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "lines": [asdict(line) for line in self.lines],
            "partitions": [part.to_dict() for part in self.partitions],
            "silver": asdict(self.silver) if self.silver else None,
            "gold": {name: asdict(one) for name, one in self.gold.items()} if self.gold is not None else None,
            "tables": self.tables,
            "allowances": list(self.allowances),
        }


def _problems(lines: Iterable[LineReport]) -> Iterable[str]:
    for line in lines:
        prefix = f"{line.name}: not checked: " if line.verdict == NOT_CHECKED else f"{line.name}: "
        for finding in line.findings:
            yield prefix + finding.message
        if line.findings_count > len(line.findings):
            yield f"{prefix}{line.detail}; the first {len(line.findings)} are listed"


def place_text(topic: str, partition: int) -> str:
    """A partition as Kafka's tools write it."""
    return f"{topic}-{partition}"
