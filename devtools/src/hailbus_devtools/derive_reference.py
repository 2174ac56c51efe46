"""Write `docs/sdk/reference.md` from the docstrings of what `hailbus` exports: the page is what the code says."""

import inspect
import re
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

hailbus: Any = import_module("hailbus")  # type checkers see its stub, which names neither `__all__` nor modules

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sdk" / "reference.md"
HEAD = """# API reference

Written by `uv run derive-reference` from the docstrings of everything that `import hailbus` offers, by module.
"""
_SECTIONS = {"Args:", "Attributes:", "Returns:", "Raises:"}
_NAMED = re.compile(r"<(?:function|class) '?(?:\w+\.)*(\w+)'?(?: at 0x[0-9a-f]+)?>")
"""A default that is a function or a class, as `repr` shows it."""


def page() -> str:
    """Return the text of the page."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name in hailbus.__all__:
        module = hailbus._MODULES[name].partition("._")[0]  # noqa: SLF001 where each public name comes from
        modules[module].append(name)
    parts = [HEAD]
    for module, names in sorted(modules.items()):
        parts.append(f"\n## {module}\n")
        parts += [_entry(name, getattr(hailbus, name)) for name in names]
    return "".join(parts)


def _entry(name: str, found: Any) -> str:  # Any: whatever is exported
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return f"\n### {name}\n\n`{found}`\n"
    text = f"\n### {name}\n\n" + _code(f"{name}{_signature(found)}") + _told(found)
    if inspect.isclass(found):
        for member, attribute in vars(found).items():
            if member.startswith("_"):
                continue
            function = attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute
            if isinstance(function, property) and function.__doc__:
                text += f"\n#### {name}.{member}\n" + _told(function)
            elif inspect.isfunction(function) and function.__doc__:
                text += f"\n#### {name}.{member}\n\n" + _code(f"{_prefix(function)}{member}{_signature(function)}")
                text += _told(function)
    return text


def _prefix(function: Any) -> str:  # Any: a function
    return "async " if inspect.iscoroutinefunction(function) else ""


class _Written:
    """An annotation as it is written in the source: `inspect` would print a postponed one with quotes."""

    def __init__(self, annotation: Any) -> None:  # Any: an annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", None)
        self._text = text if text is not None else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self._text


def _signature(found: Any) -> str:  # Any: a class or a function
    if inspect.isclass(found) and issubclass(found, BaseException):
        return ""  # raised by hailbus, caught by its users
    if inspect.isclass(found) and getattr(found, "_is_protocol", False):
        return ""  # nobody calls it
    signature = inspect.signature(found)
    empty = inspect.Parameter.empty
    parameters = [
        parameter if parameter.annotation is empty else parameter.replace(annotation=_Written(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in {"self", "cls"}
    ]
    returned = empty if inspect.isclass(found) else signature.return_annotation
    written = signature.replace(
        parameters=parameters, return_annotation=returned if returned is empty else _Written(returned)
    )
    return _NAMED.sub(r"\1", str(written)).replace("<factory>", "...").replace("datetime.timedelta", "timedelta")


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _told(found: Any) -> str:  # Any: something with a docstring
    """The first paragraph of a docstring, then its sections."""
    lines = inspect.cleandoc(found.__doc__ or "").splitlines()
    first: list[str] = []
    for line in lines:
        if not line.strip() or line in _SECTIONS:
            break
        first.append(line)
    text = "\n" + "\n".join(first) + "\n" if first else ""
    for index, line in enumerate(lines):
        if line in _SECTIONS:
            text += _section(line, lines[index + 1 :])
    return text


def _section(title: str, rest: list[str]) -> str:
    items: list[str] = []
    for line in rest:
        if not line.startswith("    "):
            break
        if line.startswith("     ") and items:
            items[-1] += " " + line.strip()
        else:
            items.append(line.strip())
    if title == "Returns:":
        return f"\n**Returns** {' '.join(items)}\n"
    described = []
    for item in items:
        names, colon, what = item.partition(": ")
        described.append(f"- `{names}`: {what}\n" if colon else f"- {item}\n")
    return f"\n**{title.removesuffix(':')}**\n\n" + "".join(described)


def main() -> None:
    """Write the page; with `--check` only say whether it is up to date."""
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE.name} is out of date: run `uv run derive-reference`")
    PAGE.write_text(page())
