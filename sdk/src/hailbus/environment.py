"""The bus that environment variables describe: `HAILBUS_BOOTSTRAP_SERVERS` and one variable per setting of `KafkaBus`.

`HAILBUS_SECURITY_PROTOCOL=SASL_SSL` is `KafkaBus(security_protocol="SASL_SSL")`, and so on for each field whose value
is a text, a number or a choice. Certificates come from files: `HAILBUS_SSL_CAFILE` (without it the system's authorities
are trusted), `HAILBUS_SSL_CERTFILE`, `HAILBUS_SSL_KEYFILE` and `HAILBUS_SSL_KEY_PASSWORD`.
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
    import ssl

    from hailbus._transport.kafka import KafkaBus

__all__ = ["bus_from_environment"]

PREFIX = "HAILBUS_"
_CERTIFICATES = ("SSL_CAFILE", "SSL_CERTFILE", "SSL_KEYFILE", "SSL_KEY_PASSWORD")
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
    for name in sorted(set(given) - set(known) - set(_CERTIFICATES)):
        meant = difflib.get_close_matches(name, [*known, *_CERTIFICATES], n=1, cutoff=0.85)
        if meant:
            raise ConfigurationError(f"unknown setting {PREFIX}{name}; did you mean {PREFIX}{meant[0]}?")
    if "BOOTSTRAP_SERVERS" not in given:
        return None
    values = {name.lower(): _parsed(name, given[name], hint) for name, hint in known.items() if name in given}
    context = _ssl_context({name: given[name] for name in _CERTIFICATES if name in given})
    protocol = str(values.get("security_protocol", "PLAINTEXT"))
    if protocol.endswith("SSL"):
        import ssl

        values["ssl_context"] = context if context is not None else ssl.create_default_context()
    elif context is not None:
        message = f"certificates are set, but {PREFIX}SECURITY_PROTOCOL is {protocol}; set it to SSL or SASL_SSL"
        raise ConfigurationError(message)
    return KafkaBus(**values)


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


def _ssl_context(files: Mapping[str, str]) -> ssl.SSLContext | None:
    if not files:
        return None
    import ssl

    try:
        context = ssl.create_default_context(cafile=files.get("SSL_CAFILE"))
        if "SSL_CERTFILE" in files:
            context.load_cert_chain(files["SSL_CERTFILE"], files.get("SSL_KEYFILE"), files.get("SSL_KEY_PASSWORD"))
        elif "SSL_KEYFILE" in files:
            message = f"{PREFIX}SSL_KEYFILE is set without {PREFIX}SSL_CERTFILE; set both"
            raise ConfigurationError(message)
    except OSError as error:  # ssl.SSLError is one
        names = ", ".join(f"{PREFIX}{name}={files[name]}" for name in files if name != "SSL_KEY_PASSWORD")
        message = f"the certificates of {names} cannot be read: {error.strerror or error}"
        raise ConfigurationError(message) from error
    return context
