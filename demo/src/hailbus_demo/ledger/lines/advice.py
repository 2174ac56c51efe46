"""Recommendations: what riders asked for was served, kept and published, and what they took was noted."""

from __future__ import annotations

from typing import Final

from hailbus_demo.ledger.accounts import Accounts, BookAccount, RecommenderAccount
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOK
from hailbus_demo.ledger.log import LogAccount, LogReader
from hailbus_demo.ledger.model import Findings, Judgement

TOPIC: Final = "recommendations.v1"
RECOMMENDER: Final = "the recommender's database"
IN_LOG: Final = "recommendations.v1 in the log"


def _book_log(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    taken = 0
    for name, told in book.advice.items():
        step = reader.served.get(name)
        if step is None:
            found.add(f"recommendation {name} was served by {BOOK} and is not in the log", topic=TOPIC, id=name)
            continue
        shown = {option["option_id"] for option in step.data["options"]}
        if set(told.options) != shown or step.data["rider_id"] != told.rider_id:
            found.extend([reader.finding(f"recommendation {name} was served otherwise by {BOOK}", step.row)])
        choice = reader.chosen.get(name)
        said = None if choice is None else choice.data["option_id"]
        taken += told.chosen is not None
        if said != told.chosen:
            what = f"recommendation {name}: option {told.chosen} was taken by {BOOK}, {said} by the log"
            found.extend([reader.finding(what, step.row if choice is None else choice.row)])
    if book.is_whole:
        for name in sorted(reader.served.keys() - book.advice.keys()):
            what = f"recommendation {name} is in the log, and nobody asked for it by {BOOK}"
            found.extend([reader.finding(what, reader.served[name].row)])
    return found.judge(f"{len(book.advice):,} recommendations were served as published, {taken:,} were taken")


def _recommender_log(accounts: Accounts) -> Judgement:
    log, recommender = accounts.log, accounts.recommender
    assert isinstance(log, LogAccount)
    assert isinstance(recommender, RecommenderAccount)
    reader, found = log.reader, Findings()
    for name, answer in recommender.answers.items():
        step = reader.served.get(name)
        if step is None:
            found.add(f"recommendation {name} is in {RECOMMENDER} and was not published", topic=TOPIC, id=name)
            continue
        told = tuple((str(option["option_id"]), int(option["rank"])) for option in step.data["options"])
        if told != answer.options or step.data["rider_id"] != answer.rider_id:
            found.extend(
                [reader.finding(f"recommendation {name} was published otherwise than {RECOMMENDER} has it", step.row)]
            )
        choice = reader.chosen.get(name)
        said = None if choice is None else str(choice.data["option_id"])
        if said != answer.chosen:
            what = f"recommendation {name}: option {answer.chosen} was taken by {RECOMMENDER}, {said} by the log"
            found.extend([reader.finding(what, step.row if choice is None else choice.row)])
    if not recommender.pruned:
        for name in sorted(reader.served.keys() - recommender.answers.keys()):
            what = f"recommendation {name} is in the log and not in {RECOMMENDER}"
            found.extend([reader.finding(what, reader.served[name].row)])
    _well_formed(found, reader)
    return found.judge(f"{len(recommender.answers):,} recommendations were published as they were kept")


def _well_formed(found: Findings, reader: LogReader) -> None:
    """A recommendation ranks its options 1, 2, 3… per kind; a choice is one of them."""
    for name, step in reader.served.items():
        ranks: dict[str, list[int]] = {}
        for option in step.data["options"]:
            ranks.setdefault(option["kind"], []).append(option["rank"])
        for kind, given in ranks.items():
            if given != list(range(1, len(given) + 1)):
                found.extend([reader.finding(f"recommendation {name} ranks its {kind}s {given}", step.row)])
    for name, choice in reader.chosen.items():
        served = reader.served.get(name)
        options = {} if served is None else {one["option_id"]: one["rank"] for one in served.data["options"]}
        if options.get(choice.data["option_id"]) != choice.data["rank"]:
            what = f"recommendation {name}: {choice.data['option_id']} at rank {choice.data['rank']} was not served"
            found.extend([reader.finding(what, choice.row)])


LINES: Final = (
    LineSpec(
        id="advice-book-log",
        name="every recommendation that was asked for was published",
        between=(BOOK, IN_LOG),
        needs=("book", "log"),
        judge=_book_log,
    ),
    LineSpec(
        id="advice-recommender-log",
        name="recommendations were published as they were kept",
        between=(RECOMMENDER, IN_LOG),
        needs=("recommender", "log"),
        judge=_recommender_log,
    ),
)
