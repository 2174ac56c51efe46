"""Contracts: the schemas of published events, and whether a change breaks readers or writers.

The rule of this SDK, stated because strict JSON Schema rules would refuse the plainest change: readers ignore fields
that they do not know, so adding a field with a default is compatible both ways. Never rename, never retype; a break is
a new version of the type, with an upcaster.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hailbus.catalogue import Catalogue
from hailbus.codec import decode_value
from hailbus.compatibility import Level, fields_of, unreadable
from hailbus.errors import ConfigurationError, InvalidPayloadError
from hailbus.event import Event, event_info

__all__ = [
    "Contract",
    "Finding",
    "Level",
    "changes",
    "changes_since",
    "compare",
    "contract_of",
    "examples_of",
    "holds_contracts",
    "read_contracts",
    "read_git",
    "read_git_history",
    "unreadable_examples",
    "write_contracts",
]

Schema = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One published version of one event type."""

    type: str
    version: int
    topic: str
    key: str | None
    schema: Schema

    @property
    def name(self) -> str:
        """For findings: `ride.requested v1`."""
        return f"{self.type} v{self.version}"

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "type": self.type,
            "version": self.version,
            "topic": self.topic,
            "key": self.key,
            "schema": dict(self.schema),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference.

    Attributes:
        contract: Which event, for example `ride.requested v1`.
        path: Where in it, for example `pickup.lat`.
        is_breaking: Whether the level asked for forbids it.
        sentence: What it means for whom.
        pointer: Where in the reader's schema, for example `#/properties/pickup/properties/lat`.
    """

    contract: str
    path: str
    is_breaking: bool
    sentence: str
    pointer: str = ""

    def __str__(self) -> str:
        place = f" {self.path}" if self.path else ""
        return f"{'BREAKING' if self.is_breaking else 'safe'}: {self.contract}{place}: {self.sentence}"


def contract_of(cls: type[Event]) -> Contract:
    """The contract of an event class, as its writers keep it."""
    info = event_info(cls)
    return Contract(
        type=info.type,
        version=info.version,
        topic=info.topic.name,
        key=info.key_field,
        schema=cls.model_json_schema(mode="serialization"),
    )


# ------------------------------------------------------------------------------------------------ comparing


def compare(old: Contract, new: Contract, *, level: Level = Level.FULL) -> list[Finding]:
    """What changed from one state of a version to another, breaking first."""
    found: list[Finding] = []
    if old.topic != new.topic:
        sentence = f"moved from topic {old.topic} to {new.topic}; readers of the old topic no longer receive it"
        found.append(Finding(contract=new.name, path="", is_breaking=True, sentence=sentence))
    if old.key != new.key:
        sentence = f"the key changed from {old.key} to {new.key}; events of one key move and lose their order"
        found.append(Finding(contract=new.name, path="", is_breaking=True, sentence=sentence))
    backward = unreadable(new.schema, old.schema)
    forward = unreadable(old.schema, new.schema)
    for differences, is_breaking, who in (
        (backward, level.checks_backward, "today's readers fail on events that were written before"),
        (forward, level.checks_forward, "readers that are not upgraded yet fail on new events"),
    ):
        found += [
            Finding(
                contract=new.name,
                path=difference.path,
                is_breaking=is_breaking,
                sentence=f"{who}: {difference.sentence}",
                pointer=difference.pointer,
            )
            for difference in differences
        ]
    if not backward and not forward:
        before, after = fields_of(old.schema), fields_of(new.schema)
        for path in sorted(after - before):
            sentence = "added; old readers ignore it"
            found.append(Finding(contract=new.name, path=path, is_breaking=False, sentence=sentence))
        for path in sorted(before - after):
            sentence = "removed; nobody was bound to have it"
            found.append(Finding(contract=new.name, path=path, is_breaking=False, sentence=sentence))
    return sorted(found, key=lambda finding: (not finding.is_breaking, finding.contract, finding.path))


def changes(old: Sequence[Contract], new: Sequence[Contract], *, level: Level = Level.FULL) -> list[Finding]:
    """What changed from one set of contracts to another, breaking first."""
    before = {(c.type, c.version): c for c in old}
    after = {(c.type, c.version): c for c in new}
    found: list[Finding] = []
    for place, contract in sorted(after.items()):
        if place in before:
            found += compare(before[place], contract, level=level)
        else:
            sentence = "new" if contract.version == 1 else "a new version; readers need its class"
            found.append(Finding(contract=contract.name, path="", is_breaking=False, sentence=sentence))
    for place, contract in sorted(before.items()):
        if place not in after:
            sentence = "its class is gone, while records of it may still be in the topic; keep it, with an upcaster"
            breaking = level is not Level.NONE
            found.append(Finding(contract=contract.name, path="", is_breaking=breaking, sentence=sentence))
    return sorted(found, key=lambda finding: (not finding.is_breaking, finding.contract, finding.path))


def changes_since(
    states: Sequence[Sequence[Contract]], new: Sequence[Contract], *, level: Level = Level.FULL
) -> list[Finding]:
    """What changed from earlier states, oldest first: from the last, and by a transitive level from each of them."""
    found: list[Finding] = []
    for state in states[-1:] if not level.is_transitive else states:
        found += changes(state, new, level=level)
    return sorted(dict.fromkeys(found), key=lambda finding: (not finding.is_breaking, finding.contract, finding.path))


# ------------------------------------------------------------------------------------------------ on disk


def write_contracts(catalogue: Catalogue, folder: Path) -> list[Path]:
    """Write `<type>/v<N>.json` for every event; the files written. Files of other versions stay."""
    written = []
    for cls in catalogue:
        contract = contract_of(cls)
        path = folder / contract.type / f"v{contract.version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contract.as_json(), indent=2, ensure_ascii=False) + "\n")
        written.append(path)
    return sorted(written)


def read_contracts(folder: Path) -> list[Contract]:
    """The contracts in a folder.

    Raises:
        ConfigurationError: There is no such folder, or a file in it is no contract.
    """
    if not folder.is_dir():
        message = f"there is no folder {folder}; `hailbus check MODULE --write {folder}` makes it"
        raise ConfigurationError(message)
    return [_parsed(path.read_text(), str(path)) for path in sorted(folder.glob("*/v*.json"))]


def read_git(ref: str, folder: str) -> list[Contract]:
    """The contracts in a folder as of a git commit, branch or tag.

    Raises:
        ConfigurationError: git does not know the commit or the folder.
    """
    found = [_parsed(text, f"{ref}:{name}") for name, text in _git_files(ref, folder)]
    if not found:
        message = f"there are no contracts in {ref}:{folder}"
        raise ConfigurationError(message)
    return found


def read_git_history(ref: str, folder: str) -> list[list[Contract]]:
    """The contracts in a folder after each commit up to `ref` that touched it, oldest first: all that was ever merged.

    Raises:
        ConfigurationError: git does not know the commit or the folder.
    """
    commits = _git("log", "--reverse", "--format=%H", ref, "--", folder).split()
    states = [[_parsed(text, f"{c[:9]}:{name}") for name, text in _git_files(c, folder)] for c in commits]
    if not any(states):
        message = f"there are no contracts in {ref}:{folder}"
        raise ConfigurationError(message)
    return [state for state in states if state]


def _git_files(ref: str, folder: str) -> Iterator[tuple[str, str]]:
    for name in _git("ls-tree", "-r", "--name-only", ref, "--", folder).splitlines():
        if name.endswith(".json") and Path(name).stem.startswith("v"):
            yield name, _git("show", f"{ref}:./{name}")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"git {' '.join(arguments[:1])} cannot read {' '.join(arguments[1:])}: {done.stderr.strip()}"
        raise ConfigurationError(message)
    return done.stdout


def holds_contracts(folder: Path) -> bool:
    """Whether the files of a folder are contracts; else they are examples."""
    first = next(iter(sorted(folder.glob("*/v*.json"))), None)
    if first is None:
        return True
    try:
        document = json.loads(first.read_text())
    except ValueError:
        return False
    return isinstance(document, dict) and document.keys() >= {"type", "version", "topic", "schema"}


def _parsed(text: str, name: str) -> Contract:
    try:
        document = json.loads(text)
        return Contract(
            type=document["type"],
            version=int(document["version"]),
            topic=document["topic"],
            key=document["key"],
            schema=document["schema"],
        )
    except (ValueError, KeyError, TypeError) as error:
        message = f"{name} is no contract: {error!r}"
        raise ConfigurationError(message) from error


def examples_of(folder: Path, catalogue: Catalogue) -> list[tuple[Path, type[Event]]]:
    """Golden examples `<type>/v<N>.json` (or `v<N>-<anything>.json`) in a folder, with the class for each.

    Raises:
        UnknownEventError, UnsupportedVersionError: An example was published that today's catalogue cannot read.
    """
    found = []
    for path in sorted(folder.glob("*/v*.json")):
        version = path.stem.removeprefix("v").split("-", 1)[0]
        if not version.isdigit():
            message = f"{path} is not called like v1.json or v1-minimal.json"
            raise ConfigurationError(message)
        found.append((path, catalogue.lookup(path.parent.name, int(version))))
    return found


def unreadable_examples(folder: Path, catalogue: Catalogue) -> list[Finding]:
    """Golden examples, every version ever published, that today's classes do not read."""
    found = []
    for path, cls in examples_of(folder, catalogue):
        try:
            decode_value(cls, path.read_bytes())
        except InvalidPayloadError as error:
            info = event_info(cls)
            found.append(
                Finding(
                    contract=f"{info.type} v{info.version}",
                    path="",
                    is_breaking=True,
                    sentence=f"the published example {path} is no longer read: {error.reason}",
                )
            )
    return found
