"""Whether readers of one JSON Schema can read what writers of another may write, and why not.

One algorithm answers both questions: *backward* is the new schema reading old data, *forward* the old one reading new
data. A reader accepts a field that is absent when it has a default for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

__all__ = ["Difference", "Level", "Policy", "breaks", "bundled", "fields_of", "type_text", "unreadable"]

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


class Policy(StrEnum):
    """What an open model (`additionalProperties` absent or true) says about fields that it does not name.

    `STRICT`: it may write anything under such a name, so naming it later narrows. This is what the keywords mean.
    `LENIENT`: it does not write them. This is what the models of one code base do, and the rule of this SDK.
    """

    STRICT = "STRICT"
    LENIENT = "LENIENT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One reason why a reader cannot read everything that a writer may write.

    Attributes:
        path: The field, for example `pickup.lat`; empty for the whole value.
        pointer: The place in the reader's schema, for example `#/properties/pickup/properties/lat`.
        sentence: What is written and what is expected.
    """

    path: str
    pointer: str
    sentence: str


def unreadable(
    reader: Schema | bool,
    writer: Schema | bool,
    *,
    policy: Policy = Policy.LENIENT,
    formats: bool = True,
    guesses_renames: bool = True,
) -> list[Difference]:
    """Why a reader cannot read everything that a writer may write; nothing when it can.

    Args:
        reader: Schema document that the reader uses. Its references point into itself; see `bundled`.
        writer: Schema document that the writer uses.
        policy: About fields that an open model does not name.
        formats: Whether readers check `format`, as pydantic does and JSON Schema validators do not.
        guesses_renames: Whether a missing field may be one that the reader does not know. Not so for a reader that
            names only the fields it uses.
    """
    walk = _Walk(_Side(reader, is_reader=True), _Side(writer), policy, formats, guesses_renames)
    found = walk.reads(_plain(reader), _plain(writer), _Place(), frozenset())
    return list(dict.fromkeys(found))


def breaks(
    new: Schema | bool,
    history: Sequence[Schema | bool],
    *,
    level: Level,
    policy: Policy = Policy.LENIENT,
    formats: bool = True,
) -> list[Difference]:
    """Why a level forbids a new schema after those of a history, oldest first; nothing when it allows it."""
    found: list[Difference] = []
    for old in history if level.is_transitive else history[-1:]:
        if level.checks_backward:
            found += [
                replace(difference, sentence=f"the new schema cannot read old data: {difference.sentence}")
                for difference in unreadable(new, old, policy=policy, formats=formats)
            ]
        if level.checks_forward:
            found += [
                replace(difference, sentence=f"old schemas cannot read new data: {difference.sentence}")
                for difference in unreadable(old, new, policy=policy, formats=formats)
            ]
    return list(dict.fromkeys(found))


def fields_of(document: Schema) -> set[str]:
    """Paths of all fields, through references; of a recursive model the first rounds."""
    side = _Side(document)
    found: set[str] = set()

    def walk(schema: Schema, path: str, depth: int) -> None:
        schema = side.resolved(schema)
        if depth > 6:
            return
        for name, inner in schema.get("properties", {}).items():
            found.add(_join(path, name))
            walk(_plain(inner), _join(path, name), depth + 1)
        for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            walk(_plain(choice), path, depth + 1)
        if isinstance(schema.get("items"), Mapping):
            walk(schema["items"], f"{path}[]", depth + 1)

    walk(document, "", 0)
    return found


