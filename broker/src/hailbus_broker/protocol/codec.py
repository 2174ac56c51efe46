"""Definition ↔ object ↔ bytes.

For each message and version that is met, Python source for exactly that layout is generated from the definition and
compiled: no field is looked up, no version compared while a message is read or written. Runs of fixed-size fields are
one `struct` call. What an unknown version or a malformed message does is the same in all of them: `ProtocolError`.
"""

from __future__ import annotations

from functools import cache
from struct import Struct as Packing
from struct import error as packing_error
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.schema import Field, Message, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

MessageT = TypeVar("MessageT", bound=Struct)

_FIXED: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}

MAX_ELEMENTS: Final = 100_000
"""Of an array: as many as the cluster has partitions at most. An element of one byte becomes an object of hundreds, and
often another one in the answer."""
MAX_TAGGED_FIELDS: Final = 10_000
"""Of a structure, as in Apache Kafka."""
MAX_STRING_BYTES: Final = 32_767
"""The longest string of the protocol in UTF-8, and the most that the length field of older versions can say."""

_BAD_BYTES: Final = (packing_error, IndexError, UnicodeDecodeError, OverflowError, ValueError, RecursionError)
"""What a generated decoder raises when the bytes do not fit; turned into a ProtocolError at its edge."""


def decode(cls: type[MessageT], data: bytes | bytearray | memoryview, version: int, *, position: int = 0) -> MessageT:
    """Read a message.

    Args:
        cls: What to read.
        data: The frame. Fields of type bytes are views of it.
        version: Of the message.
        position: Where the message begins in the frame. Bytes after its end are ignored, as Kafka does.

    Raises:
        ProtocolError: The bytes are no such message.
    """
    return decode_with_end(cls, data, version, position=position)[0]


def decode_with_end(
    cls: type[MessageT], data: bytes | bytearray | memoryview, version: int, *, position: int = 0
) -> tuple[MessageT, int]:
    """Like `decode`, and where the message ended."""
    view = data if isinstance(data, memoryview) else memoryview(data)
    try:
        result: tuple[MessageT, int] = decoder(cls, version)(view, position, len(view))
    except ProtocolError:
        raise
    except _BAD_BYTES as error:
        raise ProtocolError(f"not a {cls.__name__} of version {version}: {error}") from error
    return result


def encode(message: Struct, version: int, out: bytearray | None = None) -> bytearray:
    """Append a message to a buffer, or write it to a new one."""
    if out is None:
        out = bytearray()
    encoder(type(message), version)(message, out)
    return out


@cache
def decoder(cls: type[Struct], version: int) -> Callable[[memoryview, int, int], tuple[Any, int]]:
    """A function `(view, position, end) -> (message, new position)` for one version, compiled on first use."""
    flexible = _check(cls, version)
    generator = _Decoders(version, flexible=flexible)
    name = generator.struct(cls)
    function: Callable[[memoryview, int, int], tuple[Any, int]] = generator.compile(name, cls)
    return function


@cache
def encoder(cls: type[Struct], version: int) -> Callable[[Any, bytearray], None]:
    """A function `(message, out) -> None` for one version, compiled on first use."""
    flexible = _check(cls, version)
    generator = _Encoders(version, flexible=flexible)
    name = generator.struct(cls)
    function: Callable[[Any, bytearray], None] = generator.compile(name, cls)
    return function


def _check(cls: type[Struct], version: int) -> bool:
    assert issubclass(cls, Message), cls
    if version not in cls.__versions__:
        raise ProtocolError(f"{cls.__name__} has no version {version}")
    return version in cls.__flexible__


