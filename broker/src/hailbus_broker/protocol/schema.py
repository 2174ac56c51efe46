"""How a message is described: the vocabulary of `protocol/definitions`.

A definition is a class whose attributes are fields. Each field says in which versions of the message it exists, and
that is all: how it is laid out follows from its type and from whether the version is flexible (KIP-482).

    class FetchPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("9+", default=-1)

Instances are plain slotted objects with keyword arguments; a field that was not given has its default. They are mutable
because a decoder fills them field by field, which is the fastest thing Python has to offer here; nobody changes one
after it was built.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, dataclass_transform

Uuid: TypeAlias = bytes
"""A 16-byte id as it stands on the wire."""

ZERO_UUID: Final[Uuid] = bytes(16)

NO_VERSION: Final = -1
LAST_VERSION: Final = 32767

FieldType: TypeAlias = Literal[
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "uuid",
    "string",
    "bytes",
    "array",
    "struct",
]


@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range of versions; empty when `first` is past `last`."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    @cache
    def parse(cls, text: str) -> Versions:
        """`"3+"`, `"0-4"`, `"2"` or `"none"`."""
        if text == "none":
            return cls(0, NO_VERSION)
        if text.endswith("+"):
            return cls(int(text[:-1]), LAST_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


@dataclass(slots=True, eq=False)
class Field:
    """One field of a struct."""

    kind: FieldType
    versions: Versions
    nullable: Versions
    default: Any  # of the type that `type` names
    tag: int | None
    element: type[Struct] | Field | None
    """Of an array: what it holds. Of a struct: its class."""
    flexible: bool
    """Whether the field takes its compact form in a flexible version; the client id of a request header never does."""
    name: str = ""
    _shared: Struct | None = None

    def shared_default(self) -> Struct | None:
        """The one instance that stands for an absent tagged struct: telling it from a value is then mostly `is`."""
        if self._shared is None and self.default is not None:
            assert isinstance(self.element, type)
            self._shared = self.element()
        return self._shared

    def new_default(self) -> Any:
        """The value of the field where nobody gave one."""
        if self.kind == "array" and self.default is not None:
            return []
        if self.kind == "struct" and self.default is not None:
            assert isinstance(self.element, type)
            return self.element()
        return self.default


_NONE: Final = Versions(0, NO_VERSION)


def _field(
    type_: FieldType,
    versions: str,
    *,
    default: object,
    nullable: str = "none",
    tag: int | None = None,
    element: type[Struct] | Field | None = None,
    flexible: bool = True,
) -> Any:
    return Field(
        type_,
        Versions.parse(versions),
        Versions.parse(nullable) if nullable != "none" else _NONE,
        default,
        tag,
        element,
        flexible,
    )


def boolean(versions: str, *, default: bool = False, tag: int | None = None) -> Any:
    """One byte, 0 or 1."""
    return _field("bool", versions, default=default, tag=tag)


def int8(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """One byte, signed."""
    return _field("int8", versions, default=default, tag=tag)


def int16(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Two bytes, signed."""
    return _field("int16", versions, default=default, tag=tag)


