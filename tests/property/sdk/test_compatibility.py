"""What the comparison calls readable is readable: every value that a writer's schema allows, the reader's allows."""

from __future__ import annotations

from typing import Any

from hailbus.compatibility import Policy, unreadable
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

NAMES = st.sampled_from(["a", "b", "c"])
Json = Any  # Any: JSON


def plain() -> st.SearchStrategy[Json]:
    bounds = st.integers(-2, 3)
    return st.one_of(
        st.booleans(),
        st.just({}),
        st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": bounds, "maximum": bounds}),
        st.fixed_dictionaries(
            {"type": st.just("number")}, optional={"exclusiveMinimum": bounds, "multipleOf": st.just(2)}
        ),
        st.fixed_dictionaries(
            {"type": st.just("string")}, optional={"maxLength": st.integers(0, 2), "pattern": st.just("^x")}
        ),
        st.fixed_dictionaries(
            {"type": st.lists(st.sampled_from(["null", "boolean", "string"]), min_size=1, unique=True)}
        ),
        st.fixed_dictionaries({"enum": st.lists(st.sampled_from(["x", "y", 1, None]), min_size=1, unique=True)}),
        st.fixed_dictionaries({"const": st.sampled_from(["x", 1])}),
        # Without a type a bound speaks of some values and allows all others.
        st.fixed_dictionaries({}, optional={"minimum": bounds, "maxLength": st.integers(0, 2)}),
    )


def nested(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": properties},
            optional={
                "required": st.lists(NAMES, unique=True),
                "additionalProperties": st.one_of(st.booleans(), inner),
                "maxProperties": st.integers(0, 2),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "uniqueItems": st.booleans()},
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "prefixItems": st.lists(inner, min_size=1, max_size=2)},
            optional={"items": inner},
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"properties": properties}, optional={"required": st.lists(NAMES, unique=True)}),
    )


SCHEMAS = st.recursive(plain(), nested, max_leaves=6)
VALUES = st.recursive(
    st.sampled_from([None, True, False, -3, 0, 1, 2, 3.5, "", "x", "xyz", "y"]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


def allows(schema: Json, value: Json) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Json, Json]:
    """A writer's schema, and one that differs from it in some place."""
    writer = draw(SCHEMAS)

    def edited(node: Json) -> Json:
        if not isinstance(node, dict) or draw(st.integers(0, 3)) == 0:
            return draw(SCHEMAS)
        done = {name: value for name, value in node.items() if name == "properties" or draw(st.integers(0, 5))}
        for name in ("items", "additionalProperties"):
            if name in done:
                done[name] = edited(done[name])
        if "properties" in done:
            kept = {name: inner for name, inner in done["properties"].items() if draw(st.integers(0, 5))}
            done["properties"] = {name: edited(inner) if draw(st.booleans()) else inner for name, inner in kept.items()}
        return done

    return edited(writer), writer


@given(pair=pairs(), values=st.lists(VALUES, min_size=1, max_size=10))
@settings(max_examples=150, deadline=None)
def test_what_is_called_readable_is_read(pair: tuple[Json, Json], values: list[Json]) -> None:
    reader, writer = pair
    written = [value for value in values if allows(writer, value)]
    assume(written)
    if not unreadable(reader, writer, policy=Policy.STRICT):
        for value in written:
            assert allows(reader, value), (reader, writer, value)


@given(schema=SCHEMAS)
@settings(max_examples=80, deadline=None)
def test_a_schema_reads_itself(schema: Json) -> None:
    assert unreadable(schema, schema, policy=Policy.STRICT) == []