def read_uvarint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint of up to 32 bits, and the position after it."""
    result = 0
    for shift in (0, 7, 14, 21, 28):
        if position >= end:
            raise ProtocolError("the bytes end within a varint", position=position)
        byte = view[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > 0xFFFFFFFF:
                break
            return result, position
    raise ProtocolError("a varint has more than 32 bits", position=position)


def write_uvarint(number: int, out: bytearray) -> None:
    """Append an unsigned varint."""
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)


def _short(position: int) -> ProtocolError:
    return ProtocolError("the bytes end within a field", position=position)


def _too_long(name: str, size: int, position: int) -> ProtocolError:
    return ProtocolError(
        f"{name} is a string of {size} bytes, of which {MAX_STRING_BYTES} are allowed", position=position
    )


def _too_many(name: str, count: int, position: int) -> ProtocolError:
    return ProtocolError(f"{name} has {count} elements, of which {MAX_ELEMENTS} are allowed", position=position)


def _too_many_tags(count: int, position: int) -> ProtocolError:
    return ProtocolError(f"{count} tagged fields, of which {MAX_TAGGED_FIELDS} are allowed", position=position)


def _bad_null(name: str, position: int) -> ProtocolError:
    return ProtocolError(f"{name} is null but may not be", position=position)


class _Generator:
    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.functions: dict[type[Struct], str] = {}
        self.source: list[str] = []
        self.names: dict[str, Any] = {
            "read_uvarint": read_uvarint,
            "write_uvarint": write_uvarint,
            "short": _short,
            "too_long": _too_long,
            "too_many": _too_many,
            "too_many_tags": _too_many_tags,
            "bad_null": _bad_null,
        }

    def name(self, prefix: str, value: object) -> str:
        for known, other in self.names.items():
            if other is value:
                return known
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def packing(self, formats: str) -> Packing:
        return _packing(">" + formats)

    def compile(self, name: str, cls: type[Struct]) -> Any:
        code = compile("\n".join(self.source), f"<{cls.__name__} v{self.version}>", "exec")
        exec(code, self.names)  # noqa: S102 - our own text, made of the names in a definition
        return self.names[name]

    def split(self, cls: type[Struct]) -> tuple[list[Field], list[Field], list[Field]]:
        """Fields in the body, tagged fields, and fields that this version does not have."""
        body, tagged, absent = [], [], []
        for field in cls.__fields__:
            if self.version not in field.versions:
                absent.append(field)
            elif field.tag is not None and self.flexible:
                tagged.append(field)
            else:
                body.append(field)
        return body, sorted(tagged, key=lambda field: field.tag or 0), absent


@cache
def _packing(formats: str) -> Packing:
    return Packing(formats)


class _Decoders(_Generator):
    """Writes `def dN(v, p, end): ... return o, p`."""

    def struct(self, cls: type[Struct]) -> str:
        if cls in self.functions:
            return self.functions[cls]
        name = f"d{len(self.functions)}"
        self.functions[cls] = name
        body, tagged, absent = self.split(cls)
        make = self.name("c", cls)
        self.names["new"] = object.__new__
        lines = [f"def {name}(v, p, end):", f" o = new({make})"]
        index = 0
        while index < len(body):
            run = []
            while index < len(body) and body[index].kind in _FIXED:
                run.append(body[index])
                index += 1
            if run:
                packing = self.packing("".join(_FIXED[field.kind][0] for field in run))
                targets = ", ".join(f"o.{field.name}" for field in run)
                lines += [
                    f" if p + {packing.size} > end: raise short(p)",
                    f" {targets}{',' if len(run) == 1 else ''} = {self.name('u', packing.unpack_from)}(v, p)",
                    f" p += {packing.size}",
                ]
                continue
            field = body[index]
            index += 1
            lines += [" " + line for line in self.value(field, f"o.{field.name}")]
        for field in [*absent, *tagged]:
            lines.append(f" o.{field.name} = {self.default(field)}")
        lines.append(" o.unknown_tags = None")
        if self.flexible:
            lines += [
                " if p >= end: raise short(p)",
                " k = v[p]",
                " p += 1",
                " if k:",
                "  if k > 127: k, p = read_uvarint(v, p - 1, end)",
                f"  if k > {MAX_TAGGED_FIELDS}: raise too_many_tags(k, p)",
                "  for _ in range(k):",
                "   t, p = read_uvarint(v, p, end)",
                "   n, p = read_uvarint(v, p, end)",
                "   e = p + n",
                "   if e > end: raise short(p)",
            ]
            branch = "if"
            for field in tagged:
                lines.append(f"   {branch} t == {field.tag}:")
                lines += ["    " + line for line in self.value(field, f"o.{field.name}", end="e")]
                branch = "elif"
            keep = [
                "if o.unknown_tags is None: o.unknown_tags = {}",
                "o.unknown_tags[t] = bytes(v[p:e])",
            ]
            if tagged:
                lines.append("   else:")
                lines += ["    " + line for line in keep]
            else:
                lines += ["   " + line for line in keep]
            lines.append("   p = e")
        lines.append(" return o, p")
        self.source += lines
        return name

    def default(self, field: Field) -> str:
        if field.kind == "array" and field.default is not None:
            return "[]"
        if field.kind == "struct" and field.tag is not None:
            return self.name("k", field.shared_default())
        if field.kind == "struct" and field.default is not None:
            return f"{self.name('c', field.element)}()"
        if field.default is None or isinstance(field.default, (bool, int, str)):
            return repr(field.default)
        return self.name("k", field.default)

    def value(self, field: Field, target: str, *, end: str = "end") -> list[str]:
        nullable = self.version in field.nullable
        label = field.name or "an element"
        flexible = self.flexible and field.flexible
        if field.kind in _FIXED:
            packing = self.packing(_FIXED[field.kind][0])
            return [
                f"if p + {packing.size} > {end}: raise short(p)",
                f"{target}, = {self.name('u', packing.unpack_from)}(v, p)",
                f"p += {packing.size}",
            ]
        if field.kind == "struct":
            assert isinstance(field.element, type)
            read = f"{target}, p = {self.struct(field.element)}(v, p, {end})"
            if not nullable:
                return [read]
            return [
                f"if p >= {end}: raise short(p)",
                "p += 1",
                f"if v[p - 1] > 127: {target} = None",
                f"else: {read}",
            ]
        if flexible:
            length = [
                f"if p >= {end}: raise short(p)",
                "n = v[p]",
                "p += 1",
                "if n > 127:",
                f" n, p = read_uvarint(v, p - 1, {end})",
                # An older version cannot hold it: storing or forwarding it in that version would fail.
                *(
                    [f" if n > {MAX_STRING_BYTES + 1}: raise too_long({label!r}, n - 1, p)"]
                    if field.kind == "string"
                    else []
                ),
                "n -= 1",
            ]
        else:
            packing = self.packing("h" if field.kind == "string" else "i")
            length = [
                f"if p + {packing.size} > {end}: raise short(p)",
                f"n, = {self.name('u', packing.unpack_from)}(v, p)",
                f"p += {packing.size}",
            ]
        null = f"{target} = None" if nullable else f"raise bad_null({label!r}, p)"
        if field.kind == "array":
            return [
                *length,
                "if n < 0:",
                " " + null,
                "else:",
                *[" " + line for line in self.elements(field, target, end)],
            ]
        read = "str(v[p:p + n], 'utf-8')" if field.kind == "string" else "v[p:p + n]"
        return [
            *length,
            "if n < 0:",
            " " + null,
            "else:",
            f" if p + n > {end}: raise short(p)",
            f" {target} = {read}",
            " p += n",
        ]

    def elements(self, field: Field, target: str, end: str) -> list[str]:
        element = field.element
        bound = f"if n > {MAX_ELEMENTS}: raise too_many({field.name!r}, n, p)"
        if isinstance(element, Field) and element.kind in _FIXED:
            code, size = _FIXED[element.kind]
            self.names.setdefault("packing", _packing)
            many = f"packing('>' + {code!r} * n)" if element.kind == "uuid" else f"packing('>' + str(n) + {code!r})"
            return [
                f"if p + n * {size} > {end}: raise short(p)",
                bound,
                f"{target} = list({many}.unpack_from(v, p))",
                f"p += n * {size}",
            ]
        # Whatever an element is, it takes at least a byte: a count cannot make us loop longer than the frame is.
        lines = [f"if n > {end} - p: raise short(p)", bound, "a = []", f"{target} = a"]
        if isinstance(element, Field):
            inner = self.value(element, "x", end=end)
            return [*lines, "for _ in range(n):", *[" " + line for line in inner], " a.append(x)"]
        assert isinstance(element, type)
        function = self.struct(element)
        return [*lines, "for _ in range(n):", f" x, p = {function}(v, p, {end})", " a.append(x)"]


class _Encoders(_Generator):
    """Writes `def eN(o, out): ...`."""

    def struct(self, cls: type[Struct]) -> str:
        if cls in self.functions:
            return self.functions[cls]
        name = f"e{len(self.functions)}"
        self.functions[cls] = name
        body, tagged, _ = self.split(cls)
        lines = [f"def {name}(o, out):"]
        index = 0
        while index < len(body):
            run = []
            while index < len(body) and body[index].kind in _FIXED:
                run.append(body[index])
                index += 1
            if run:
                packing = self.packing("".join(_FIXED[field.kind][0] for field in run))
                values = ", ".join(f"o.{field.name}" for field in run)
                lines.append(f" out += {self.name('w', packing.pack)}({values})")
                continue
            field = body[index]
            index += 1
            lines += [" " + line for line in self.value(field, f"o.{field.name}")]
        if self.flexible:
            lines += self.tags(tagged)
        elif not body:
            lines.append(" pass")
        self.source += lines
        return name

    def tags(self, tagged: list[Field]) -> list[str]:
        if not tagged:
            return (
                [" if o.unknown_tags: write_tags(o.unknown_tags, out)", " else: out.append(0)"] if self._tags() else []
            )
        self._tags()
        lines = [" t = dict(o.unknown_tags) if o.unknown_tags else {}"]
        for field in tagged:
            lines.append(f" if {self.is_set(field)}:")
            lines.append("  outer = out")
            lines.append("  out = bytearray()")
            lines += ["  " + line for line in self.value(field, f"o.{field.name}")]
            lines += [f"  t[{field.tag}] = out", "  out = outer"]
        lines.append(" write_tags(t, out)")
        return lines

    def _tags(self) -> bool:
        self.names["write_tags"] = _write_tags
        return True

    def is_set(self, field: Field) -> str:
        """Kafka writes a tagged field only where it differs from its default."""
        value = f"o.{field.name}"
        if field.default is None:
            return f"{value} is not None"
        if field.kind == "array":
            return f"{value} is None or len({value})" if self.version in field.nullable else value
        if field.kind == "struct":
            default = self.name("k", field.shared_default())
            return f"{value} is not {default} and {value} != {default}"
        if isinstance(field.default, (bool, int, str)):
            return f"{value} != {field.default!r}"
        return f"{value} != {self.name('k', field.default)}"

    def value(self, field: Field, source: str) -> list[str]:
        nullable = self.version in field.nullable
        flexible = self.flexible and field.flexible
        if field.kind in _FIXED:
            return [f"out += {self.name('w', self.packing(_FIXED[field.kind][0]).pack)}({source})"]
        if field.kind == "struct":
            assert isinstance(field.element, type)
            function = self.struct(field.element)
            if not nullable:
                return [f"{function}({source}, out)"]
            return [f"if {source} is None: out.append(255)", "else:", " out.append(1)", f" {function}({source}, out)"]
        lines = [f"s = {source}"]
        if flexible:
            null = "out.append(0)"
            length = ["n = len(s) + 1", "if n < 128: out.append(n)", "else: write_uvarint(n, out)"]
        else:
            packing = self.packing("h" if field.kind == "string" else "i")
            null = f"out += {packing.pack(-1)!r}"
            length = [f"out += {self.name('w', packing.pack)}(len(s))"]
        write = ["s = s.encode()"] if field.kind == "string" else []
        write += length
        if field.kind == "array":
            write += self.elements(field)
        else:
            write.append("out += s")
        if nullable:
            return [*lines, f"if s is None: {null}", "else:", *[" " + line for line in write]]
        return [*lines, *write]

    def elements(self, field: Field) -> list[str]:
        element = field.element
        if isinstance(element, Field):
            return ["for x in s:", *[" " + line for line in self.value(element, "x")]]
        assert isinstance(element, type)
        return [f"for x in s: {self.struct(element)}(x, out)"]


def _write_tags(tags: dict[int, bytes | bytearray], out: bytearray) -> None:
    write_uvarint(len(tags), out)
    for tag in sorted(tags):
        write_uvarint(tag, out)
        write_uvarint(len(tags[tag]), out)
        out += tags[tag]
