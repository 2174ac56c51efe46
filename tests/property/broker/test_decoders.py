"""Every decoder, given any bytes, returns a message or raises ProtocolError; what was encoded comes back."""

from __future__ import annotations

import struct
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hailbus_broker.protocol import codec, definitions
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
from hailbus_broker.protocol.definitions.describe_groups_request import DescribeGroupsRequest
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.framing import read_head
from hailbus_broker.protocol.schema import Field, Message, Struct
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(definitions.__file__).parent


def load_all() -> dict[str, type[Message]]:
    modules = [import_module(f"{definitions.__name__}.{path.stem}") for path in sorted(FOLDER.glob("[a-z]*.py"))]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    }


MESSAGES = load_all()


def test_more_elements_than_a_cluster_has_partitions_are_refused() -> None:
    for count, kind in ((codec.MAX_ELEMENTS, DescribeGroupsRequest), (codec.MAX_ELEMENTS, DeleteTopicsRequest)):
        whole = bytearray(struct.pack(">i", count)) + bytes(2 * count) + bytes(5)
        codec.decode(kind, whole, 3)
        with pytest.raises(ProtocolError, match=r"has 100001 elements, of which 100000 are allowed"):
            codec.decode(kind, bytearray(struct.pack(">i", count + 1)) + bytes(2 * count) + bytes(5), 3)


def test_very_many_tagged_fields_are_refused() -> None:
    out = bytearray(b"\x01")  # no groups
    out += b"\x00"  # no authorized operations
    codec.write_uvarint(codec.MAX_TAGGED_FIELDS + 1, out)
    for tag in range(codec.MAX_TAGGED_FIELDS + 1):
        codec.write_uvarint(tag, out)
        out.append(0)
    with pytest.raises(ProtocolError, match="10001 tagged fields, of which 10000 are allowed"):
        codec.decode(DescribeGroupsRequest, out, 5)


INTS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def value_of(field: Field, version: int) -> st.SearchStrategy[Any]:
    strategy: st.SearchStrategy[Any]
    match field.kind:
        case "bool":
            strategy = st.booleans()
        case "int8" | "int16" | "int32" | "int64":
            bits = INTS[field.kind]
            strategy = st.integers(-(2**bits), 2**bits - 1)
        case "uint16":
            strategy = st.integers(0, 2**16 - 1)
        case "uint32":
            strategy = st.integers(0, 2**32 - 1)
        case "float64":
            strategy = st.floats(allow_nan=False)
        case "uuid":
            strategy = st.binary(min_size=16, max_size=16)
        case "string":
            strategy = st.text(max_size=200)
        case "bytes":
            strategy = st.binary(max_size=200)
        case "array":
            element = field.element
            assert element is not None
            inner = value_of(element, version) if isinstance(element, Field) else struct_of(element, version)
            strategy = st.lists(inner, max_size=3)
        case "struct":
            assert isinstance(field.element, type)
            strategy = struct_of(field.element, version)
    if version in field.nullable:
        strategy = st.none() | strategy
    return strategy


def struct_of(cls: type[Struct], version: int) -> st.SearchStrategy[Struct]:
    fields = {field.name: value_of(field, version) for field in cls.__fields__ if version in field.versions}
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_what_was_encoded_comes_back(name: str) -> None:
    cls = MESSAGES[name]

    @settings(max_examples=4, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(cls.__versions__.first, cls.__versions__.last))
        message = data.draw(struct_of(cls, version))
        encoded = codec.encode(message, version)
        decoded, end = codec.decode_with_end(cls, bytes(encoded), version)
        assert end == len(encoded)
        assert decoded == message
        if version in cls.__flexible__:
            message.unknown_tags = {9_999: b"from the future"}
            encoded = codec.encode(message, version)
            assert codec.encode(codec.decode(cls, bytes(encoded), version), version) == encoded

    check()


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_any_bytes_are_a_message_or_a_protocol_error(name: str) -> None:
    cls = MESSAGES[name]

    @settings(max_examples=8, deadline=None)
    @given(noise=st.binary(max_size=300), version=st.integers(cls.__versions__.first, cls.__versions__.last))
    def check(noise: bytes, version: int) -> None:
        with suppress(ProtocolError):
            codec.decode(cls, noise, version)

    check()


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_damaged_message_is_a_message_or_a_protocol_error(name: str) -> None:
    cls = MESSAGES[name]

    @settings(max_examples=3, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(cls.__versions__.first, cls.__versions__.last))
        encoded = codec.encode(data.draw(struct_of(cls, version)), version)
        if encoded:
            position = data.draw(st.integers(0, len(encoded) - 1))
            encoded[position] = data.draw(st.integers(0, 255))
            cut = data.draw(st.integers(0, len(encoded)))
            for damaged in (bytes(encoded), bytes(encoded[:cut])):
                with suppress(ProtocolError):
                    codec.decode(cls, damaged, version)

    check()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_have_a_head_or_a_protocol_error(noise: bytes) -> None:
    try:
        head = read_head(memoryview(noise))
    except ProtocolError:
        return
    assert 0 <= head.position <= len(noise)
