"""Settings from environment variables and secret files, where a misspelt name stops the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import SecretStr, ValidationError

from hailbus._extras import extra

with extra("service"):
    from pydantic_settings import BaseSettings

from hailbus.errors import ConfigurationError

__all__ = ["describe_settings", "read_settings"]

S = TypeVar("S", bound=BaseSettings)
FROM_FILE = "_FILE"
"""`BOOKING_DATABASE_URL_FILE` names the file that holds `BOOKING_DATABASE_URL`, as public images of databases do it."""


def read_settings(cls: type[S], environment: Mapping[str, str] | None = None) -> S:
    """Read a process' settings from the environment.

    Each setting can be read from a file: the variable's name with `_FILE` behind it holds the file's path. Secrets
    that containers mount do not appear in the environment then. White space around the content is removed.

    Args:
        cls: With an `env_prefix` of its own in `model_config`, as `BOOKING_`.
        environment: In place of the process' own, for tests.

    Raises:
        ConfigurationError: A value is wrong, a file cannot be read, or a variable with the prefix is unknown: a
            misspelt one would otherwise be as good as absent.
    """
    names = environment if environment is not None else os.environ
    prefix = cls.model_config.get("env_prefix", "")
    assert prefix, f"{cls.__name__} needs an env_prefix"
    given = {name: value for name, value in names.items() if name.upper().startswith(prefix)}
    known = {prefix + name.upper() for name in cls.model_fields}
    files = {name for name in given if name.upper() not in known and name.upper().removesuffix(FROM_FILE) in known}
    unknown = sorted(name for name in given if name.upper() not in known and name not in files)
    if unknown:
        raise ConfigurationError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    skips_empty = cls.model_config.get("env_ignore_empty", False)
    texts = {name: value for name, value in given.items() if name not in files}
    for name in sorted(files):
        texts.update(_from_file(name, given))
    values = {name[len(prefix) :].lower(): value for name, value in texts.items() if value or not skips_empty}
    try:
        return cls(**values)  # type: ignore[arg-type]  # pydantic parses the texts
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = prefix + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"{name}: {first['msg']}; set it in the environment") from error


def describe_settings(cls: type[BaseSettings]) -> str:
    """Return a line per setting for `--help`: its variable, its default, and what its description says."""
    prefix = cls.model_config.get("env_prefix", "")
    lines = []
    for name, info in cls.model_fields.items():
        default = "required" if info.is_required() else _shown(info.get_default(call_default_factory=True))
        lines.append((f"{prefix}{name.upper()}", default, info.description or ""))
    first, second = (max((len(line[column]) for line in lines), default=0) for column in (0, 1))
    return "\n".join(f"  {name:{first}}  {default:{second}}  {text}".rstrip() for name, default, text in lines)


def _shown(default: object) -> str:
    # The default of a secret is shown like any other: everybody can read it in the source code.
    text = default.get_secret_value() if isinstance(default, SecretStr) else default
    return "empty" if text is None or text == "" else str(text)


def _from_file(name: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """The setting whose value is in the file that the variable `name` names.

    Raises:
        ConfigurationError: The file cannot be read, or the setting is given as a variable, too.
    """
    setting = name[: -len(FROM_FILE)]
    if setting.upper() in {other.upper() for other in given}:
        raise ConfigurationError(f"{setting} and {name} are both set; unset one of them")
    try:
        return {setting: Path(given[name]).read_text(encoding="utf-8").strip()}
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(
            f"{name}: {given[name]} cannot be read: {reason}; name a readable file that holds {setting}"
        ) from error
