"""Draws up the ledger: every line over the accounts that were gathered, now or again and again during a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hailbus_demo.ledger.accounts import Accounts
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.model import Finding, Line, is_balanced


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The lines, and the names of those that are not part of this run."""

    lines: tuple[Line, ...]
    left_out: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        """Whether every line that is judged agrees, and none was left unchecked."""
        return is_balanced(self.lines)

    @property
    def exit_code(self) -> int:
        """0 when balanced, else 1."""
        return 0 if self.balanced else 1


def draw_up(accounts: Accounts) -> Ledger:
    """Compare the accounts, line by line. Pure: the same accounts give the same ledger."""
    lines: list[Line] = []
    left_out: list[str] = []
    for spec in LINES:
        line = spec.draw(accounts)
        if line is None:
            left_out.append(spec.name)
        else:
            lines.append(line)
    return Ledger(lines=tuple(lines), left_out=tuple(left_out))


class SoFar:
    """The ledger during a run: a disagreement counts once it has stayed the same for `grace_s` seconds.

    Accounts that are read while the system works are of slightly different moments, so they disagree for a moment all
    the time: booking has committed what the relay has not published yet. Such a finding is gone, or reads otherwise,
    in the next ledger. One that stays word for word is real.

    Args:
        grace_s: Seconds.
    """

    def __init__(self, *, grace_s: float) -> None:
        self.grace_s = grace_s
        self._first_seen: dict[tuple[str, Finding], float] = {}

    def settle(self, ledger: Ledger, *, now_s: float) -> Ledger:
        """Return the ledger with the findings that are older than the grace period.

        Args:
            ledger: Of accounts that were gathered just now.
            now_s: Any steady clock.
        """
        seen: dict[tuple[str, Finding], float] = {}
        lines: list[Line] = []
        for line in ledger.lines:
            lasting = []
            for finding in line.findings:
                since = seen[line.id, finding] = self._first_seen.get((line.id, finding), now_s)
                if now_s - since >= self.grace_s:
                    lasting.append(finding)
            lines.append(_so_far(line, tuple(lasting)))
        self._first_seen = seen
        return replace(ledger, lines=tuple(lines))


def _so_far(line: Line, lasting: tuple[Finding, ...]) -> Line:
    if line.verdict != "disagrees":
        return line
    if lasting:
        more = len(lasting) - 1
        detail = str(lasting[0]) if not more else f"{lasting[0]}; and {more:,} more"
        return replace(line, findings=lasting, detail=detail)
    waiting = len(line.findings)
    return replace(line, verdict="agrees", findings=(), detail=f"agrees so far; {waiting:,} on their way")


__all__ = ["Ledger", "SoFar", "draw_up"]
