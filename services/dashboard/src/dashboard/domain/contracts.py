"""Who reads which field of which event, and what a proposed change would break."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from hailbus import Catalogue
from hailbus.compatibility import Level, type_text
from hailbus.contract import Contract, compare, contract_of
from hailbus.needs import Need, broken_by

from dashboard.domain.city import TIMELINE_TOPICS
from dashboard.domain.proposals import Schema, fields, inlined

Reads = Literal["reads", "in part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeReader:
    """A consumer that keeps events whole, whatever fields they have.

    Attributes:
        topics: What it reads; all topics of the language where it is None.
        words: What it does with an event.
    """

    name: str
    topics: frozenset[str] | None
    words: str


WHOLE_READERS: Final = (
    WholeReader(name="event-logger", topics=None, words="writes the whole event to its log"),
    WholeReader(name="lake", topics=None, words="stores the record as it was written, and each field as a column"),
    WholeReader(name="dashboard", topics=TIMELINE_TOPICS, words="keeps the record for the timeline of its ride"),
)
"""A contract test compares them with the code of these consumers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of an event.

    Attributes:
        path: As in recorded needs, for example `pickup.lat`.
        type: In few words.
        about: Its description; empty if there is none.
        is_required: Whether a writer must give it, as it has no default.
        readers: The consumers that have recorded to read it, by name: all of it, or fields inside it only.
    """

    path: str
    type: str
    about: str
    is_required: bool
    readers: Mapping[str, Reads]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version of an event, with its fields, the consumers with recorded needs, and those that keep it whole."""

    contract: Contract
    about: str
    fields: tuple[Field, ...]
    consumers: tuple[str, ...]
    whole: tuple[WholeReader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One effect of a proposed change.

    Attributes:
        kind: On a consumer's recorded need, on records that were written before, on readers that have the old class,
            or none that breaks anything.
        consumer: Whose need it is, else empty.
        field: The path; empty where the whole event is meant.
    """

    kind: Literal["consumer", "records", "readers", "safe"]
    consumer: str
    field: str
    words: str

    @property
    def is_breaking(self) -> bool:
        """Whether it breaks something."""
        return self.kind != "safe"


class Contracts:
    """The contracts of a catalogue, and what consumers have recorded to need of them. Immutable.

    Args:
        catalogue: All events.
        needs: Of all consumers.
    """

    def __init__(self, catalogue: Catalogue, needs: Iterable[Need]) -> None:
        needs = tuple(needs)
        self._needs: dict[tuple[str, int], list[Need]] = {}
        for need in needs:
            self._needs.setdefault((need.type, need.version), []).append(need)
        contracts = sorted((contract_of(cls) for cls in catalogue), key=lambda one: (one.topic, one.type, one.version))
        self._entries = {(one.type, one.version): self._entry(one) for one in contracts}
        self.topics = {topic.name: topic.description for topic in catalogue.topics}
        """What each topic is about, by name."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All versions of all events, by topic, type and version."""
        return tuple(self._entries.values())

    def find(self, type: str, version: int) -> Entry | None:
        """Return one version of an event, None if there is none."""
        return self._entries.get((type, version))

    def judge(self, entry: Entry, change: Callable[[Mapping[str, Any]], Schema]) -> list[Effect]:
        """Return what a change of an event's schema does, breaking effects first; nothing if it changes nothing.

        Args:
            entry: The event to change.
            change: Returns the changed schema.

        Raises:
            ProposalError: The change cannot be made.
        """
        current = replace(entry.contract, schema=inlined(entry.contract.schema))
        proposed = replace(current, schema=change(current.schema))
        if proposed.schema == current.schema:
            return []
        breaking: list[Effect] = []
        safe: list[Effect] = []
        for need in self._needs.get((current.type, current.version), ()):
            lost = broken_by([need], proposed)
            breaking += [
                Effect(kind="consumer", consumer=need.consumer, field=found.path, words=found.sentence)
                for found in lost
            ]
            if not lost:
                words = f"{need.consumer} still gets what it reads: {', '.join(need.fields)}"
                safe.append(Effect(kind="safe", consumer=need.consumer, field="", words=words))
        for kind, level in _DIRECTIONS:
            breaking += [
                Effect(kind=kind, consumer="", field=found.path, words=found.sentence)
                for found in compare(current, proposed, level=level)
                if found.is_breaking
            ]
        safe += [
            Effect(kind="safe", consumer="", field=found.path, words=found.sentence)
            for found in compare(current, proposed)
            if not found.is_breaking
        ]
        return [*breaking, *safe]

    def _entry(self, contract: Contract) -> Entry:
        needs = self._needs.get((contract.type, contract.version), [])
        schema = inlined(contract.schema)
        return Entry(
            contract=contract,
            about=str(schema.get("description", "")),
            fields=tuple(
                Field(
                    path=path,
                    type=type_text(field),
                    about=str(field.get("description", "")),
                    is_required=is_present and "default" not in field,
                    readers=_readers(path, needs),
                )
                for path, field, is_present in fields(schema)
            ),
            consumers=tuple(sorted({need.consumer for need in needs})),
            whole=tuple(one for one in WHOLE_READERS if one.topics is None or contract.topic in one.topics),
        )


_DIRECTIONS: Final[tuple[tuple[Literal["records", "readers"], Level], ...]] = (
    ("records", Level.BACKWARD),
    ("readers", Level.FORWARD),
)


def _readers(path: str, needs: Sequence[Need]) -> dict[str, Reads]:
    found: dict[str, Reads] = {}
    for need in needs:
        if any(_is_within(path, needed) for needed in need.fields):
            found[need.consumer] = "reads"
        elif any(_is_within(needed, path) for needed in need.fields):
            found[need.consumer] = "in part"
    return found


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def verdict(effects: Sequence[Effect]) -> str:
    """Return the effects in one sentence."""
    if not effects:
        return "This changes nothing."
    if not any(effect.is_breaking for effect in effects):
        return "Safe: no recorded consumer loses a field, old records stay readable, and old readers read new events."
    consumers = sorted({effect.consumer for effect in effects if effect.kind == "consumer"})
    kinds = {effect.kind for effect in effects}
    parts = []
    if consumers:
        lose = "loses fields that it reads" if len(consumers) == 1 else "lose fields that they read"
        parts.append(f"{', '.join(consumers)} {lose}")
    if "records" in kinds:
        parts.append("records that were written before can no longer be read")
    if "readers" in kinds:
        parts.append("readers with the old class fail on new events")
    return f"Breaking: {'; '.join(parts)}. Publish it as a new version of the event."


__all__ = ["WHOLE_READERS", "Contracts", "Effect", "Entry", "Field", "WholeReader", "verdict"]
