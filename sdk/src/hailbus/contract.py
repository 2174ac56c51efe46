"""Contracts: the schemas of published events, and whether a change breaks readers or writers.

The rule of this SDK, stated because strict JSON Schema rules would refuse the plainest change: readers ignore fields
that they do not know, so adding a field with a default is compatible both ways. Never rename, never retype; a break is
a new version of the type, with an upcaster.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hailbus.catalogue import Catalogue
from hailbus.codec import decode_value
from hailbus.errors import ConfigurationError, InvalidPayloadError
from hailbus.event import Event, event_info

__all__ = [
    "Contract",
    "Finding",
    "Level",
    "changes",
    "compare",
    "contract_of",
    "examples_of",
    "read_contracts",
    "read_git",
    "unreadable_examples",
    "write_contracts",
]

Schema = Mapping[str, Any]  # Any: JSON


class Level(StrEnum):
    """The seven compatibility levels of schema registries."""

    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    NONE = "NONE"

    @property
    def is_transitive(self) -> bool:
        """Whether every earlier schema counts, not just the last."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def checks_backward(self) -> bool:
        """Whether the new schema must read old data."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def checks_forward(self) -> bool:
        """Whether old schemas must read new data."""
        return self.value.startswith(("FORWARD", "FULL"))


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
    """

    contract: str
    path: str
    is_breaking: bool
    sentence: str

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
        sentence = f"moved from topic {old.topic} to {new.topic}; whoever reads the old topic misses it"
        found.append(Finding(contract=new.name, path="", is_breaking=True, sentence=sentence))
    if old.key != new.key:
        sentence = f"the key changed from {old.key} to {new.key}; events of one key move and lose their order"
        found.append(Finding(contract=new.name, path="", is_breaking=True, sentence=sentence))
    # A reader with the class takes what validation takes: fields with a default may be absent.
    backward = dict(_reads(_Side(new.schema, is_reader=True), _Side(old.schema), new.schema, old.schema, ""))
    forward = dict(_reads(_Side(old.schema, is_reader=True), _Side(new.schema), old.schema, new.schema, ""))
    for path, sentence in backward.items():
        text = f"today's readers fail on events that were written before: {sentence}"
        found.append(Finding(contract=new.name, path=path, is_breaking=level.checks_backward, sentence=text))
    for path, sentence in forward.items():
        text = f"readers that are not upgraded yet fail on new events: {sentence}"
        found.append(Finding(contract=new.name, path=path, is_breaking=level.checks_forward, sentence=text))
    if not backward and not forward:
        before, after = _fields(old.schema), _fields(new.schema)
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


class _Side:
    """A schema document with its definitions; on the reading side fields with defaults may be absent."""

    def __init__(self, document: Schema, *, is_reader: bool = False) -> None:
        self._definitions: Schema = document.get("$defs", document.get("definitions", {}))
        self.is_reader = is_reader

    def resolved(self, schema: Schema) -> Schema:
        """The schema behind a reference."""
        seen = 0
        while "$ref" in schema and seen < 50:
            schema = self._definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1], {})
            seen += 1
        if "allOf" in schema and len(schema["allOf"]) == 1:
            rest = {name: value for name, value in schema.items() if name != "allOf"}
            return {**self.resolved(schema["allOf"][0]), **rest}
        return schema

    def required(self, schema: Schema) -> frozenset[str]:
        """Fields that must be there: for a reader those without default, for a writer those it always writes."""
        names = frozenset(schema.get("required", ()))
        if not self.is_reader:
            return names
        properties: Schema = schema.get("properties", {})
        return frozenset(name for name in names if "default" not in self.resolved_property(properties.get(name, {})))

    def resolved_property(self, schema: Schema) -> Schema:
        """A property with the default that may stand beside a reference."""
        return {**self.resolved(schema), **({"default": schema["default"]} if "default" in schema else {})}


Trail = Iterable[tuple[str, str]]


