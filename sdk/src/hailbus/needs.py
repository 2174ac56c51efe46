"""Consumer-driven contracts: what consumers need of events, as files that the provider's CI verifies.

A need says which fields of an event a consumer reads, by the part of the JSON Schema that it relies on, and gives an
example. The provider may change everything else. `hailbus.testing` records needs in the consumer's own tests.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hailbus.catalogue import Catalogue
from hailbus.codec import decode_value
from hailbus.compatibility import fields_of, unreadable
from hailbus.contract import Contract, Finding, contract_of
from hailbus.errors import ConfigurationError, ContractError
from hailbus.event import Event, event_info

__all__ = ["Need", "broken_by", "merged", "need_of", "needed_part", "pact_files", "read_needs", "unmet", "write_need"]

Schema = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one consumer needs of one version of one event.

    Attributes:
        consumer: Its name.
        type: Of the event.
        version: Of the type.
        fields: Paths that it reads, sorted: `ride_id`, `pickup.lat`, `stops[].name`.
        schema: The part of the event's JSON Schema that speaks of these fields.
        example: A payload that the consumer was tested with.
        tests: What recorded it.
    """

    consumer: str
    type: str
    version: int
    fields: tuple[str, ...]
    schema: Schema
    example: Any  # Any: JSON
    tests: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Its file inside a folder of needs."""
        return Path(self.consumer) / f"{self.type}.v{self.version}.json"

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "consumer": self.consumer,
            "type": self.type,
            "version": self.version,
            "fields": list(self.fields),
            "tests": list(self.tests),
            "schema": dict(self.schema),
            "example": self.example,
        }


def need_of(event: Event, *, consumer: str, fields: Collection[str], test: str = "") -> Need:
    """The need of a consumer that reads these fields of an event like this.

    Raises:
        ConfigurationError: The event has no such field.
    """
    info = event_info(event)
    schema = contract_of(type(event)).schema
    known = fields_of(schema)
    if unknown := sorted(path for path in fields if path not in known):
        message = f"{info.type} v{info.version} has no field {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        raise ConfigurationError(message)
    return Need(
        consumer=consumer,
        type=info.type,
        version=info.version,
        fields=tuple(sorted(fields)),
        schema=needed_part(schema, fields),
        example=json.loads(event.model_dump_json()),
        tests=(test,) if test else (),
    )


def merged(one: Need, other: Need) -> Need:
    """Two needs of one consumer and event as one; the first one's example and types stay."""
    fields = tuple(sorted({*one.fields, *other.fields}))
    return replace(
        one,
        fields=fields,
        schema=_united(one.schema, other.schema),
        tests=tuple(sorted({*one.tests, *other.tests})),
    )


def _united(one: Schema, other: Schema) -> dict[str, Any]:
    whole = {**other, **one}
    if "properties" in one and "properties" in other:
        properties = {
            name: _united(one["properties"].get(name, {}), other["properties"].get(name, {}))
            for name in sorted({*one["properties"], *other["properties"]})
        }
        whole["properties"] = properties
        whole["required"] = sorted({*one.get("required", ()), *other.get("required", ())})
    if isinstance(one.get("items"), dict) and isinstance(other.get("items"), dict):
        whole["items"] = _united(one["items"], other["items"])
    if "anyOf" in one and "anyOf" in other and len(one["anyOf"]) == len(other["anyOf"]):
        whole["anyOf"] = [_united(a, b) for a, b in zip(one["anyOf"], other["anyOf"], strict=True)]
    return whole


def needed_part(schema: Schema, fields: Iterable[str]) -> dict[str, Any]:
    """The part of an event's schema that speaks of some fields, its references put in place."""
    wanted: dict[str, Any] = {}
    for path in fields:
        node = wanted
        for step in path.replace("[]", ".[]").split("."):
            node = node.setdefault(step, {})
    definitions = schema.get("$defs", {})

    def part(node: Schema, inner: Mapping[str, Any], depth: int) -> dict[str, Any]:
        for _ in range(20):
            if "$ref" not in node:
                break
            node = definitions.get(str(node["$ref"]).rsplit("/", 1)[-1], {})
        if depth > 20:
            return {}  # a recursive model needed whole: its first rounds are enough
        if "anyOf" in node:
            return {"anyOf": [part(choice, inner, depth + 1) for choice in node["anyOf"]]}
        if "oneOf" in node:
            return {"anyOf": [part(choice, inner, depth + 1) for choice in node["oneOf"]]}
        kept = {k: v for k, v in node.items() if k not in _REMARKS and k not in {"properties", "required", "items"}}
        if "properties" in node:
            # A field that is needed without saying which of its fields is needed whole.
            names = [name for name in node["properties"] if not inner or name in inner]
            kept["properties"] = {n: part(node["properties"][n], inner.get(n, {}), depth + 1) for n in names}
            kept["required"] = [name for name in node.get("required", ()) if name in names]
            kept.pop("additionalProperties", None)
        if isinstance(node.get("items"), dict):
            kept["items"] = part(node["items"], inner.get("[]", {}), depth + 1)
        return kept

    return part(schema, wanted, 0)


_REMARKS = frozenset({"title", "description", "default", "examples", "$defs", "discriminator"})


# ------------------------------------------------------------------------------------------------ verifying


