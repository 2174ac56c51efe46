"""The bus that environment variables describe: `HAILBUS_BOOTSTRAP_SERVERS` and one variable per setting of `KafkaBus`.

`HAILBUS_SECURITY_PROTOCOL=SASL_SSL` is `KafkaBus(security_protocol="SASL_SSL")`, and so on for each field whose value
is a text, a number or a choice.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hailbus.errors import ConfigurationError

if TYPE_CHECKING:
    from hailbus._transport.kafka import KafkaBus

__all__ = ["bus_from_environment"]

PREFIX = "HAILBUS_"
_OBJECTS = frozenset({"ssl_context", "partitioner"})
"""Fields of `KafkaBus` that no text can be."""


def bus_from_environment(
    environment: Mapping[str, str] | None = None, *, bootstrap_servers: str | None = None
) -> KafkaBus | None:
    """The bus that the environment describes, None when it names no bootstrap servers.

    Args:
        environment: In place of the process' own, for tests.
        bootstrap_servers: In place of `HAILBUS_BOOTSTRAP_SERVERS`.

    Raises:
        ConfigurationError: A value is wrong, or a variable is misspelt: its name is close to one of these.
    """
    found = environment if environment is not None else os.environ
    given = {name.removeprefix(PREFIX): text for name, text in found.items() if name.startswith(PREFIX) and text}
    if bootstrap_servers is not None:
        given["BOOTSTRAP_SERVERS"] = bootstrap_servers
    if not given:
        return None
    from hailbus._transport.kafka import KafkaBus

    hints = get_type_hints(KafkaBus)
    known = {field.name.upper(): hints[field.name] for field in fields(KafkaBus) if field.name not in _OBJECTS}
    for name in sorted(set(given) - set(known)):
        meant = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if meant:
            raise ConfigurationError(f"unknown setting {PREFIX}{name}; did you mean {PREFIX}{meant[0]}?")
    if "BOOTSTRAP_SERVERS" not in given:
        return None
    return KafkaBus(**{name.lower(): _parsed(name, given[name], hint) for name, hint in known.items() if name in given})


def _parsed(name: str, text: str, hint: Any) -> Any:  # Any: a field's type and a value of it
    if get_origin(hint) is Literal:
        choices = {str(choice).lower(): choice for choice in get_args(hint)}
        if text.lower() not in choices:
            message = f"{PREFIX}{name}={text!r} is not one of {', '.join(map(str, choices.values()))}"
            raise ConfigurationError(message)
        return choices[text.lower()]
    try:
        return TypeAdapter(hint).validate_strings(text)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ConfigurationError(f"{PREFIX}{name}={text!r}: {reason}") from error