def _reads(reader_side: _Side, writer_side: _Side, reader: Schema, writer: Schema, path: str, depth: int = 0) -> Trail:
    """Why a reader cannot read everything that a writer may write: pairs of path and sentence; nothing when it can."""
    reader, writer = reader_side.resolved(reader), writer_side.resolved(writer)
    if depth > 30 or reader == writer == {}:  # a recursive model: its first rounds have been compared
        return
    writer_choices = writer.get("anyOf") or writer.get("oneOf")
    if writer_choices:
        for choice in writer_choices:
            yield from _reads(reader_side, writer_side, reader, choice, path, depth + 1)
        return
    reader_choices = reader.get("anyOf") or reader.get("oneOf")
    if reader_choices:
        attempts = [list(_reads(reader_side, writer_side, c, writer, path, depth + 1)) for c in reader_choices]
        if all(attempts):
            best = min(attempts, key=len)
            kinds = " or ".join(_kind(reader_side.resolved(choice)) for choice in reader_choices)
            yield (path, f"{_kind(writer)} is written, {kinds} is expected") if len(best) > 1 else best[0]
        return
    reader_values, writer_values = _values(reader), _values(writer)
    if reader_values is not None:
        if writer_values is None:
            yield path, f"any {_kind(writer)} may be written, only {_listed(reader_values)} is expected"
        elif extra := [value for value in writer_values if value not in reader_values]:
            yield path, f"{_listed(extra)} may be written and is not expected"
        return
    reader_types, writer_types = _types(reader), _types(writer)
    if reader_types and not all(_fits(kind, reader_types) for kind in writer_types or {"anything"}):
        yield path, f"{_kind(writer)} is written, {_kind(reader)} is expected"
        return
    if reader.get("format") != writer.get("format") and reader.get("format") is not None:
        yield path, f"{_kind(writer)} is written, {_kind(reader)} is expected"
        return
    yield from _bounds(reader, writer, path)
    if "properties" in reader or "properties" in writer:
        yield from _object_reads(reader_side, writer_side, reader, writer, path, depth)
    elif isinstance(reader.get("additionalProperties"), Mapping):
        inner = writer.get("additionalProperties")
        inner = inner if isinstance(inner, Mapping) else {}
        yield from _reads(reader_side, writer_side, reader["additionalProperties"], inner, _join(path, "*"), depth + 1)
    if "items" in reader and isinstance(reader["items"], Mapping):
        yield from _reads(reader_side, writer_side, reader["items"], writer.get("items", {}), f"{path}[]", depth + 1)
    for index, (one, other) in enumerate(
        zip(reader.get("prefixItems", ()), writer.get("prefixItems", ()), strict=False)
    ):
        yield from _reads(reader_side, writer_side, one, other, f"{path}[{index}]", depth + 1)


def _object_reads(
    reader_side: _Side, writer_side: _Side, reader: Schema, writer: Schema, path: str, depth: int
) -> Trail:
    expected: Schema = reader.get("properties", {})
    written: Schema = writer.get("properties", {})
    always = writer_side.required(writer)
    for name in sorted(reader_side.required(reader) - always):
        gone = [other for other in written if other not in expected]
        hint = f"; was it renamed to {_listed(gone)}?" if gone and name not in written else ""
        word = "may be left out" if name in written else "is not written"
        yield _join(path, name), f"it {word}, and is expected without a default{hint}"
    for name in sorted(expected.keys() & written.keys()):
        yield from _reads(reader_side, writer_side, expected[name], written[name], _join(path, name), depth + 1)
    if reader.get("additionalProperties") is False:
        for name in sorted(written.keys() - expected.keys()):
            yield _join(path, name), "it is written, and the reader forbids unknown fields"


def _bounds(reader: Schema, writer: Schema, path: str) -> Trail:
    for name in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
        if name in reader and writer.get(name, float("-inf")) < reader[name]:
            yield path, f"values below the {name} {reader[name]} may be written"
    for name in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
        if name in reader and writer.get(name, float("inf")) > reader[name]:
            yield path, f"values above the {name} {reader[name]} may be written"
    if "pattern" in reader and reader["pattern"] != writer.get("pattern"):
        yield path, f"values other than of the pattern {reader['pattern']!r} may be written"
    if reader.get("uniqueItems") and not writer.get("uniqueItems"):
        yield path, "repeated items may be written"


def _types(schema: Schema) -> set[str]:
    kind = schema.get("type")
    if kind is None:
        return {"object"} if "properties" in schema else set()
    return set(kind) if isinstance(kind, list) else {kind}


def _fits(kind: str, expected: set[str]) -> bool:
    return kind in expected or (kind == "integer" and "number" in expected)


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _kind(schema: Schema) -> str:
    values = _values(schema)
    if values is not None:
        return _listed(values)
    kinds = "/".join(sorted(_types(schema))) or "anything"
    return f"{kinds} ({schema['format']})" if "format" in schema else kinds


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields(document: Schema) -> set[str]:
    """Paths of all fields, through references, each definition once per path."""
    side = _Side(document)
    found: set[str] = set()

    def walk(schema: Schema, path: str, depth: int) -> None:
        schema = side.resolved(schema)
        if depth > 6:
            return
        for name, inner in schema.get("properties", {}).items():
            found.add(_join(path, name))
            walk(inner, _join(path, name), depth + 1)
        for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            walk(choice, path, depth + 1)
        if isinstance(schema.get("items"), Mapping):
            walk(schema["items"], f"{path}[]", depth + 1)

    walk(document, "", 0)
    return found


# ------------------------------------------------------------------------------------------------ on disk


def write_contracts(catalogue: Catalogue, folder: Path) -> list[Path]:
    """Write `<type>/v<N>.json` for every event; the files written. Files of other versions stay."""
    written = []
    for cls in catalogue:
        contract = contract_of(cls)
        path = folder / contract.type / f"v{contract.version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contract.as_json(), indent=2, ensure_ascii=False, sort_keys=True) + "\n")
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
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", ref, "--", folder], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        message = f"git cannot read {ref}:{folder}: {listed.stderr.strip()}"
        raise ConfigurationError(message)
    found = []
    for name in listed.stdout.splitlines():
        if name.endswith(".json") and Path(name).stem.startswith("v"):
            shown = subprocess.run(["git", "show", f"{ref}:./{name}"], capture_output=True, text=True, check=True)
            found.append(_parsed(shown.stdout, f"{ref}:{name}"))
    if not found:
        message = f"there are no contracts in {ref}:{folder}"
        raise ConfigurationError(message)
    return found


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