def type_text(schema: Schema) -> str:
    """A schema in few words: `string (date-time)`, `list of Money | null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(type_text(_plain(choice)) for choice in choices)
    if schema.get("type") == "array":
        return f"list of {type_text(_plain(schema.get('items', {})))}"
    return _kind(schema)


def bundled(document: Schema | bool, others: Mapping[str, Schema | bool]) -> Schema | bool:
    """A document with all documents that it refers to by name inside it, every reference pointing into itself.

    Args:
        document: A schema whose `$ref` may name other documents: `money.json`, `money.json#/$defs/Currency`.
        others: These documents by the name in the reference.
    """
    if isinstance(document, bool) or not others:
        return document

    def rewritten(node: Any, base: str) -> Any:  # Any: JSON
        if isinstance(node, list):
            return [rewritten(item, base) for item in node]
        if not isinstance(node, Mapping):
            return node
        done = {name: rewritten(value, base) for name, value in node.items() if name != "$ref"}
        if isinstance(reference := node.get("$ref"), str):
            name, _, fragment = reference.partition("#")
            if name in others:
                done["$ref"] = f"#/$defs/{_escaped(name)}{fragment}"
            elif not name:
                done["$ref"] = f"#{base}{fragment}"
            else:
                done["$ref"] = reference
        return done

    whole: dict[str, Any] = rewritten(document, "")
    inside = {name: rewritten(other, f"/$defs/{_escaped(name)}") for name, other in others.items()}
    return {**whole, "$defs": {**whole.get("$defs", {}), **inside}}


# ------------------------------------------------------------------------------------------------ one direction


@dataclass(frozen=True, slots=True)
class _Place:
    path: str = ""
    pointer: str = "#"

    def property(self, name: str) -> _Place:
        return _Place(_join(self.path, name), f"{self.pointer}/properties/{_escaped(name)}")

    def step(self, shown: str, *keywords: object) -> _Place:
        return _Place(self.path + shown, "/".join([self.pointer, *map(str, keywords)]))

    def because(self, sentence: str) -> Difference:
        return Difference(path=self.path, pointer=self.pointer, sentence=sentence)


class _Side:
    """A schema document; on the reading side fields with defaults may be absent."""

    def __init__(self, document: Schema | bool, *, is_reader: bool = False) -> None:
        self._document = _plain(document)
        self.is_reader = is_reader

    def resolved(self, schema: Schema) -> Schema:
        """The schema behind references, its `allOf` merged into one."""
        for _ in range(50):
            if "$ref" not in schema:
                break
            rest = {name: value for name, value in schema.items() if name in {"default", "description", "title"}}
            schema = {**self._at(str(schema["$ref"])), **rest}
        if "allOf" in schema:
            merged: dict[str, Any] = {}
            for part in (*(_plain(one) for one in schema["allOf"]), {k: v for k, v in schema.items() if k != "allOf"}):
                for name, value in self.resolved(part).items():
                    if name == "properties":
                        merged[name] = {**merged.get(name, {}), **value}
                    elif name == "required":
                        merged[name] = sorted({*merged.get(name, ()), *value})
                    else:
                        merged[name] = value
            return merged
        return schema

    def _at(self, reference: str) -> Schema:
        node: Any = self._document  # Any: JSON
        for part in reference.partition("#")[2].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(name, {})
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                return {}
        return _plain(node) if isinstance(node, (bool, Mapping)) else {}

    def required(self, schema: Schema) -> frozenset[str]:
        """Fields that must be there: for a reader those without default, for a writer those it always writes."""
        names = frozenset(schema.get("required", ()))
        if not self.is_reader:
            return names
        properties: Schema = schema.get("properties", {})
        return frozenset(name for name in names if "default" not in self.resolved(_plain(properties.get(name, {}))))


# Constraints whose effect on each other is not worked out: unequal ones count as narrower.
_OPAQUE = (
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "not",
    "if",
)
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


@dataclass(frozen=True, slots=True)
class _Walk:
    reader_side: _Side
    writer_side: _Side
    policy: Policy
    formats: bool
    guesses_renames: bool

    def reads(
        self, reader: Schema, writer: Schema, place: _Place, seen: frozenset[tuple[object, object]]
    ) -> Iterator[Difference]:
        if "$ref" in reader or "$ref" in writer:
            pair = (reader.get("$ref", id(reader)), writer.get("$ref", id(writer)))
            if pair in seen:  # a recursive model: this pair is being compared further up
                return
            seen |= {pair}
        reader, writer = self.reader_side.resolved(reader), self.writer_side.resolved(writer)
        if not _constraints(reader):
            return
        if writer.get("not") == {}:  # nothing is written
            return
        if reader.get("not") == {}:
            yield place.because(f"{_kind(writer)} may be written, nothing is expected")
            return
        writer_choices = writer.get("anyOf") or writer.get("oneOf")
        if writer_choices:
            for choice in writer_choices:
                yield from self.reads(reader, _plain(choice), place, seen)
            return
        reader_choices = reader.get("anyOf") or reader.get("oneOf")
        if reader_choices:
            keyword = "anyOf" if reader.get("anyOf") else "oneOf"
            attempts = [
                list(self.reads(_plain(choice), writer, place.step("", keyword, index), seen))
                for index, choice in enumerate(reader_choices)
            ]
            if all(attempts):
                best = min(attempts, key=len)
                kinds = " or ".join(_kind(self.reader_side.resolved(_plain(choice))) for choice in reader_choices)
                if len(best) > 1:
                    yield place.because(f"{_kind(writer)} is written, {kinds} is expected")
                else:
                    yield best[0]
            return
        reader_values, writer_values = _values(reader), _values(writer)
        if reader_values is not None:
            if writer_values is None:
                yield place.because(f"any {_kind(writer)} may be written, only {_listed(reader_values)} is expected")
            elif extra := [value for value in writer_values if value not in reader_values]:
                yield place.because(f"{_listed(extra)} may be written and is not expected")
            return
        reader_types, writer_types = _types(reader), _types(writer)
        if reader_types and not all(_fits(kind, reader_types) for kind in writer_types or {"anything"}):
            yield place.because(f"{_kind(writer)} is written, {_kind(reader)} is expected")
            return
        if self.formats and reader.get("format") not in {None, writer.get("format")}:
            yield place.because(f"{_kind(writer)} is written, {_kind(reader)} is expected")
            return
        yield from self._bounds(reader, writer, writer_types, place)
        if not writer_types or "object" in writer_types:
            yield from self._objects(reader, writer, place, seen)
        if not writer_types or "array" in writer_types:
            yield from self._arrays(reader, writer, place, seen)

    def _bounds(self, reader: Schema, writer: Schema, writer_types: set[str], place: _Place) -> Iterator[Difference]:
        for name in _LEAST:
            if name in reader and _applies(name, writer_types) and writer.get(name, -math.inf) < reader[name]:
                yield place.because(f"values below the {name} {reader[name]} may be written")
        for name in _MOST:
            if name in reader and _applies(name, writer_types) and writer.get(name, math.inf) > reader[name]:
                yield place.because(f"values above the {name} {reader[name]} may be written")
        if "pattern" in reader and reader["pattern"] != writer.get("pattern") and _applies("pattern", writer_types):
            yield place.because(f"values other than of the pattern {reader['pattern']!r} may be written")
        if "multipleOf" in reader and _applies("multipleOf", writer_types):
            step = writer.get("multipleOf")
            if step is None or not math.isclose(math.remainder(step, reader["multipleOf"]), 0, abs_tol=1e-12):
                yield place.because(f"values that are no multiple of {reader['multipleOf']} may be written")
        if reader.get("uniqueItems") and not writer.get("uniqueItems") and _applies("uniqueItems", writer_types):
            yield place.because("repeated items may be written")
        for name in _OPAQUE:
            if name in reader and reader[name] not in (True, {}) and reader[name] != writer.get(name):
                yield place.because(f"the rule {name!r} differs, so some of what is written may be refused")

    def _objects(
        self, reader: Schema, writer: Schema, place: _Place, seen: frozenset[tuple[object, object]]
    ) -> Iterator[Difference]:
        expected: Schema = reader.get("properties", {})
        written: Schema = writer.get("properties", {})
        always = self.writer_side.required(writer)
        missing = self.reader_side.required(reader) - always
        for name in sorted(missing):
            gone = [other for other in written if other not in expected] if self.guesses_renames else []
            hint = f"; was it renamed to {_listed(gone)}?" if gone and name not in written else ""
            word = "may be left out" if name in written else "is not written"
            yield place.property(name).because(f"it {word}, and is expected without a default{hint}")
        for name in sorted(expected.keys() & written.keys()):
            yield from self.reads(_plain(expected[name]), _plain(written[name]), place.property(name), seen)
        more_written, more_expected = _rest(writer), _rest(reader)
        if self.policy is Policy.STRICT and more_written.get("not") != {}:
            for name in sorted(expected.keys() - written.keys() - missing):
                if list(self.reads(_plain(expected[name]), more_written, place.property(name), seen)):
                    yield place.property(name).because(
                        f"the writer's model is open, so it may write anything under this name, and "
                        f"{_kind(self.reader_side.resolved(_plain(expected[name])))} is expected; "
                        "close the model (additionalProperties: false) or use the policy LENIENT"
                    )
        for name in sorted(written.keys() - expected.keys()):
            if more_expected.get("not") == {}:
                yield place.property(name).because("it is written, and the reader forbids unknown fields")
            elif _constraints(more_expected):
                yield from self.reads(more_expected, _plain(written[name]), place.property(name), seen)
        unnamed = place.step(".*" if place.path else "*", "additionalProperties")
        if more_expected.get("not") == {}:
            if self.policy is Policy.STRICT and more_written.get("not") != {}:
                yield unnamed.because("unknown fields may be written, and the reader forbids them")
        elif _constraints(more_expected) and ("additionalProperties" in writer or self.policy is Policy.STRICT):
            yield from self.reads(more_expected, more_written, unnamed, seen)

    def _arrays(
        self, reader: Schema, writer: Schema, place: _Place, seen: frozenset[tuple[object, object]]
    ) -> Iterator[Difference]:
        expected, written = _tuple(reader), _tuple(writer)
        more_expected, more_written = _more_items(reader), _more_items(writer)
        for index in range(max(len(expected), len(written))):
            one = expected[index] if index < len(expected) else more_expected
            other = written[index] if index < len(written) else more_written
            yield from self.reads(one, other, place.step(f"[{index}]", "prefixItems", index), seen)
        yield from self.reads(more_expected, more_written, place.step("[]", "items"), seen)


# ------------------------------------------------------------------------------------------------ keywords


def _plain(schema: Any) -> Schema:  # Any: JSON
    """`true` and `false` as objects: anything, nothing."""
    if schema is True:
        return {}
    return {"not": {}} if schema is False else schema


_REMARKS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "example"}
)


def _constraints(schema: Schema) -> bool:
    return any(not (name in _REMARKS or name.startswith("$")) for name in schema)


def _rest(schema: Schema) -> Schema:
    return _plain(schema.get("additionalProperties", True))


def _tuple(schema: Schema) -> list[Schema]:
    found = schema.get("prefixItems")
    if found is None and isinstance(schema.get("items"), list):  # before draft 2020-12
        found = schema["items"]
    return [_plain(one) for one in found or ()]


def _more_items(schema: Schema) -> Schema:
    if isinstance(schema.get("items"), list):
        return _plain(schema.get("additionalItems", True))
    return _plain(schema.get("items", True))


def _types(schema: Schema) -> set[str]:
    kind = schema.get("type")
    if kind is not None:
        return set(kind) if isinstance(kind, list) else {kind}
    return {_json_type(value) for value in _values(schema) or ()}


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _fits(kind: str, expected: set[str]) -> bool:
    return kind in expected or (kind == "integer" and "number" in expected)


def _applies(keyword: str, types: set[str]) -> bool:
    """Whether a constraint can bite on values of these types."""
    if keyword.endswith(("Length", "pattern")):
        about = {"string"}
    elif keyword.endswith("Items"):
        about = {"array"}
    elif keyword.endswith("Properties"):
        about = {"object"}
    else:
        about = {"number", "integer"}
    return not types or bool(types & about)


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _kind(schema: Schema) -> str:
    values = _values(schema)
    if values is not None:
        return _listed(values)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(type_text(_plain(choice)) for choice in choices)
    kinds = "/".join(sorted(_types(schema))) or "anything"
    return f"{kinds} ({schema['format']})" if "format" in schema else kinds


def _listed(values: Iterable[Any]) -> str:
    return ", ".join("null" if value is None else str(value) for value in values)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
