"""Proposed changes of an event's JSON Schema: each function returns the schema as it would be."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from hailbus.compatibility import type_text
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

Schema = dict[str, Any]  # Any: JSON
TYPES: Final[Mapping[str, Schema]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date-time": {"type": "string", "format": "date-time"},
}
"""What a field can become by its name. Anything else is proposed as a JSON Schema."""
NO_DEFAULT: Final = object()
_MOST_NODES: Final = 2_000
"""Of a schema with its references put in place. Comparing takes time in proportion."""
_DEEPEST: Final = 60


class ProposalError(ValueError):
    """A change that cannot be proposed; the text says why and what to do."""


def inlined(schema: Mapping[str, Any]) -> Schema:
    """Return a copy of a schema in which what a `$ref` refers to is in its place.

    Raises:
        ProposalError: A reference leads nowhere or to itself, or the schema is too large or too deep.
    """
    definitions = schema.get("$defs")
    count = 0

    def copied(node: Any, behind: frozenset[str], depth: int) -> Any:  # Any: JSON
        nonlocal count
        count += 1
        if count > _MOST_NODES or depth > _DEEPEST:
            raise ProposalError(
                f"the schema has more than {_MOST_NODES} parts or is nested more than {_DEEPEST} deep; "
                "judge it with `hailbus check`"
            )
        if isinstance(node, list):
            return [copied(item, behind, depth + 1) for item in node]
        if not isinstance(node, Mapping):
            return node
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference in behind:
                raise ProposalError(f"{reference} refers to itself; judge a recursive schema with `hailbus check`")
            rest = {name: value for name, value in node.items() if name != "$ref"}
            return copied({**_target(definitions, reference), **rest}, behind | {reference}, depth + 1)
        return {name: copied(value, behind, depth + 1) for name, value in node.items() if name != "$defs"}

    found: Schema = copied(schema, frozenset(), 0)
    return found


def _target(definitions: object, reference: str) -> Mapping[str, Any]:
    name = reference.removeprefix("#/$defs/")
    found = definitions.get(name) if isinstance(definitions, Mapping) and name != reference else None
    if not isinstance(found, Mapping):
        raise ProposalError(f"{reference!r} refers to nothing; define it in $defs and refer to it as #/$defs/NAME")
    return found


def fields(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield the path, schema and presence of each field of an inlined schema, in the order of declaration.

    Paths are those of recorded needs: `pickup`, `pickup.lat`, `stops[].name`. A field is present when each writer
    writes it.
    """
    present = frozenset(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        if isinstance(field, dict):
            yield f"{prefix}{name}", field, name in present
            yield from _inside(field, f"{prefix}{name}")


def _inside(field: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    for choice in _choices(field):
        yield from fields(choice, f"{path}.")
        if isinstance(choice.get("items"), dict):
            yield from _inside(choice["items"], f"{path}[]")


def _choices(field: Schema) -> list[Schema]:
    """Return the field itself and the alternatives that it has."""
    return [field, *(one for one in (*field.get("anyOf", ()), *field.get("oneOf", ())) if isinstance(one, dict))]


def remove(schema: Mapping[str, Any], path: str) -> Schema:
    """Return the schema without a field.

    Raises:
        ProposalError: There is no such field.
    """
    changed = inlined(schema)
    owner, name = _owner(changed, path)
    del owner["properties"][name]
    owner["required"] = [key for key in owner.get("required", ()) if key != name]
    return changed


def rename(schema: Mapping[str, Any], path: str, to: str) -> Schema:
    """Return the schema with a field under another name.

    Raises:
        ProposalError: There is no such field, or one of the new name.
    """
    changed = inlined(schema)
    owner, name = _owner(changed, path)
    if to in owner["properties"]:
        raise ProposalError(f"there is a field {to!r} already; choose another name")
    owner["properties"] = {to if key == name else key: field for key, field in owner["properties"].items()}
    owner["required"] = [to if key == name else key for key in owner.get("required", ())]
    return changed


def require(schema: Mapping[str, Any], path: str) -> Schema:
    """Return the schema with a field that has no default.

    Raises:
        ProposalError: There is no such field, or it is required already.
    """
    changed = inlined(schema)
    owner, name = _owner(changed, path)
    field = owner["properties"][name]
    if "default" not in field and name in owner.get("required", ()):
        raise ProposalError(f"{path} is required already")
    field.pop("default", None)
    _write_always(owner, name)
    return changed


def make_optional(schema: Mapping[str, Any], path: str) -> Schema:
    """Return the schema with a field that may be null and is null by default, as `T | None = None` is.

    Raises:
        ProposalError: There is no such field, or it is optional already.
    """
    changed = inlined(schema)
    owner, name = _owner(changed, path)
    field = owner["properties"][name]
    if "default" in field and _allows_null(field):
        raise ProposalError(f"{path} is optional already")
    owner["properties"][name] = {**_nullable(field), "default": None}
    return changed


def retype(schema: Mapping[str, Any], path: str, type: str, *, is_nullable: bool) -> Schema:
    """Return the schema with a field of another type. A default that the new type does not have is dropped.

    Raises:
        ProposalError: There is no such field, or it has this type already.
    """
    changed = inlined(schema)
    owner, name = _owner(changed, path)
    before, after = owner["properties"][name], _of_type(type, is_nullable=is_nullable)
    if type_text(before) == type_text(after):
        raise ProposalError(f"{path} is {type_text(after)} already; choose another type")
    if "default" in before and _has_value(type, before["default"], is_nullable=is_nullable):
        after["default"] = before["default"]
    owner["properties"][name] = after
    return changed


def add(schema: Mapping[str, Any], path: str, type: str, *, is_nullable: bool, default: object = NO_DEFAULT) -> Schema:
    """Return the schema with one more field.

    Raises:
        ProposalError: There is such a field, nothing that could hold it, or the default is not of the type.
    """
    changed = inlined(schema)
    *steps, name = _steps(path)
    owner = next(_objects(changed, steps), None)
    if owner is None:
        raise ProposalError(f"nothing with fields is at {path.rpartition('.')[0]!r}, so it cannot get {name!r}")
    if name in owner["properties"]:
        raise ProposalError(f"there is a field {path!r} already; choose another name")
    field = _of_type(type, is_nullable=is_nullable)
    if default is not NO_DEFAULT:
        if not _has_value(type, default, is_nullable=is_nullable):
            raise ProposalError(f"the default {default!r} is no {type_text(field)}; give a value of the type")
        field["default"] = default
    owner["properties"][name] = field
    _write_always(owner, name)  # a writer writes its defaults, too
    return changed


def edited(schema: Mapping[str, Any]) -> Schema:
    """Return an edited schema, checked and inlined.

    Raises:
        ProposalError: It is no JSON Schema of an event.
    """
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        raise ProposalError("an event is an object: give a schema with the type 'object' and with properties")
    found = inlined(schema)
    try:
        Draft202012Validator.check_schema(found)
    except SchemaError as error:
        place = "/".join(str(part) for part in error.absolute_path)
        raise ProposalError(f"this is no JSON Schema: at {place or 'its top'}: {error.message[:200]}") from error
    return found


def _steps(path: str) -> list[str]:
    return path.replace("[]", ".[]").split(".")


def _owner(whole: Schema, path: str) -> tuple[Schema, str]:
    """Return the object that has a field, and the field's name in it."""
    *steps, name = _steps(path)
    for owner in _objects(whole, steps):
        if name in owner["properties"]:
            return owner, name
    known = ", ".join(found for found, _, _ in fields(whole))
    raise ProposalError(f"there is no field {path!r}; there are {known}")


def _objects(whole: Schema, steps: Sequence[str]) -> Iterator[Schema]:
    """Yield the objects with fields that steps lead to."""
    places = [whole]
    for step in steps:
        places = [inner for place in places for inner in _entered(place, step)]
    for place in places:
        yield from (choice for choice in _choices(place) if isinstance(choice.get("properties"), dict))


def _entered(place: Schema, step: str) -> Iterator[Schema]:
    for choice in _choices(place):
        inner = choice.get("items") if step == "[]" else choice.get("properties", {}).get(step)
        if isinstance(inner, dict):
            yield inner


def _write_always(owner: Schema, name: str) -> None:
    owner["required"] = [*(key for key in owner.get("required", ()) if key != name), name]


def _of_type(type: str, *, is_nullable: bool) -> Schema:
    field = copy.deepcopy(TYPES[type])
    return _nullable(field) if is_nullable else field


def _nullable(field: Schema) -> Schema:
    if _allows_null(field):
        return field
    choices = field.get("anyOf") or [{key: value for key, value in field.items() if key != "default"}]
    return {"anyOf": [*choices, {"type": "null"}]}


def _allows_null(field: Schema) -> bool:
    kinds = [choice.get("type") for choice in _choices(field)]
    return any("null" in kind if isinstance(kind, list) else kind == "null" for kind in kinds)


def _has_value(type: str, value: object, *, is_nullable: bool) -> bool:
    match type, value:
        case _, None:
            return is_nullable
        case "string", str():
            return True
        case "boolean", bool():
            return True
        case (("integer" | "number"), bool()):
            return False
        case ("integer", int()) | ("number", int() | float()):
            return True
        case "date-time", str():
            return _is_time(value)
        case _:
            return False


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


__all__ = [
    "NO_DEFAULT",
    "TYPES",
    "ProposalError",
    "add",
    "edited",
    "fields",
    "inlined",
    "make_optional",
    "remove",
    "rename",
    "require",
    "retype",
]
