"""How a line is declared: its name, the two accounts that it compares, and the function that judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hailbus_demo.ledger.accounts import Accounts
from hailbus_demo.ledger.model import Judgement, Line, Unread, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSpec:
    """A line of the ledger.

    Attributes:
        id: Stable name.
        name: What the line promises.
        between: The two accounts, as readers know them.
        needs: Fields of `Accounts` that the function looks at. A line with one that is not part of the run is left out;
            one that could not be read makes it `not_checked`.
        judge: Compares; pure.
        inbox: The group whose inbox is needed as well, `None` for none.
    """

    id: str
    name: str
    between: tuple[str, str]
    needs: tuple[str, ...]
    judge: Callable[[Accounts], Judgement]
    inbox: str | None = None

    def draw(self, accounts: Accounts) -> Line | None:
        """Return the line for these accounts, `None` when one of them is not part of the run."""
        needed = [getattr(accounts, name) for name in self.needs]
        if self.inbox is not None:
            needed.append(accounts.inboxes.get(self.inbox))
        if any(account is None for account in needed):
            return None
        unread = [account.reason for account in needed if isinstance(account, Unread)]
        if unread:
            return self._line(Judgement(unchecked="; ".join(dict.fromkeys(unread))))
        try:
            return self._line(self.judge(accounts))
        except Exception as error:  # noqa: BLE001  # whatever the accounts hold: a line that fails is not checked
            return self._line(Judgement(unchecked=f"the comparison failed: {type(error).__name__}: {error}"))

    def _line(self, judged: Judgement) -> Line:
        verdict: Verdict
        if judged.unchecked is not None:
            verdict, detail = "not_checked", f"not checked: {judged.unchecked}"
        elif judged.findings:
            first = str(judged.findings[0])
            more = len(judged.findings) - 1
            verdict = "disagrees"
            detail = first if not more else f"{first}; and {more:,} more"
        else:
            verdict, detail = "shown" if judged.shown else "agrees", judged.agreement
        return Line(
            id=self.id,
            name=self.name,
            between=self.between,
            verdict=verdict,
            detail=detail,
            findings=judged.findings,
        )


__all__ = ["LineSpec"]