def uint16(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Two bytes, unsigned."""
    return _field("uint16", versions, default=default, tag=tag)


def int32(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Four bytes, signed."""
    return _field("int32", versions, default=default, tag=tag)


def uint32(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Four bytes, unsigned."""
    return _field("uint32", versions, default=default, tag=tag)


def int64(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Eight bytes, signed."""
    return _field("int64", versions, default=default, tag=tag)


def float64(versions: str, *, default: float = 0.0, tag: int | None = None) -> Any:
    """Eight bytes, IEEE 754."""
    return _field("float64", versions, default=default, tag=tag)


def uuid(versions: str, *, default: Uuid = ZERO_UUID, tag: int | None = None) -> Any:
    """Sixteen bytes."""
    return _field("uuid", versions, default=default, tag=tag)


def string(
    versions: str, *, default: str | None = "", nullable: str = "none", tag: int | None = None, flexible: bool = True
) -> Any:
    """UTF-8 with its length before it."""
    return _field("string", versions, default=default, nullable=nullable, tag=tag, flexible=flexible)


def data(versions: str, *, default: bytes | None = b"", nullable: str = "none", tag: int | None = None) -> Any:
    """Bytes with their length before them; a decoder gives a view of the frame, not a copy."""
    return _field("bytes", versions, default=default, nullable=nullable, tag=tag)


def array(
    element: type[Struct] | Field,
    versions: str,
    *,
    default: list[object] | None = [],  # noqa: B006 - never handed out
    nullable: str = "none",
    tag: int | None = None,
) -> Any:
    """Elements with their number before them."""
    return _field("array", versions, default=default, nullable=nullable, tag=tag, element=element)


def struct(
    of: type[Struct], versions: str, *, default: object = (), nullable: str = "none", tag: int | None = None
) -> Any:
    """A struct in place."""
    return _field("struct", versions, default=default, nullable=nullable, tag=tag, element=of)


@dataclass_transform(kw_only_default=True, eq_default=True)
class StructMeta(type):
    """Turns the fields of a definition into slots and remembers them."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: object) -> StructMeta:
        """Collect the fields."""
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(value)
                del namespace[key]
        inherited = any(isinstance(base, StructMeta) for base in bases)
        namespace["__slots__"] = (*[field.name for field in fields], *(() if inherited else ("unknown_tags",)))
        namespace["__fields__"] = tuple(fields)
        return super().__new__(mcs, name, bases, namespace, **keywords)


class Struct(metaclass=StructMeta):
    """Base of everything that has fields. `unknown_tags` keeps tagged fields that this code has never heard of."""

    __fields__: ClassVar[tuple[Field, ...]]
    if TYPE_CHECKING:
        unknown_tags: dict[int, bytes] | None = None

    def __init__(self, **values: Any) -> None:
        # The first instance of a class compiles its constructor: most of the classes never get there.
        cls = type(self)
        _compile_init(cls)
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.unknown_tags == other.unknown_tags and all(
            getattr(self, field.name) == getattr(other, field.name) for field in self.__fields__
        )

    __hash__ = None  # type: ignore[assignment]  # mutable while it is built

    def __repr__(self) -> str:
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in self.__fields__]
        if self.unknown_tags:
            values.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__name__}({', '.join(values)})"


def _compile_init(cls: type[Struct]) -> None:
    parameters: list[str] = []
    lines: list[str] = []
    names: dict[str, object] = {}
    for number, field in enumerate(cls.__fields__):
        if field.kind == "struct" and field.tag is not None:
            names[f"_default{number}"] = field.shared_default()
            parameters.append(f"{field.name}=_default{number}")
            lines.append(f"    self.{field.name} = {field.name}")
        elif field.kind in {"array", "struct"} and field.default is not None:
            parameters.append(f"{field.name}=_missing")
            names[f"_new{number}"] = list if field.kind == "array" else field.element
            lines.append(f"    self.{field.name} = _new{number}() if {field.name} is _missing else {field.name}")
        else:
            names[f"_default{number}"] = field.default
            parameters.append(f"{field.name}=_default{number}")
            lines.append(f"    self.{field.name} = {field.name}")
    names["_missing"] = object()
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join([*parameters, 'unknown_tags=None'])}):\n" + "\n".join(
        [*lines, "    self.unknown_tags = unknown_tags", ""]
    )
    exec(source, names)  # noqa: S102 - our own text: field names of a definition
    cls.__init__ = names["__init__"]  # type: ignore[method-assign, assignment]  # what exec has just made


class Message(Struct):
    """A request or a response."""

    __versions__: ClassVar[Versions]
    __flexible__: ClassVar[Versions]
    __api_key__: ClassVar[int]

    def __init_subclass__(cls, *, versions: str, flexible: str, api_key: int = -1) -> None:
        cls.__versions__ = Versions.parse(versions)
        cls.__flexible__ = Versions.parse(flexible)
        cls.__api_key__ = api_key