def broken_by(needs: Iterable[Need], proposed: Contract) -> list[Finding]:
    """The needs that a contract, for example a proposed one, does not meet.

    Args:
        needs: Of any consumers and events. Needs of other events, or of other versions, are ignored.
        proposed: The contract as it would be published.

    Returns:
        One breaking finding for each field that a consumer needs and would no longer get.
    """
    return [
        Finding(
            contract=proposed.name,
            path=difference.path,
            is_breaking=True,
            sentence=f"{need.consumer} needs this field: {difference.sentence}",
            pointer=difference.pointer,
        )
        for need in needs
        if (need.type, need.version) == (proposed.type, proposed.version)
        for difference in unreadable(need.schema, proposed.schema, guesses_renames=False)
    ]


def unmet(needs: Iterable[Need], catalogue: Catalogue) -> list[Finding]:
    """The needs that the events of a catalogue do not meet.

    Besides the contract, the examples are checked: each is an event that the catalogue can read.
    """
    found: list[Finding] = []
    for need in needs:
        name = f"{need.type} v{need.version}"
        try:
            cls = catalogue.lookup(need.type, need.version)
        except ContractError:
            sentence = f"{need.consumer} needs it, and nobody publishes it any more"
            found.append(Finding(contract=name, path="", is_breaking=True, sentence=sentence))
            continue
        found += broken_by([need], contract_of(cls))
        try:
            decode_value(cls, json.dumps(need.example).encode())
        except ContractError as error:
            sentence = f"{need.consumer} was tested with an example that is no such event any more: {error}"
            found.append(Finding(contract=name, path="", is_breaking=True, sentence=sentence))
    return found


# ------------------------------------------------------------------------------------------------ on disk


def write_need(folder: Path, need: Need) -> Path:
    """Write a need to `<consumer>/<type>.v<N>.json`; the file."""
    path = folder / need.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(need.as_json(), indent=2, ensure_ascii=False) + "\n")
    return path


def read_needs(folder: Path) -> list[Need]:
    """The needs in a folder, of all consumers.

    Raises:
        ConfigurationError: There is no such folder, or a file in it is no need.
    """
    if not folder.is_dir():
        message = f"there is no folder {folder}; consumers' tests write it: pytest --record-needs"
        raise ConfigurationError(message)
    return [read_need(path) for path in sorted(folder.glob("*/*.json"))]


def read_need(path: Path) -> Need:
    """One need.

    Raises:
        ConfigurationError: The file is none.
    """
    try:
        document = json.loads(path.read_text())
        return Need(
            consumer=document["consumer"],
            type=document["type"],
            version=int(document["version"]),
            fields=tuple(document["fields"]),
            schema=document["schema"],
            example=document["example"],
            tests=tuple(document.get("tests", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path} is no consumer's need: {error!r}; delete it and run pytest --record-needs"
        raise ConfigurationError(message) from error


# ------------------------------------------------------------------------------------------------ Pact


def pact_files(
    needs: Sequence[Need], *, provider: str, specification: Literal["3", "4"] = "4"
) -> dict[str, dict[str, Any]]:
    """Pact message files by name, one per consumer, for Pact's own tools and brokers."""
    files: dict[str, dict[str, Any]] = {}
    for consumer in sorted({need.consumer for need in needs}):
        own = [need for need in needs if need.consumer == consumer]
        messages = [_message_3(need) if specification == "3" else _message_4(need) for need in own]
        files[f"{consumer}-{provider}.json"] = {
            "consumer": {"name": consumer},
            "provider": {"name": provider},
            "messages" if specification == "3" else "interactions": messages,
            "metadata": {"pactSpecification": {"version": "3.0.0" if specification == "3" else "4.0"}},
        }
    return files


def _description(need: Need) -> str:
    return f"{need.type} v{need.version}"


def _metadata(need: Need) -> dict[str, str]:
    return {
        "contentType": "application/json",
        "ce_type": need.type,
        "ce_dataschema": f"hailbus:{need.type}/v{need.version}",
    }


def _message_3(need: Need) -> dict[str, Any]:
    return {
        "description": _description(need),
        "contents": _needed_values(need),
        "matchingRules": {"body": _matchers(need)},
        "metaData": _metadata(need),
    }


def _message_4(need: Need) -> dict[str, Any]:
    return {
        "type": "Asynchronous/Messages",
        "description": _description(need),
        "pending": False,
        "contents": {"content": _needed_values(need), "contentType": "application/json", "encoded": False},
        "matchingRules": {"body": _matchers(need)},
        "metadata": _metadata(need),
    }


def _needed_values(need: Need) -> Any:  # Any: JSON
    def part(value: Any, schema: Schema) -> Any:
        for choice in schema.get("anyOf", ()):
            if isinstance(value, dict) and "properties" in choice:
                return part(value, choice)
        if isinstance(value, dict) and "properties" in schema:
            return {name: part(value[name], inner) for name, inner in schema["properties"].items() if name in value}
        if isinstance(value, list) and isinstance(schema.get("items"), dict):
            return [part(item, schema["items"]) for item in value]
        return value

    return part(need.example, need.schema)


def _matchers(need: Need) -> dict[str, Any]:
    """Values may differ from the example, types may not; lists may have any length from one up."""
    rules: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if name.isidentifier() else f"{path}['{name}']")
        elif isinstance(value, list):
            rules[path] = {"combine": "AND", "matchers": [{"match": "type", "min": min(len(value), 1)}]}
            if value:
                walk(value[0], f"{path}[*]")
        else:
            kind = {int: "number", float: "number", bool: "boolean"}.get(type(value), "type")
            rules[path] = {"combine": "AND", "matchers": [{"match": kind}]}

    walk(_needed_values(need), "$")
    return rules
